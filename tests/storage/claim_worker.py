"""A process that claims studies, for the tests of the queue.

Usage: claim_worker.py URL NAME drain|hold
``drain`` finishes what it claims and prints its name, ``hold`` claims two of each owner and keeps them.
"""

from __future__ import annotations

import sys

from storage.records import StudyState
from storage.store import Store


def main(url: str, name: str, mode: str) -> None:
    with Store.open(url) as store:
        sys.stdin.readline()  # all begin at once
        while (
            lease := store.claim_study(
                name, lease_seconds=60, per_owner=2 if mode == "hold" else None
            )
        ) is not None:
            if mode == "drain":
                store.release_study(lease, StudyState.FINISHED)
                print(lease.study.name, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
