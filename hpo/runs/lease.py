"""A study held by a lease: only the process that runs it may write to it.

A separate thread renews the lease, so that it lasts however long an evaluation takes. If the thread finds that another
process took over the lease, or that the study was cancelled, the run must stop. Every write checks the lease in its own
transaction, so that a run that notices late does no harm.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from hpo.errors import TuningError
from hpo.tuning.periodic import PeriodicThread
from storage.errors import LeaseLost, StoreError
from storage.records import Lease, Study, StudyState
from storage.store import Store

LEASE_SECONDS = 30.0
"""Seconds after which another process may take over a study whose lease is not renewed."""

HEARTBEAT_SECONDS = 2.0
"""Seconds between two renewals of a lease; a cancellation is noticed at the next renewal."""


def lease_holder_name() -> str:
    """Return this process as ``host:pid``."""
    return f"{socket.gethostname()}:{os.getpid()}"


def take_lease(store: Store, study: Study, lease_seconds: float = LEASE_SECONDS) -> Lease:
    """Take the lease of this study, whatever its state; raise :class:`TuningError` if another process runs it.

    A lease whose process on this machine has ended is taken over without waiting.
    """
    holder = store.study(study.name).lease_worker
    gone = holder if holder is not None and is_lease_holder_gone(holder) else None
    lease = store.take_study(
        study.id, lease_holder_name(), lease_seconds=lease_seconds, instead_of=gone
    )
    if lease is None:
        holder = store.study(study.name).lease_worker or "another process"
        raise TuningError(
            f"{holder} is already running study {study.name!r}; watch it with `hpo show`, or "
            f"cancel it there and run it again"
        )
    return lease


class HeldLease(PeriodicThread):
    """A lease that is renewed until it is released; a context manager.

    ``store`` is the store in which every write checks the lease. ``on_warning`` is called with a message when the lease
    cannot be renewed or the study's log cannot be written.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        *,
        on_warning: Callable[[str], None],
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        super().__init__(
            f"lease of study {lease.study.id}", min(HEARTBEAT_SECONDS, lease_seconds / 3)
        )
        self.lease, self.store = lease, store.leased(lease)
        self.lost = ""
        self._plain, self._lease_seconds, self._on_warning = store, lease_seconds, on_warning
        self._away = False

    @property
    def study(self) -> Study:
        """The study as of the last renewal."""
        return self.lease.study

    @property
    def cancelled(self) -> bool:
        """Whether cancellation of the study has been requested."""
        return self.lease.study.cancel_requested

    @property
    def stopping(self) -> bool:
        """Whether the run must stop: the lease is lost, or the study was cancelled."""
        return bool(self.lost) or self.cancelled

    def check(self) -> None:
        """Raise :class:`LeaseLost` if the lease is known to be lost."""
        if self.lost:
            raise LeaseLost(self.lost)

    def release(self, state: StudyState, message: str) -> Study:
        """Release the study in this state, renewing the lease until that succeeds. Raises :class:`LeaseLost`.

        If a cancellation was requested, the study is cancelled instead of queued or interrupted.
        """
        study = self._plain.release_study(self.lease, state, message)
        self.end()
        return study

    def event(self, kind: str, message: str, **data: object) -> None:
        """Write to the study's log; a failure to write is only a warning."""
        try:
            self._plain.add_event(
                self.study.id, kind, message, {"worker": self.lease.worker, **data}
            )
        except StoreError as error:
            self._on_warning(f"could not write to the log of study {self.study.name!r}: {error}")

    def tick(self) -> None:
        """Renew the lease."""
        try:
            self.lease = self._plain.renew_lease(self.lease, lease_seconds=self._lease_seconds)
            self._away = False
        except LeaseLost as error:
            if not self.ended.is_set():
                self.lost = str(error)
            self.ended.set()
        except StoreError as error:
            if not self._away:
                self._on_warning(
                    f"the lease of study {self.study.name!r} could not be renewed, trying again: "
                    f"{error}"
                )
            self._away = True


def is_lease_holder_gone(holder: str) -> bool:
    """Return whether ``host:pid`` names a process that ran on this machine and has ended."""
    host, _, pid = holder.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
