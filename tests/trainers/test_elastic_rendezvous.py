"""Workers find each other in a store that still holds what earlier starts of the same run wrote."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from trainers.distributed.rendezvous import rendezvous_store
from trainers.errors import CommunicationError

pytestmark = pytest.mark.processes


def together(store, ranks, size, seconds=20.0):
    def one(rank):
        try:
            return rendezvous_store(store, rank, size, seconds)
        except CommunicationError as error:
            return str(error)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, ranks))


def test_each_start_has_a_part_of_the_store_for_itself():
    store = HashStore()
    for start in range(3):
        parts = together(store, range(4), 4)
        assert not parts[0].check(["mark"])
        parts[start].set("mark", str(start))
        assert [part.get("mark") for part in parts] == [str(start).encode()] * 4


def test_a_start_with_fewer_workers_is_not_held_up_by_the_lost():
    store = HashStore()
    together(store, range(4), 4)
    parts = together(store, range(2), 2)
    parts[0].set("mark", "")
    assert parts[1].check(["mark"])


@pytest.mark.parametrize(
    ("came", "missing"),
    [([0, 1, 3], "worker 2"), ([0], "workers 1, 2, 3"), ([1, 2, 3], "worker 0")],
)
def test_who_did_not_come_is_named_even_if_it_came_before(came, missing):
    store = HashStore()
    together(store, range(4), 4)
    for answer in together(store, came, 4, seconds=0.5):
        assert answer == f"a worker is gone or silent: {missing} did not connect within 0.5 s"
