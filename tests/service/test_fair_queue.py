"""An owner who uses all of their share of the server's threads delays nobody else."""

import asyncio
import contextlib
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from hpo.service import computations
from hpo.service.auth import TokenHolder
from hpo.service.fair_queue import FairQueue
from hpo.service.refusal import RefusedError
from storage.store import Store
from tests.service.api_server import served


class Requests:
    """Requests that last until they are told to end, in the order in which they began."""

    def __init__(self, queue):
        self.fair_queue, self.begun, self.tasks = queue, [], []

    async def ask(self, owner, name):
        ended = asyncio.Event()
        self.tasks.append((owner, asyncio.create_task(self._one(owner, name, ended)), ended))
        await settle()

    async def _one(self, owner, name, ended):
        async with self.fair_queue.slot(owner):
            self.begun.append(name)
            await ended.wait()

    async def end(self, number):
        _, task, ended = self.tasks[number]
        ended.set()
        await task
        await settle()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_an_owner_alone_leaves_a_thread_free_and_another_begins_at_once():
    async def run():
        asked = Requests(FairQueue(threads=4, most=10, queue=100))
        for number in range(6):
            await asked.ask("greedy", f"greedy {number}")
        assert asked.begun == ["greedy 0", "greedy 1"]  # 4 // (1 + 1)
        await asked.ask("other", "other 0")
        assert asked.begun[-1] == "other 0"
        await asked.end(0)
        assert (
            asked.begun[-1] == "other 0"
        )  # of two owners each has 4 // 3 = 1, and greedy has that
        await asked.end(6)
        assert asked.begun[-1] == "greedy 2"  # alone again
        for number in (1, 2, 3, 4, 5):
            await asked.end(number)
        assert asked.begun[-3:] == ["greedy 3", "greedy 4", "greedy 5"]

    asyncio.run(run())


def test_owners_who_wait_take_turns_and_each_keeps_the_own_order():
    async def run():
        asked = Requests(FairQueue(threads=4, most=10, queue=100))
        await asked.ask("c", "c 0")
        for number in range(3):
            await asked.ask("a", f"a {number}")
            await asked.ask("b", f"b {number}")
        assert asked.begun == ["c 0", "a 0", "b 0"]  # 4 // 4 of each
        for number in (1, 2, 3, 4):
            await asked.end(number)
        assert asked.begun[3:] == ["a 1", "b 1", "a 2", "b 2"]

    asyncio.run(run())


def test_requests_that_are_given_up_while_they_wait_take_no_turn():
    async def run():
        asked = Requests(FairQueue(threads=2, most=1, queue=2))
        for number in range(3):
            await asked.ask("a", f"a {number}")
        with pytest.raises(asyncio.QueueFull):
            async with asked.fair_queue.slot("a"):
                pass
        asked.tasks[1][1].cancel()
        await settle()
        await asked.end(0)
        assert asked.begun == ["a 0", "a 2"]
        await asked.end(2)
        assert asked.fair_queue._owners == {}

    asyncio.run(run())


def test_a_request_that_steps_aside_lets_another_begin_and_goes_on_before_those_that_wait():
    async def run():
        queue, told = FairQueue(threads=2, most=1, queue=100), []
        computed = asyncio.Event()

        async def one(name, wait=None):
            async with queue.slot("a") as slot:
                told.append(name)
                if wait is not None:
                    async with slot.aside():
                        await wait.wait()
                    told.append(f"{name} again")
                await settle()

        first = asyncio.create_task(one("computes", computed))
        await settle()
        others = [asyncio.create_task(one(f"read {number}")) for number in range(3)]
        await asyncio.sleep(0)
        computed.set()
        await asyncio.gather(first, *others)
        assert told == ["computes", "read 0", "computes again", "read 1", "read 2"]
        with pytest.raises(ValueError, match="refused"):
            async with queue.slot("a") as slot, slot.aside():
                raise ValueError("refused")
        assert queue._owners == {}

    asyncio.run(run())


