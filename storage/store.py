"""Store: the promises of :class:`storage.contract.AbstractStore`, kept on SQLite and PostgreSQL.

Its parts: this one for studies, trials, forecasts and plans, ``storage.queue_store`` for the queue,
``storage.service_store`` for the service. The statements are in ``storage.statements``, one module per noun.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from storage import migrations
from storage.clock import Clock
from storage.database import Database
from storage.queue_store import QueueStore, check_seconds
from storage.records import (
    CalibrationRow,
    Convergence,
    ConvergencePoint,
    NewForecast,
    NewOutcome,
    NewPlan,
    NewTrial,
    Outcome,
    StoredForecast,
    StoredPlan,
    Study,
    Trial,
    TrialLease,
    TrialResult,
    TrialState,
)
from storage.service_store import ServiceStore
from storage.statements import (
    calibration,
    checksums,
    convergence,
    exhibits,
    fits,
    forecasts,
    plan_runs,
    plans,
    studies,
    submissions,
    trial_leases,
    trials,
)


class Store(QueueStore, ServiceStore):
    """A store on SQLite or PostgreSQL; make one with :meth:`open`. Its methods are described in the base class."""

    # opening and closing

    @classmethod
    def open(
        cls,
        url: str,
        *,
        create: bool = True,
        timeout_seconds: float = 30,
        clock: Clock | None = None,
    ) -> Self:
        """Open, and where needed create or upgrade, a database; a bare path means SQLite.

        Raises :class:`StoreUnavailable` where that is not possible, :class:`SchemaTooNew` where a newer
        release wrote it. Without ``create``, a database that does not exist or has no tables yet is
        :class:`StoreUnavailable`, too, and is not made. A write waits ``timeout_seconds`` for other writers.
        ``clock`` replaces the database's (``storage.clock``).
        """
        database = Database(url, timeout_seconds=timeout_seconds, create=create, clock=clock)
        try:
            with database.translated():
                migrations.upgrade(database.engine, create=create)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @property
    def url(self) -> str:
        return self._database.url

    def close(self) -> None:
        if self._lease is None:
            self._database.close()

    # studies

    def create_study(
        self,
        name: str,
        *,
        workload: str,
        metric: str,
        threshold: float,
        higher_is_better: bool,
        spec: str,
        folder: str = "",
        budget_trials: int | None = None,
    ) -> Study:
        values = {
            "workload": workload,
            "metric": metric,
            "threshold": threshold,
            "higher_is_better": higher_is_better,
            "spec": spec,
            "folder": folder,
            "budget_trials": budget_trials,
        }
        with self._write() as connection:
            return studies.create(connection, name, values)

    def study(self, name: str) -> Study:
        with self._read(single_statement=True) as connection:
            return studies.by_name(connection, name)

    def study_by_id(self, study_id: int) -> Study:
        with self._read(single_statement=True) as connection:
            return studies.by_id(connection, study_id)

    def studies(self) -> list[Study]:
        with self._read(single_statement=True) as connection:
            return studies.every(connection)

    def update_spec(
        self,
        study_id: int,
        spec: str,
        folder: str | None = None,
        budget_trials: int | None = None,
    ) -> None:
        with self._write() as connection:
            studies.change(
                connection,
                study_id,
                spec=spec,
                budget_trials=budget_trials,
                **({} if folder is None else {"folder": folder}),
            )

    # trials

    def add_trials(self, study_id: int, new: Sequence[NewTrial]) -> list[Trial]:
        with self._write() as connection:
            return trials.add(connection, study_id, new)

    def start_trials(self, ids: Collection[int]) -> None:
        with self._write() as connection:
            trials.start(connection, ids)

    def record(self, points: Mapping[int, Sequence[ConvergencePoint]]) -> None:
        with self._write() as connection:
            convergence.upsert(connection, points)

    def record_columns(self, points: Convergence) -> None:
        with self._write() as connection:
            convergence.upsert_columns(connection, points)

    def finish_trial(
        self, trial_id: int, result: TrialResult, points: Sequence[ConvergencePoint] = ()
    ) -> None:
        with self._write() as connection:
            trials.finish(connection, trial_id, result)
            convergence.upsert(connection, {trial_id: points})
            trials.count_samples(connection, trial_id)
            checksums.write_of_trials(connection, [trial_id])

    def add_ended_trials(
        self,
        study_id: int,
        ended: Sequence[tuple[NewTrial, TrialResult, Sequence[ConvergencePoint]]],
    ) -> list[Trial]:
        with self._write() as connection:
            added = trials.add(connection, study_id, [new for new, _, _ in ended])
            for trial, (_, result, _) in zip(added, ended, strict=True):
                trials.finish(connection, trial.id, result)
            points = zip(added, ended, strict=True)
            convergence.upsert(connection, {trial.id: each[2] for trial, each in points})
            for trial in added:
                trials.count_samples(connection, trial.id)
            checksums.write_of_trials(connection, [trial.id for trial in added])
            first = added[0].number if added else 0
            return [
                trial
                for trial in trials.select_all(connection, study_id, None, None)
                if added and trial.number >= first
            ]

    def requeue_running(self, study_id: int) -> list[Trial]:
        with self._write() as connection:
            requeued = trials.requeue(connection, study_id)
            trial_leases.forget_unfinished(connection, study_id)
            return requeued

    def retry_failed(self, study_id: int) -> list[Trial]:
        with self._write() as connection:
            if self._lease is None:
                submissions.lock_resting(connection, study_id)
            ids = trials.failed(connection, study_id)
            trial_leases.forget(connection, ids)
            convergence.remove(connection, ids)
            return trials.renew(connection, ids)

    def trials(
        self,
        study_id: int,
        states: Collection[TrialState] | None = None,
        purpose: str | None = None,
    ) -> list[Trial]:
        with self._read(single_statement=True) as connection:
            return trials.select_all(connection, study_id, states, purpose)

    def trial(self, study_id: int, number: int) -> Trial:
        with self._read(single_statement=True) as connection:
            return trials.by_number(connection, study_id, number)

    def counts(self, study_id: int, purpose: str | None = None) -> dict[int, dict[TrialState, int]]:
        with self._read(single_statement=True) as connection:
            return trials.count(connection, study_id, purpose)

    # trials under a lease each

    def lease_trial(
        self,
        study_id: int,
        what: int | NewTrial,
        *,
        known: int,
        key: str,
        holder: str,
        lease_seconds: float,
    ) -> TrialLease | None:
        check_seconds(lease_seconds)
        with self._write() as connection:
            return trial_leases.lease(
                connection,
                study_id,
                what,
                known=known,
                key=key,
                holder=holder,
                seconds=lease_seconds,
            )

    def leased_trial(self, study_id: int, key: str) -> TrialLease | None:
        with self._read() as connection:
            return trial_leases.of_key(connection, study_id, key)

    def leased_trials(self, study_id: int) -> list[TrialLease]:
        with self._read() as connection:
            return trial_leases.running(connection, study_id)

    def renew_trial(
        self,
        study_id: int,
        number: int,
        key: str,
        *,
        lease_seconds: float,
        points: Sequence[ConvergencePoint] = (),
    ) -> TrialLease:
        check_seconds(lease_seconds)
        with self._write() as connection:
            held = trial_leases.renew(connection, study_id, number, key, lease_seconds)
            convergence.upsert(connection, {held.trial.id: points})
            return held

    def finish_leased_trial(
        self,
        study_id: int,
        number: int,
        key: str,
        result: TrialResult,
        points: Sequence[ConvergencePoint] = (),
    ) -> Trial:
        with self._write() as connection:
            trial, written = trial_leases.finish(connection, study_id, number, key, result)
            if written:
                convergence.upsert(connection, {trial.id: points})
                trials.count_samples(connection, trial.id)
                checksums.write_of_trials(connection, [trial.id])
                trial = trials.by_number(connection, study_id, number)
            return trial

    def release_trial(self, study_id: int, number: int, key: str) -> Trial:
        with self._write() as connection:
            return trial_leases.release(connection, study_id, number, key)

    def expire_trial_leases(self, study_id: int, most_vanished: int) -> list[Trial]:
        with self._write() as connection:
            return trial_leases.expire(connection, study_id, most_vanished)

    # convergence

    def convergence(self, trial_ids: Sequence[int]) -> Convergence:
        with self._read(single_statement=len(trial_ids) <= trials.CHUNK) as connection:
            return convergence.read(connection, trial_ids)

    def point_before(self, trial_id: int, step: int) -> ConvergencePoint | None:
        with self._read() as connection:
            return convergence.read_before(connection, trial_id, step)

    def points(self, trial_id: int) -> list[ConvergencePoint]:
        with self._read() as connection:
            return convergence.read_points(connection, trial_id)

    # forecasts, plans, outcomes

    def add_forecast(self, new: NewForecast) -> StoredForecast:
        with self._write() as connection:
            return forecasts.add(connection, new)

    def forecasts(self, study_id: int) -> list[StoredForecast]:
        with self._read() as connection:
            return forecasts.of_study(connection, study_id)

    def add_plan(self, new: NewPlan) -> StoredPlan:
        with self._write() as connection:
            return plans.add(connection, new)

    def plan(self, plan_id: int) -> StoredPlan:
        with self._read() as connection:
            return plans.by_id(connection, plan_id)

    def plans(self, study_id: int) -> list[StoredPlan]:
        with self._read() as connection:
            return plans.of_study(connection, study_id)

    def add_outcome(self, new: NewOutcome) -> Outcome:
        with self._write() as connection:
            return plans.add_outcome(connection, new)

    def outcomes(self, plan_id: int) -> list[Outcome]:
        with self._read() as connection:
            return plans.outcomes_of(connection, plan_id)

    def add_exhibit(self, outcome_id: int, exhibit: Mapping[str, Any]) -> None:
        with self._write() as connection:
            exhibits.add(connection, outcome_id, exhibit)

    def exhibits(self, plan_id: int) -> dict[int, dict[str, Any]]:
        with self._read() as connection:
            return exhibits.of_plan(connection, plan_id)

    def take_plan_run(
        self,
        plan_id: int,
        seed: int,
        holder: str,
        *,
        seconds: float,
        instead_of: str | None = None,
    ) -> str | None:
        with self._write() as connection:
            return plan_runs.take(connection, plan_id, seed, holder, seconds, instead_of)

    def release_plan_run(self, plan_id: int, seed: int, holder: str) -> None:
        with self._write() as connection:
            plan_runs.release(connection, plan_id, seed, holder)

    def keep_fit(self, study_id: int, fingerprint: str, content: str) -> None:
        with self._write() as connection:
            fits.keep(connection, study_id, fingerprint, content)

    def fit(self, study_id: int, fingerprint: str) -> str | None:
        with self._read() as connection:
            return fits.find(connection, study_id, fingerprint)

    def calibration(self, study_id: int | None = None) -> list[CalibrationRow]:
        with self._read() as connection:
            return calibration.rows(connection, study_id)
