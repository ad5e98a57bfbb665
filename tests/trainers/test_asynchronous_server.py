"""The rules of asynchronous training without processes: shares, quorum, bound, and the server's updates."""

import asyncio
import itertools
import os
import random

import pytest
import torch

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.asynchronous.clocks import WorkerClocks, worker_share
from trainers.asynchronous.messages import (
    ActorSetup,
    EpochUpdates,
    GradientPush,
    copy_into,
    pack_tensors,
    unpack_tensors,
)
from trainers.asynchronous.server import ParameterServer


@pytest.mark.parametrize(
    ("first", "last", "workers"), [(0, 10, 3), (7, 8, 4), (5, 29, 4), (3, 9, 1)]
)
def test_shares_are_disjoint_even_and_complete(first, last, workers):
    shares = [worker_share(first, last, worker, workers) for worker in range(workers)]
    assert sorted(itertools.chain(*shares)) == list(range(first, last))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(step % workers == worker for worker, steps in enumerate(shares) for step in steps)


@pytest.mark.parametrize(
    ("shares", "quorum", "needed"),
    [
        ([2] * 4, 0.75, 3),
        ([2] * 5, 0.75, 4),
        ([2] * 4, 1.0, 4),
        ([2] * 4, 0.01, 1),
        ([1, 1, 0, 0], 0.75, 2),
        ([5], 0.5, 1),
    ],
)
def test_an_epoch_ends_with_the_quorum(shares, quorum, needed):
    clocks = WorkerClocks(shares, None, quorum)
    for finished, (worker, count) in enumerate(
        (each for each in enumerate(shares) if each[1]), start=1
    ):
        for _ in range(count):
            assert not clocks.over
            clocks.end(worker, 0)
        assert clocks.over == (finished >= needed)
        if clocks.over:
            break
    assert clocks.measured().skipped == sum(shares) - clocks.measured().updates


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_bound_holds_in_every_race_and_nobody_is_stuck(bound):
    generator, workers, count = random.Random(bound), 4, 30
    largest_age = largest_lead = 0
    for _ in range(20):
        clocks, version = WorkerClocks([count] * workers, bound, 1.0), 0
        taken, done = {}, [0] * workers
        while not clocks.over:
            ready = [
                worker
                for worker in range(workers)
                if worker in taken or (done[worker] < count and clocks.may_begin(worker))
            ]
            worker = generator.choices(ready, [1 if worker == 0 else 20 for worker in ready])[
                0
            ]  # 0 is slow
            if worker in taken:
                clocks.end(worker, version - taken.pop(worker))
                done[worker], version = done[worker] + 1, version + 1
            else:
                # Ho et al.: at clock c every other worker's updates up to c - s - 1 have arrived
                assert min(other for other in done if other < count) >= done[worker] - bound
                clocks.begin(worker)
                taken[worker] = version
        measured = clocks.measured()
        assert (
            done == [count] * workers
            and measured.skipped == 0
            and measured.updates == count * workers
        )
        assert measured.lead <= bound and measured.maximum <= (workers - 1) * (2 * bound + 1)
        largest_age, largest_lead = (
            max(largest_age, measured.maximum),
            max(largest_lead, measured.lead),
        )
    assert largest_lead == bound and largest_age >= workers - 1


def test_without_a_bound_a_fast_worker_runs_away():
    clocks = WorkerClocks([50, 50], None, 0.5)
    while not clocks.over:
        clocks.begin(1)
        clocks.end(1, 0)
    assert clocks.measured().lead == 49


def test_tensors_of_every_type_survive_the_journey():
    tensors = [
        torch.randn(3, 2),
        torch.tensor(2.5, dtype=torch.float64),
        torch.randn(4).bfloat16(),
        torch.arange(5),
        torch.randn(2, 3).t(),
    ]
    for sent, received in zip(tensors, unpack_tensors(pack_tensors(tensors), tensors), strict=True):
        assert received.dtype == sent.dtype and torch.equal(received, sent)
    halves = unpack_tensors(pack_tensors(tensors[:1], torch.float16), tensors[:1], torch.float16)
    assert torch.equal(halves[0], tensors[0].half().float())
    copies = [torch.zeros_like(tensor) for tensor in tensors]
    copy_into(copies, pack_tensors(tensors))
    assert all(map(torch.equal, copies, tensors))


RATE = 0.125