def test_whatever_comes_no_share_is_exceeded_nobody_waits_in_vain_and_all_is_given_back():
    """Seeded random requests, some given up at any moment; the bound is that of the owners who were there."""

    async def run(seed):
        draw = random.Random(seed)
        queue = FairQueue(threads=draw.randint(1, 12), most=draw.randint(1, 6), queue=1000)
        running, done = Counter(), Counter()

        async def request(owner):
            async with queue.slot(owner) as slot:
                running[owner] += 1
                assert running[owner] <= max(1, min(queue._most, queue._threads // 2))
                try:
                    await asyncio.sleep(draw.random() * 1e-3)
                finally:
                    running[owner] -= 1
                if draw.random() < 0.3:
                    async with slot.aside():
                        await asyncio.sleep(draw.random() * 1e-3)
                    running[owner] += 1
                    assert running[owner] <= max(1, min(queue._most, queue._threads // 2))
                    running[owner] -= 1
                elif draw.random() < 0.2:
                    slot.end()  # as a stream, before its request ends
            done[owner] += 1

        tasks = []
        for _ in range(300):
            tasks.append(asyncio.create_task(request(draw.choice("abcde"))))
            if draw.random() < 0.2:
                draw.choice(tasks).cancel()
            if draw.random() < 0.3:
                await asyncio.sleep(0)
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert {type(each) for each in ended} <= {type(None), asyncio.CancelledError}
        assert done.total() == sum(each is None for each in ended)
        assert queue._owners == {}

    for seed in range(10):
        asyncio.run(run(seed))


@contextlib.contextmanager
def slow_reads(monkeypatch):
    """Reads of curves take until the context ends."""
    free = threading.Event()
    begun = threading.Semaphore(0)

    def read(self, *asked):
        begun.release()
        free.wait(300)
        return {}  # none of these trials is there

    monkeypatch.setattr(Store, "trial_ids", read)
    try:
        yield begun
    finally:
        free.set()


def test_an_owner_who_asks_for_what_is_dear_over_many_connections_keeps_nobody_waiting(
    tmp_path, monkeypatch
):
    with served(tmp_path, threads=4) as api:
        api.submit("bowl")
        curves = "/studies/bowl/convergence?trial=0"
        api.call("GET", "/studies", owner="grace")
        with (
            ThreadPoolExecutor(20) as pool,
            slow_reads(monkeypatch) as begun,
        ):
            dear = [pool.submit(api.call, "GET", curves, owner="ada") for _ in range(16)]
            assert begun.acquire(timeout=10) and begun.acquire(timeout=10)
            with httpx.Client(base_url=api.client.base_url, timeout=60) as other:
                answer = other.get(
                    "/api/v1/studies",
                    headers={"Authorization": f"Bearer {api.token('grace')}"},
                )
            assert answer.status_code == 200  # while all of those that began still read
            assert not begun.acquire(timeout=0.2)  # of four threads one owner has two at most
            assert not any(each.done() for each in dear)


def test_a_stream_that_is_open_takes_nothing_of_a_share(tmp_path):
    with served(tmp_path, limits={"requests_at_once": 1}) as api:
        api.submit("bowl")
        headers = {"Authorization": f"Bearer {api.token('ada')}"}
        with api.client.stream("GET", "/api/v1/studies/bowl/events", headers=headers) as stream:
            assert next(stream.iter_bytes())
            with httpx.Client(base_url=api.client.base_url, timeout=60) as other:
                assert other.get("/api/v1/studies", headers=headers).status_code == 200


def test_streams_that_read_past_events_keep_no_request_waiting(tmp_path, monkeypatch):
    """However many streams of one owner ask for all events, they read one after the other, in threads of their own."""
    free, begun, events = threading.Event(), threading.Semaphore(0), Store.events

    def read(self, **asked):
        if asked.get("after") == 0 and asked.get("study_id") is not None:
            begun.release()
            free.wait(300)
        return events(self, **asked)

    monkeypatch.setattr(Store, "events", read)
    with served(tmp_path, threads=2) as api, ThreadPoolExecutor(8) as pool:
        api.submit("bowl")
        headers = {"Authorization": f"Bearer {api.token('ada')}"}

        def follow():
            with httpx.Client(base_url=api.client.base_url, timeout=60) as client:
                asked = client.stream("GET", "/api/v1/studies/bowl/events?after=0", headers=headers)
                with asked as stream:
                    return any("submitted" in line for line in stream.iter_lines())

        streams = [pool.submit(follow) for _ in range(8)]
        try:
            assert begun.acquire(timeout=10)
            with httpx.Client(base_url=api.client.base_url, timeout=10) as other:
                answer = other.get(
                    "/api/v1/studies", headers={"Authorization": f"Bearer {api.token('grace')}"}
                )
            assert answer.status_code == 200
            assert not begun.acquire(timeout=0.2)
        finally:
            free.set()
        assert all(each.result(timeout=30) for each in streams)


def test_an_owner_has_one_computation_at_a_time_and_another_begins_at_once(monkeypatch):
    monkeypatch.setattr(computations, "MOST_WAITING", 5)
    free, begun, most = threading.Event(), Counter(), Counter()

    def compute(owner):
        begun[owner] += 1
        most[owner] = max(most[owner], begun[owner])
        if owner == "greedy":
            free.wait(30)
        begun[owner] -= 1
        return owner

    async def run():
        computing = computations.ComputationPool()

        requests = FairQueue(threads=100, most=50, queue=100)

        async def request(owner):
            who = TokenHolder(1, owner, frozenset({"read"}))
            async with requests.slot(owner) as slot:
                return await computing.run(who, slot, lambda: compute(owner))

        def ask(owner):
            return asyncio.create_task(request(owner))

        greedy = [ask("greedy") for _ in range(6)]
        await settle()
        with pytest.raises(
            RefusedError, match="greedy has more than 5 computations waiting"
        ) as refused:
            await ask("greedy")
        assert refused.value.status == 429
        try:
            assert await asyncio.wait_for(ask("other"), 10) == "other"
            assert not any(each.done() for each in greedy)
        finally:
            free.set()
        assert await asyncio.gather(*greedy) == ["greedy"] * 6

    asyncio.run(run())
    assert most == {"greedy": 1, "other": 1}
