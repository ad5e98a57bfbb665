"""The Store: studies and everything that belongs to them, on SQLite and PostgreSQL.

The Store is split into this module for studies, trials, forecasts and plans, ``storage.queue_store`` for the queue, and
``storage.service_store`` for the service. The SQL statements are in ``storage.statements``, in one module for each kind
of record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from storage import migrations
from storage.database import Clock, Database
from storage.queue_store import QueueStore, check_lease_seconds
from storage.records import (
    CalibrationRow,
    Convergence,
    ConvergencePoint,
    NewForecast,
    NewOutcome,
    NewPlan,
    NewStudy,
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
    fits,
    forecasts,
    plan_runs,
    plans,
    sample_images,
    studies,
    submissions,
    trial_leases,
    trials,
)


class Store(QueueStore, ServiceStore):
    """Studies, trials, convergence, forecasts, plans, outcomes, the queue, and the service's own records.

    Create one with :meth:`open`.

    **Threads and processes.** Several threads may share one store. Several processes may use one database, each with a
    store that it opened itself; a forked process must open its own, too. A store has no state besides its connections:
    each read sees everything that other processes have committed.

    **Transactions.** A writing method takes effect as a whole or not at all, and is committed once it has returned. A
    reading method sees one consistent state of the database.

    **Access.** Every process that opens a database may read all of it. A worker that holds a lease on a study writes to
    it through :meth:`leased`, which checks the lease within each writing transaction, so that a worker that lost its
    lease changes nothing. Convergence, results and states of its trials belong to the process that runs the study;
    requests to cancel, events, tokens and heartbeats may come from any process. Ended trials, forecasts, plans and
    outcomes are never changed again, except that :meth:`retry_failed` queues failed trials; :meth:`delete_study`
    removes them with their study.

    **Errors.** Every method may raise :class:`storage.errors.StoreUnavailable` if the database is lost, or locked for
    longer than the store's time-out, and every writing method :class:`storage.errors.InvalidRecord` for a value that
    the tables do not accept. A leased store's writing methods raise :class:`storage.errors.LeaseLost`. Other errors are
    documented with the methods that raise them. All errors are subclasses of :class:`storage.errors.StoreError`; driver
    errors are converted.
    """

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
        """Open a database, and create or upgrade it if needed; a bare path means SQLite.

        Raises :class:`StoreUnavailable` if the database cannot be opened, and :class:`SchemaTooNew` if a newer release
        wrote it. Without ``create``, a database that does not exist or has no tables yet also raises
        :class:`StoreUnavailable`, and is not created. A write waits up to ``timeout_seconds`` for other writers.
        ``clock`` replaces the clock of the database (``storage.statements.clock``).
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
        """The URL of the database, without the password."""
        return self._database.url

    def close(self) -> None:
        """Close all connections; later calls raise :class:`StoreUnavailable`. On a leased store this does nothing."""
        if self._lease is None:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # studies

    def create_study(self, new: NewStudy) -> Study:
        """Create a queued study, or return the one with that name; raise :class:`Conflict` if its spec differs."""
        with self._write() as connection:
            return studies.create(connection, new)

    def study(self, name: str) -> Study:
        """Return the study with the given name. Raises :class:`NotFound`, which suggests the closest name."""
        with self._read(single_statement=True) as connection:
            return studies.by_name(connection, name)

    def study_by_id(self, study_id: int) -> Study:
        """Return the study with the given id, which trials and plans have as ``study_id``. Raises :class:`NotFound`."""
        with self._read(single_statement=True) as connection:
            return studies.by_id(connection, study_id)

    def studies(self) -> list[Study]:
        """Return all studies, oldest first."""
        with self._read(single_statement=True) as connection:
            return studies.every(connection)

    def update_spec(
        self,
        study_id: int,
        spec: str,
        folder: str | None = None,
        budget_trials: int | None = None,
    ) -> None:
        """Replace the spec of a study, for example to increase its budget, and its folder if one is given.

        ``budget_trials`` is the number of trials in the new spec. Raises :class:`NotFound`.
        """
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
        """Queue trials with the study's next numbers, even if several processes add trials. Raises :class:`NotFound`.

        Raises :class:`Conflict` if the study already has a trial with the same settings, batch size and seed
        (:func:`storage.records.training_key`), whichever client requested that trial and however it ended.
        """
        with self._write() as connection:
            return trials.add(connection, study_id, new)

    def start_trials(self, ids: Collection[int]) -> None:
        """Start queued trials, all or none. Raises :class:`NotFound`, or :class:`Conflict` if one is not queued."""
        with self._write() as connection:
            trials.start(connection, ids)

    def record(self, points: Mapping[int, Sequence[ConvergencePoint]]) -> None:
        """Write points by trial id, all or none, replacing points at the same step. Raises :class:`NotFound`."""
        with self._write() as connection:
            convergence.upsert(connection, points)

    def record_columns(self, points: Convergence) -> None:
        """Write points like :meth:`record`, but from columns.

        The columns are arrays of shape (points,), in any order, with NaN for figures that were not measured. This is
        the fastest way to write many points. If a trial has two points at one step, the later one is stored.
        """
        with self._write() as connection:
            convergence.upsert_columns(connection, points)

    def finish_trial(
        self, trial_id: int, result: TrialResult, points: Sequence[ConvergencePoint] = ()
    ) -> None:
        """Write a trial's result and last points. Raises :class:`NotFound`, or :class:`Conflict` if it has a result."""
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
        """Add trials that ran elsewhere, each with its result and points, all or none. Raises :class:`NotFound`."""
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
        """Queue and return the running trials of a study whose process died; their points stay.

        Ends the leases on unfinished trials. Raises :class:`NotFound`.
        """
        with self._write() as connection:
            requeued = trials.requeue(connection, study_id)
            trial_leases.forget_unfinished(connection, study_id)
            return requeued

    def retry_failed(self, study_id: int) -> list[Trial]:
        """Queue the failed trials that the study trained itself, without their points, as if they were new.

        Returns these trials. Raises :class:`NotFound`, or :class:`Conflict` while the study is running, except on its
        leased store.
        """
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
        """Return trials by number, filtered by states or purpose if given; return none for an unknown study."""
        with self._read(single_statement=True) as connection:
            return trials.select_all(connection, study_id, states, purpose)

    def trial(self, study_id: int, number: int) -> Trial:
        """Return a trial by its number in the study. Raises :class:`NotFound`."""
        with self._read(single_statement=True) as connection:
            return trials.by_number(connection, study_id, number)

    def counts(self, study_id: int, purpose: str | None = None) -> dict[int, dict[TrialState, int]]:
        """Count trials by global batch size, then by state; zero counts are left out."""
        with self._read(single_statement=True) as connection:
            return trials.count(connection, study_id, purpose)

    def own_settings(self, study_id: int) -> list[tuple[int, TrialState, Mapping[str, Any]]]:
        """Return the batch size, state and user-defined settings of each trial, by number; return none for an unknown
        study.
        """
        with self._read(single_statement=True) as connection:
            return trials.own_settings(connection, study_id)

    # trials under their own leases

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
        """Lease the queued trial with that number, or a new one, to a client with a secret, unique ``key``.

        The same key always gets the same trial. Returns None if the trial is no longer queued, or if the study's number
        of trials with the new trial's purpose differs from ``known``; the caller must then read again. Once a trial is
        leased, the study is reserved for clients that ask for trials, and no worker claims it. Raises :class:`Conflict`
        if a worker runs the study or the study has ended, and :class:`NotFound`.
        """
        check_lease_seconds(lease_seconds)
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
        """Return the trial that ``key`` holds, or held when it ended; None if there is none or another key holds it."""
        with self._read() as connection:
            return trial_leases.of_key(connection, study_id, key)

    def leased_trials(self, study_id: int) -> list[TrialLease]:
        """Return the running trials with a lease, by number, including those whose leases have expired."""
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
        """Renew the lease on a trial and write its points, in place of those stored from their first step on.

        Raises :class:`LeaseLost` if another key holds the trial or if it has ended, and :class:`NotFound`.
        """
        check_lease_seconds(lease_seconds)
        with self._write() as connection:
            held = trial_leases.renew(connection, study_id, number, key, lease_seconds)
            convergence.continue_curve(connection, held.trial.id, points)
            return held

    def finish_leased_trial(
        self,
        study_id: int,
        number: int,
        key: str,
        result: TrialResult,
        points: Sequence[ConvergencePoint] = (),
    ) -> Trial:
        """Write the result and the last points of a trial, in place of the points stored from their first step on; a
        trial that ended under this key stays as it is.

        Raises :class:`LeaseLost` if another key holds the trial, and :class:`NotFound`.
        """
        with self._write() as connection:
            trial, written = trial_leases.finish(connection, study_id, number, key, result)
            if written:
                convergence.continue_curve(connection, trial.id, points)
                trials.count_samples(connection, trial.id)
                checksums.write_of_trials(connection, [trial.id])
                trial = trials.by_number(connection, study_id, number)
            return trial

    def release_trial(self, study_id: int, number: int, key: str) -> Trial:
        """Put a trial back into the queue. Raises :class:`NotFound`, or :class:`LeaseLost` if another key holds it."""
        with self._write() as connection:
            return trial_leases.release(connection, study_id, number, key)

    def expire_trial_leases(self, study_id: int, most_vanished: int) -> list[Trial]:
        """Queue trials whose holders stopped responding; a trial that lost more than ``most_vanished`` holders fails.

        Returns these trials in their new state. Raises :class:`NotFound`.
        """
        with self._write() as connection:
            return trial_leases.expire(connection, study_id, most_vanished)

    # convergence

    def convergence(self, trial_ids: Sequence[int]) -> Convergence:
        """Return the points of many trials in columns, by trial and step; an unknown trial has no points."""
        with self._read(single_statement=len(trial_ids) <= trials.CHUNK) as connection:
            return convergence.read(connection, trial_ids)

    def point_counts(self, trial_ids: Sequence[int]) -> dict[int, int]:
        """Return the number of points of each trial; a trial without points, or an unknown one, is left out."""
        with self._read(single_statement=len(trial_ids) <= trials.CHUNK) as connection:
            return convergence.count(connection, trial_ids)

    def newest_points(self, trial_ids: Sequence[int]) -> tuple[Convergence, dict[int, int]]:
        """Return the last point of each trial, in columns by trial, and the number of points of each trial with points.

        A trial without points, or an unknown one, is in neither.
        """
        with self._read(single_statement=not trial_ids) as connection:
            return convergence.read_newest(connection, trial_ids)

    def point_before(self, trial_id: int, step: int) -> ConvergencePoint | None:
        """Return the last point of a trial before a step, or None."""
        with self._read() as connection:
            return convergence.read_before(connection, trial_id, step)

    def points(self, trial_id: int) -> list[ConvergencePoint]:
        """Return the points of one trial, ordered by step. Raises :class:`NotFound`."""
        with self._read() as connection:
            return convergence.read_points(connection, trial_id)

    # forecasts, plans, outcomes

    def add_forecast(self, new: NewForecast) -> StoredForecast:
        """Store a forecast with its settings and laws. Raises :class:`NotFound` if its study does not exist."""
        with self._write() as connection:
            return forecasts.add(connection, new)

    def forecasts(self, study_id: int) -> list[StoredForecast]:
        """Return the forecasts of a study, oldest first; return none for an unknown study."""
        with self._read() as connection:
            return forecasts.of_study(connection, study_id)

    def add_plan(self, new: NewPlan) -> StoredPlan:
        """Store a plan or a baseline. Raises :class:`NotFound` if its study or forecast does not exist."""
        with self._write() as connection:
            return plans.add(connection, new)

    def plan(self, plan_id: int) -> StoredPlan:
        """Return the plan with the given id. Raises :class:`NotFound`, which lists the newest plans."""
        with self._read() as connection:
            return plans.by_id(connection, plan_id)

    def plans(self, study_id: int) -> list[StoredPlan]:
        """Return the plans of a study, oldest first; return none for an unknown study."""
        with self._read() as connection:
            return plans.of_study(connection, study_id)

    def add_outcome(self, new: NewOutcome) -> Outcome:
        """Store the outcome of one launch of a plan. Raises :class:`NotFound` if the plan does not exist."""
        with self._write() as connection:
            return plans.add_outcome(connection, new)

    def outcomes(self, plan_id: int) -> list[Outcome]:
        """Return the outcomes of a plan, oldest first. Raises :class:`NotFound`."""
        with self._read() as connection:
            return plans.outcomes_of(connection, plan_id)

    def add_sample_images(self, outcome_id: int, images: Mapping[str, Any]) -> None:
        """Store sample images of an outcome. Raises :class:`NotFound`, or :class:`Conflict` if it already has some."""
        with self._write() as connection:
            sample_images.add(connection, outcome_id, images)

    def sample_images(self, plan_id: int) -> dict[int, dict[str, Any]]:
        """Return the sample images of a plan's outcomes, by the id of the outcome. Raises :class:`NotFound`."""
        with self._read() as connection:
            return sample_images.of_plan(connection, plan_id)

    def take_plan_run(
        self,
        plan_id: int,
        seed: int,
        holder: str,
        *,
        seconds: float,
        instead_of: str | None = None,
    ) -> str | None:
        """Take or renew the run of a plan with a seed; return None on success, otherwise the current holder.

        The run becomes free after ``seconds`` without a renewal. A process that knows that the holder has died takes
        the run by naming that holder as ``instead_of``. Raises :class:`NotFound`.
        """
        with self._write() as connection:
            return plan_runs.take(connection, plan_id, seed, holder, seconds, instead_of)

    def release_plan_run(self, plan_id: int, seed: int, holder: str) -> None:
        """Release the run of a plan; do nothing if another process holds it."""
        with self._write() as connection:
            plan_runs.release(connection, plan_id, seed, holder)

    def keep_fit(self, study_id: int, fingerprint: str, content: str) -> None:
        """Store laws fitted to the evidence with the given fingerprint, or an answer computed from them.

        The oldest fits are deleted. Raises :class:`NotFound`.
        """
        with self._write() as connection:
            fits.keep(connection, study_id, fingerprint, content)

    def fit(self, study_id: int, fingerprint: str) -> str | None:
        """Return the fit stored by :meth:`keep_fit`; None if no fit has that fingerprint."""
        with self._read() as connection:
            return fits.find(connection, study_id, fingerprint)

    def calibration(self, study_id: int | None = None) -> list[CalibrationRow]:
        """Return each plan that has outcomes, with the means of its outcomes, oldest first; only those of one study if
        it is given.
        """
        with self._read() as connection:
            return calibration.rows(connection, study_id)
