"""The part of the Store for studies in the queue; ``statements.queue`` tells how a lease guards what is written."""

from __future__ import annotations

from typing import Self

from storage.errors import InvalidRecord
from storage.records import Lease, Study, StudyState, SubmittedStudy
from storage.statements import events, queue, studies, submissions, trial_leases
from storage.transactions import Transactions


class QueueStore(Transactions):
    """Submit, claim, renew, release, cancel, requeue, rename and delete studies."""

    def submit_study(
        self,
        name: str,
        *,
        workload: str,
        metric: str,
        threshold: float,
        higher_is_better: bool,
        spec: str,
        folder: str = "",
        owner: str = "",
        priority: int = 0,
        idempotency_key: str | None = None,
        max_samples: int | None = None,
        max_accelerator_hours: float | None = None,
        budget_trials: int | None = None,
        for_agents: bool = False,
        event: str | None = None,
    ) -> SubmittedStudy:
        values = {
            "workload": workload,
            "metric": metric,
            "threshold": threshold,
            "higher_is_better": higher_is_better,
            "spec": spec,
            "folder": folder,
            "owner": owner,
            "priority": priority,
            "idempotency_key": idempotency_key,
            "max_samples": max_samples,
            "max_accelerator_hours": max_accelerator_hours,
            "budget_trials": budget_trials,
            "for_agents": for_agents,
        }
        with self._write() as connection:
            submitted = submissions.submit(connection, name, values)
            if event is not None and submitted.created:
                events.add(connection, submitted.study.id, "submitted", event, None)
            return submitted

    def claim_study(
        self, worker: str, *, lease_seconds: float, per_owner: int | None = None
    ) -> Lease | None:
        check_seconds(lease_seconds)
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
        with self._read() as connection:
            if not queue.has_abandoned(connection):
                return []
        with self._write() as connection:
            return [studies.by_id(connection, each) for each in queue.settle(connection)]

    def take_study(
        self, study_id: int, worker: str, *, lease_seconds: float, instead_of: str | None = None
    ) -> Lease | None:
        check_seconds(lease_seconds)
        with self._write() as connection:
            study = studies.lock(connection, study_id)
            if trial_leases.any_live(connection, study_id):
                return None
            return queue.take(connection, study, worker, lease_seconds, instead_of)

    def renew_lease(self, lease: Lease, *, lease_seconds: float) -> Lease:
        check_seconds(lease_seconds)
        with self._database.write() as connection:
            return queue.renew(connection, lease, lease_seconds)

    def release_study(self, lease: Lease, state: StudyState, message: str = "") -> Study:
        if state == StudyState.RUNNING:
            raise InvalidRecord(
                "a study that is released cannot be left running; give another state"
            )
        with self._database.write() as connection:
            return queue.release(connection, lease, StudyState(state), message)

    def leased(self, lease: Lease) -> Self:
        return type(self)(self._database, lease)

    def request_cancel(self, study_id: int) -> Study:
        with self._write() as connection:
            return submissions.request_cancel(connection, study_id)

    def requeue_study(self, study_id: int) -> Study:
        with self._write() as connection:
            return submissions.requeue(connection, study_id)

    def delete_study(self, study_id: int) -> None:
        with self._write() as connection:
            submissions.delete(connection, study_id)

    def rename_study(self, study_id: int, name: str, spec: str) -> Study:
        with self._write() as connection:
            return submissions.rename(connection, study_id, name, spec)

    def set_study_state(self, study_id: int, state: StudyState, message: str = "") -> None:
        with self._write() as connection:
            submissions.set_state(
                connection, study_id, state, message, leased=self._lease is not None
            )


def check_seconds(lease_seconds: float) -> None:
    """Raise :class:`InvalidRecord` unless a lease may last so long."""
    if not 0 < lease_seconds < float("inf"):
        raise InvalidRecord(f"a lease must last for more than 0 seconds, but got {lease_seconds}")