def server(tmp_path, workers, **settings):
    job = TrainingJob(
        workload="tests.trainers.racing_workload:Racing",
        data={"folder": str(tmp_path)},
        target=Target("loss", 1e-6, higher_is_better=False),
        global_batch_size=8,
        seed=0,
        epochs=2,
        settings=TrainingSettings(learning_rate=RATE, momentum=0.5, weight_decay=0.0, **settings),
    )
    return ParameterServer(
        ActorSetup(
            job.to_dict(),
            workers,
            threads=1,
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
    )


def gradient(worker, taken, value, epoch=0):
    ones = [torch.full((1, 4), value), torch.full((1,), value)]
    return GradientPush(epoch, worker, taken.version, value, pack_tensors(ones), [], None)


def values(weights):
    like = [torch.zeros(1, 4), torch.zeros(1)]
    return torch.cat([tensor.flatten() for tensor in unpack_tensors(weights.parameters, like)])


def test_the_server_applies_each_gradient_as_it_comes_and_counts_its_age(tmp_path):
    async def race():
        at = server(tmp_path, 3, update_mode="asynchronous", epoch_quorum=1.0)
        await at.begin(EpochUpdates(0, 0, 6))
        taken = [await at.pull(0, worker) for worker in range(3)]
        start = values(taken[0])
        for worker, value in ((2, 1.0), (0, 2.0)):
            assert await at.push(gradient(worker, taken[worker], value))
        again = await at.pull(0, 0)
        # momentum of 0.5: buffers 1, then 2.5
        torch.testing.assert_close(values(again), start - RATE * (1 + 2.5))
        assert await at.push(gradient(1, taken[1], 4.0))
        torch.testing.assert_close(values(await at.weights()), start - RATE * (1 + 2.5 + 5.25))
        for worker, weights in ((0, again), (1, await at.pull(0, 1)), (2, await at.pull(0, 2))):
            await at.push(gradient(worker, weights, 0.0))
        result = await asyncio.wait_for(at.result(), 5)
        assert result.losses == [1.0, 2.0, 4.0, 0.0, 0.0, 0.0] and result.learning_rate == RATE
        # ages 0, 1, 2, then 1, 1, 2
        assert (result.staleness.mean, result.staleness.maximum) == (7 / 6, 2)

    asyncio.run(race())


def test_what_comes_after_the_quorum_is_not_applied(tmp_path):
    async def race():
        at = server(tmp_path, 4, update_mode="asynchronous")
        await at.begin(EpochUpdates(0, 0, 4))
        taken = [await at.pull(0, worker) for worker in range(4)]
        answers = [await at.push(gradient(worker, taken[worker], 1.0)) for worker in range(3)]
        assert answers == [True, True, False]
        before = values(await at.weights())
        assert not await at.push(gradient(3, taken[3], 100.0))
        assert await at.pull(0, 3) is None
        await at.begin(EpochUpdates(1, 4, 8))
        assert not await at.push(gradient(3, taken[3], 100.0))
        assert torch.equal(values(await at.weights()), before)
        assert await at.pull(1, 3) is not None

    asyncio.run(race())


def test_a_replica_ahead_of_its_bound_waits_for_the_slowest(tmp_path):
    async def race():
        at = server(tmp_path, 2, update_mode="stale_synchronous", staleness_bound=1)
        await at.begin(EpochUpdates(0, 0, 10))
        slow = await at.pull(0, 1)
        for _ in range(2):
            assert await at.push(gradient(0, await at.pull(0, 0), 1.0))
        waiting = asyncio.create_task(at.pull(0, 0))
        await asyncio.sleep(0.01)
        assert not waiting.done() and list(await at.silences()) == [1]
        await at.push(gradient(1, slow, 1.0))
        assert (await asyncio.wait_for(waiting, 5)).version == 3

    asyncio.run(race())


def test_an_overflowed_gradient_counts_and_moves_nothing(tmp_path):
    async def race():
        at = server(tmp_path, 1, update_mode="asynchronous")
        await at.begin(EpochUpdates(0, 0, 1))
        taken = await at.pull(0, 0)
        await at.push(GradientPush(0, 0, 0, 1.0, None, [], None))
        result = await asyncio.wait_for(at.result(), 5)
        assert result.staleness.updates == 1 and torch.equal(
            values(await at.weights()), values(taken)
        )

    asyncio.run(race())
