"""The part of the Store for queued studies; ``statements.queue`` explains how a lease guards writes."""

from __future__ import annotations

from typing import Self

from storage.errors import InvalidRecord, StoreUnavailable
from storage.records import Lease, NewStudy, Study, StudyState, SubmittedStudy
from storage.statements import events, queue, studies, submissions, trial_leases
from storage.transactions import Transactions

_PORTION = 5_000  # points, about 600 KB


class QueueStore(Transactions):
    """Submit, claim, renew, release, cancel, requeue, rename and delete studies."""

    def submit_study(self, new: NewStudy, *, event: str | None = None) -> SubmittedStudy:
        """Put a study in the queue.

        If ``event`` is given, a new study gets an event with this message, in the same transaction.

        A repeated submission, which has the same owner and ``idempotency_key`` or, without a key, the same spec,
        returns the existing study. Raises :class:`Conflict` if the name is taken by another spec, owner or key, or if
        the key was used for another name.
        """
        with self._write() as connection:
            submitted = submissions.submit(connection, new)
            if event is not None and submitted.created:
                events.add(connection, submitted.study.id, "submitted", event, None)
            return submitted

    def claim_study(
        self, worker: str, *, lease_seconds: float, per_owner: int | None = None
    ) -> Lease | None:
        """Take the next study, in the order described in ``statements.queue.claim``; return None if there is none.

        A study whose worker let its lease expire is taken over. An owner who already has ``per_owner`` leased studies
        has to wait. A damaged study is left out and logged. ``worker`` is the unique name of one process.
        """
        check_lease_seconds(lease_seconds)
        with self._read() as connection:
            if not queue.has_work(connection):
                return None
        passed_over: frozenset[str] = frozenset()
        while True:
            with self._write() as connection:
                if not passed_over:
                    queue.settle(connection)
                found = queue.claim(connection, worker, lease_seconds, per_owner, passed_over)
            if not isinstance(found, str):
                return found
            passed_over |= {found}

    def settle_studies(self) -> list[Study]:
        """Cancel and return studies whose cancellation was requested and whose worker stopped responding.

        Their running trials go back into the queue. Where workers run, :meth:`claim_study` does this too.
        """
        with self._read() as connection:
            if not queue.has_abandoned(connection):
                return []
        with self._write() as connection:
            return [studies.by_id(connection, each) for each in queue.settle(connection)]

    def take_study(
        self, study_id: int, worker: str, *, lease_seconds: float, instead_of: str | None = None
    ) -> Lease | None:
        """Take this study, in any state, whether or not it is in the queue. Raises :class:`NotFound`.

        Return None while a client holds a lease on one of its trials, or while a worker holds a lease on the study,
        unless that worker is ``instead_of``, which is known to have died.
        """
        check_lease_seconds(lease_seconds)
        with self._write() as connection:
            study = studies.lock(connection, study_id)
            if trial_leases.any_live(connection, study_id):
                return None
            return queue.take(connection, study, worker, lease_seconds, instead_of)

    def renew_lease(self, lease: Lease, *, lease_seconds: float) -> Lease:
        """Renew the lease for ``lease_seconds`` from now, and return it with the study's current state, so that
        cancellation requests become visible.

        Raises :class:`LeaseLost` if another worker took the study over, or if the lease was revoked.
        """
        check_lease_seconds(lease_seconds)
        with self._database.write() as connection:
            return queue.renew(connection, lease, lease_seconds)

    def release_study(self, lease: Lease, state: StudyState, message: str = "") -> Study:
        """End the lease and set the state; ``queued`` lets another worker continue. Raises :class:`LeaseLost`.

        If a cancellation was requested, the study is cancelled instead of ``queued`` or ``interrupted``.
        """
        if state == StudyState.RUNNING:
            raise InvalidRecord("a released study cannot stay running; give another state")
        with self._database.write() as connection:
            return queue.release(connection, lease, StudyState(state), message)

    def leased(self, lease: Lease) -> Self:
        """Return a store on the same connections whose writes raise :class:`LeaseLost` once the lease is lost.

        An expired lease still counts as held until another worker takes the study over.
        """
        return type(self)(self._database, lease)

    def request_cancel(self, study_id: int) -> Study:
        """Cancel a study: immediately, or through its worker, which sees ``cancel_requested``. Raises
        :class:`NotFound`.

        A finished study is not changed. A study that runs outside the queue is cancelled in the database, without
        notifying its process.
        """
        with self._write() as connection:
            return submissions.request_cancel(connection, study_id)

    def requeue_study(self, study_id: int) -> Study:
        """Queue a study that has ended in any way. Raises :class:`NotFound`, or :class:`Conflict` while it
        is running.
        """
        with self._write() as connection:
            return submissions.requeue(connection, study_id)

    def delete_study(self, study_id: int) -> None:
        """Delete a study with all its data. Raises :class:`NotFound`, or :class:`Conflict` while it is running.

        On a full disk, the space reserved by :meth:`keep_spare` makes the deletion possible.
        """
        try:
            with self._write() as connection:
                submissions.delete(connection, study_id)
        except StoreUnavailable:
            if not self._database.give_spare():
                raise
            more = True
            while more:  # in batches: the more a transaction changes, the more disk space it needs
                with self._write() as connection:
                    more = submissions.delete_points(connection, study_id, _PORTION)
            with self._write() as connection:
                submissions.delete(connection, study_id)

    def keep_spare(self) -> None:
        """Reserve disk space that :meth:`delete_study` needs on SQLite, if there is enough."""
        self._database.keep_spare()

    def rename_study(self, study_id: int, name: str, spec: str) -> Study:
        """Rename a study and store its ``spec`` with the new name; the old name becomes free.

        Raises :class:`NotFound`, or :class:`Conflict` if the study is running or the new name is taken.
        """
        with self._write() as connection:
            return submissions.rename(connection, study_id, name, spec)

    def set_study_state(self, study_id: int, state: StudyState, message: str = "") -> None:
        """Set a study's state. Raises :class:`NotFound`, or :class:`Conflict` if a worker holds a lease on it."""
        with self._write() as connection:
            submissions.set_state(
                connection, study_id, state, message, leased=self._lease is not None
            )

    def reopen_study(self, study_id: int, message: str) -> None:
        """Change a finished study to ``interrupted``, so that its trials can be requested again.

        A study in any other state is not changed: another process may have reopened it, and its trials may be running.
        Raises :class:`NotFound`, or :class:`Conflict` if a worker holds a lease on it.
        """
        with self._write() as connection:
            submissions.reopen(connection, study_id, message)


def check_lease_seconds(lease_seconds: float) -> None:
    """Raise :class:`InvalidRecord` unless the lease duration is valid."""
    if not 0 < lease_seconds < float("inf"):
        raise InvalidRecord(f"a lease must last for more than 0 seconds, but got {lease_seconds}")
