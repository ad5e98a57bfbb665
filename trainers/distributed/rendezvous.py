"""Rendezvous of the workers of one start in a store that may still hold entries from earlier starts.

torchrun's agents keep their store across restarts. The restart count that each agent gives its workers differs between
nodes, because it counts failures of the node's own workers. The workers therefore agree on a name for this start: each
writes a new random number, worker 0 answers each number, and a worker has joined once its own number is answered.
"""

from __future__ import annotations

import secrets
import time

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from trainers.errors import CommunicationError

_POLL_SECONDS = 0.01


def rendezvous_store(store: Store, rank: int, size: int, timeout_seconds: float) -> Store:
    """Return a part of ``store`` that only this start uses, once every worker has joined.

    Raises :class:`CommunicationError` naming the workers that did not join.
    """
    deadline = time.monotonic() + timeout_seconds
    number = secrets.token_hex(8)
    store.set(f"hello/{rank}", number)
    name = number if rank == 0 else _name_of_start(store, rank, number, deadline)
    if name is None:
        raise _did_not_come([0], timeout_seconds)
    own = PrefixStore(name, store)
    own.set(f"here/{rank}", "")
    everyone = [f"here/{other}" for other in range(size)]
    while not own.check(["complete"]):  # a single key, because thousands of workers may poll it
        if time.monotonic() >= deadline:
            raise _did_not_come(
                [other for other, key in enumerate(everyone) if not own.check([key])],
                timeout_seconds,
            )
        if rank == 0:
            _answer(store, name, size)
            if own.check(everyone):
                own.set("complete", "")
                break
        time.sleep(_POLL_SECONDS)
    return own


def _name_of_start(store: Store, rank: int, number: str, deadline: float) -> str | None:
    """Return the name of this start from worker 0's answer to ``number``; None if no answer arrives."""
    key = f"answer/{rank}"
    while time.monotonic() < deadline:
        if store.check([key]):
            answered, name = store.get(key).decode().split()
            if answered == number:
                return str(name)
        time.sleep(_POLL_SECONDS)
    return None


def _answer(store: Store, name: str, size: int) -> None:
    for other in range(1, size):
        if store.check([f"hello/{other}"]):
            store.set(f"answer/{other}", f"{store.get(f'hello/{other}').decode()} {name}")


def _did_not_come(missing: list[int], timeout_seconds: float) -> CommunicationError:
    workers = (
        f"worker {missing[0]}" if len(missing) == 1 else f"workers {', '.join(map(str, missing))}"
    )
    return CommunicationError(
        f"a worker is gone or silent: {workers} did not connect within {timeout_seconds:g} s"
    )
