"""The part of the Store for studies in the queue; ``statements.queue`` tells how a lease guards what is written."""

from __future__ import annotations

from typing import Self

from storage.errors import InvalidRecord
from storage.records import Lease, Study, StudyState, Submission
from storage.statements import queue, studies, submissions
from storage.transactions import Transactions


class QueueStore(Transactions):
    """Submit, claim, renew, release, cancel, requeue and delete studies."""

    def submit_study(self, name: str, *, workload: str, metric: str, threshold: float, higher_is_better: bool,
                     spec: str, folder: str = "", owner: str = "", priority: int = 0,
                     idempotency_key: str | None = None, max_samples: int | None = None,
                     max_accelerator_hours: float | None = None) -> Submission:
        """Put a study in the queue; a larger ``priority`` goes first.

        The same submission again, by its owner and its ``idempotency_key`` or, without a key, by its spec, gives
        the study that is there. :class:`Conflict` where the name is taken by another spec, owner or key, or the
        key by another name.
        """
        values = {"workload": workload, "metric": metric, "threshold": threshold, "higher_is_better": higher_is_better,
                  "spec": spec, "folder": folder, "owner": owner, "priority": priority,
                  "idempotency_key": idempotency_key, "max_samples": max_samples,
                  "max_accelerator_hours": max_accelerator_hours}
        with self._write() as connection:
            return submissions.submit(connection, name, values)

    def claim_study(self, worker: str, *, lease_seconds: float, per_owner: int | None = None) -> Lease | None:
        """Take the next study: the highest priority, then the longest in the queue; None where there is none.

        A study whose worker let its lease expire is taken over. An owner who has ``per_owner`` studies under a
        lease waits. ``worker`` names one process and no other.
        """
        _check_seconds(lease_seconds)
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

    def take_study(self, study_id: int, worker: str, *, lease_seconds: float,
                   instead_of: str | None = None) -> Lease | None:
        """Take this very study, in whatever state and whether or not it is in the queue; :class:`NotFound`.

        None while a worker holds a lease on it, unless that is ``instead_of``, which is known to be gone.
        """
        _check_seconds(lease_seconds)
        with self._write() as connection:
            return queue.take(connection, studies.lock(connection, study_id), worker, lease_seconds, instead_of)

    def renew_lease(self, lease: Lease, *, lease_seconds: float) -> Lease:
        """Hold the lease for ``lease_seconds`` from now; its study is as it stands, so that a request to cancel shows.

        :class:`LeaseLost` where another worker has taken the study over, or it was taken away.
        """
        _check_seconds(lease_seconds)
        with self._database.write() as connection:
            return queue.renew(connection, lease, lease_seconds)

    def release_study(self, lease: Lease, state: StudyState, message: str = "") -> Study:
        """End the lease and leave the study in a state, ``queued`` to let another go on; :class:`LeaseLost`."""
        if state == StudyState.RUNNING:
            raise InvalidRecord("a study that is released cannot be left running; give another state")
        with self._database.write() as connection:
            return queue.release(connection, lease, StudyState(state), message)

    def leased(self, lease: Lease) -> Self:
        """A store on the same connections that raises :class:`LeaseLost`, and writes nothing, once the lease is lost.

        A lease that has expired is held until another worker takes the study over.
        """
        return type(self)(self._database, lease)

    def request_cancel(self, study_id: int) -> Study:
        """Cancel a study: at once, or through its worker, which finds ``cancel_requested``; :class:`NotFound`.

        A finished study stays as it is. A study that runs outside the queue is cancelled here, without a word to
        its process.
        """
        with self._write() as connection:
            return submissions.request_cancel(connection, study_id)

    def requeue_study(self, study_id: int) -> Study:
        """Queue a study that has ended, in any way; :class:`NotFound`, or :class:`Conflict` while it is running."""
        with self._write() as connection:
            return submissions.requeue(connection, study_id)

    def delete_study(self, study_id: int) -> None:
        """Delete a study with all that belongs to it; :class:`NotFound`, or :class:`Conflict` while it is running."""
        with self._write() as connection:
            submissions.delete(connection, study_id)

    def set_study_state(self, study_id: int, state: StudyState, message: str = "") -> None:
        """Set where a study stands; :class:`NotFound`, or :class:`Conflict` where a worker holds a lease on it."""
        with self._write() as connection:
            submissions.set_state(connection, study_id, state, message, leased=self._lease is not None)


def _check_seconds(lease_seconds: float) -> None:
    if not 0 < lease_seconds < float("inf"):
        raise InvalidRecord(f"a lease must last for more than 0 seconds, but got {lease_seconds}")
