"""A lock on the run of a plan with one seed, so that no other process, here or elsewhere, runs it at the same time."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

from hpo.errors import LaunchError
from hpo.runs.lease import HEARTBEAT_SECONDS, LEASE_SECONDS, is_lease_holder_gone, lease_holder_name
from hpo.tuning.periodic import PeriodicThread
from storage.errors import StoreError
from storage.store import Store


@contextlib.contextmanager
def held_plan_run(
    store: Store, plan_id: int, seed: int, *, seconds: float = LEASE_SECONDS
) -> Iterator[None]:
    """Hold the run within the context; raise :class:`LaunchError` if another process runs it.

    A thread renews the hold. A hold is void if its process ran on this machine and has ended. If a process elsewhere
    stops responding, its hold expires ``seconds`` after the last renewal.
    """
    holder = f"{lease_holder_name()}:{threading.get_ident()}"
    other = store.take_plan_run(plan_id, seed, holder, seconds=seconds)
    if other is not None and is_lease_holder_gone(other.rpartition(":")[0]):
        other = store.take_plan_run(plan_id, seed, holder, seconds=seconds, instead_of=other)
    if other is not None:
        raise LaunchError(
            f"plan {plan_id} is already running with seed {seed}, in process {other.rpartition(':')[0]}; wait for it, "
            "or launch a different seed"
        )
    try:
        with _Renewal(store, plan_id, seed, holder, seconds):
            yield
    finally:
        with contextlib.suppress(StoreError):  # the hold expires by itself
            store.release_plan_run(plan_id, seed, holder)


class _Renewal(PeriodicThread):
    """A thread that renews the hold on a run."""

    def __init__(
        self, store: Store, plan_id: int, seed: int, holder: str, hold_seconds: float
    ) -> None:
        super().__init__(f"run of plan {plan_id}", min(HEARTBEAT_SECONDS, hold_seconds / 3))
        self._take = functools.partial(
            store.take_plan_run, plan_id, seed, holder, seconds=hold_seconds
        )

    def tick(self) -> None:
        """Renew the hold once."""
        with contextlib.suppress(StoreError):  # the next tick tries again
            self._take()
