"""Store: every read and write, with its errors. The statements are in one module per noun.

Its parts: this one for the research, ``storage.queue_store`` for the queue, ``storage.service_store`` for the service.

A store can be used by several threads, and one database by several processes, each of which opens its own
store (after a fork, too). Every method is one transaction. Any method raises :class:`StoreUnavailable` where
the database is lost or locked for longer than ``timeout_seconds``, and a writing one :class:`InvalidRecord`
for a value that the tables do not hold; other errors stand beside the method that raises them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from storage import migrations
from storage.clock import Clock
from storage.database import Database
from storage.queue_store import QueueStore
from storage.records import (
    CalibrationRow,
    Convergence,
    ConvergencePoint,
    Forecast,
    NewForecast,
    NewOutcome,
    NewPlan,
    NewTrial,
    Outcome,
    Plan,
    Study,
    Trial,
    TrialResult,
    TrialState,
)
from storage.service_store import ServiceStore
from storage.statements import calibration, convergence, exhibits, forecasts, plans, studies, trials


class Store(QueueStore, ServiceStore):
    """Studies, trials, convergence, forecasts, plans and outcomes in one database; use :meth:`open`."""

    # opening and closing

    @classmethod
    def open(cls, url: str, *, create: bool = True, timeout_seconds: float = 30, clock: Clock | None = None) -> Self:
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
        """Where the database is, without the password."""
        return self._database.url

    def close(self) -> None:
        """Give back every connection; any later call raises :class:`StoreUnavailable`. Leased stores keep theirs."""
        if self._lease is None:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    # studies

    def create_study(self, name: str, *, workload: str, metric: str, threshold: float, higher_is_better: bool,
                     spec: str, folder: str = "") -> Study:
        """Create a queued study, or return the one of that name; :class:`Conflict` where its spec differs."""
        values = {"workload": workload, "metric": metric, "threshold": threshold,
                  "higher_is_better": higher_is_better, "spec": spec, "folder": folder}
        with self._write() as connection:
            return studies.create(connection, name, values)

    def study(self, name: str) -> Study:
        """The study of that name; :class:`NotFound` names the nearest."""
        with self._read() as connection:
            return studies.by_name(connection, name)

    def study_by_id(self, study_id: int) -> Study:
        """The study with that id, as trials and plans name it; :class:`NotFound`."""
        with self._read() as connection:
            return studies.by_id(connection, study_id)

    def studies(self) -> list[Study]:
        """All studies, oldest first."""
        with self._read() as connection:
            return studies.every(connection)

    def update_spec(self, study_id: int, spec: str, folder: str | None = None) -> None:
        """Replace the spec of a study, such as by one with a larger budget, and its folder where one is given.

        :class:`NotFound`.
        """
        with self._write() as connection:
            studies.change(connection, study_id, spec=spec, **({} if folder is None else {"folder": folder}))

    # trials

    def add_trials(self, study_id: int, new: Sequence[NewTrial]) -> list[Trial]:
        """Queue trials, numbered on from the study's last, also between processes; :class:`NotFound`."""
        with self._write() as connection:
            return trials.add(connection, study_id, new)

    def start_trials(self, ids: Collection[int]) -> None:
        """Queued to running, all or none; :class:`NotFound`, or :class:`Conflict` where one is not queued."""
        with self._write() as connection:
            trials.start(connection, ids)

    def record(self, points: Mapping[int, Sequence[ConvergencePoint]]) -> None:
        """Write points by trial id, replacing those at the same step; :class:`NotFound`. All or none."""
        with self._write() as connection:
            convergence.upsert(connection, points)

    def record_columns(self, points: Convergence) -> None:
        """As :meth:`record`, from columns: arrays of shape (points,) in any order, NaN for what was not measured.

        The quickest way for many points. Of two points at one step of a trial the later one counts.
        """
        with self._write() as connection:
            convergence.upsert_columns(connection, points)

    def finish_trial(self, trial_id: int, result: TrialResult,
                     points: Sequence[ConvergencePoint] = ()) -> None:
        """Write a result with the last points; :class:`NotFound`, or :class:`Conflict` where one is there."""
        with self._write() as connection:
            trials.finish(connection, trial_id, result)
            convergence.upsert(connection, {trial_id: points})
            trials.count_samples(connection, trial_id)

    def requeue_running(self, study_id: int) -> list[Trial]:
        """Running to queued, for a study whose process died; points stay. Returns them; :class:`NotFound`."""
        with self._write() as connection:
            return trials.requeue(connection, study_id)

    def trials(self, study_id: int, states: Collection[TrialState] | None = None,
               purpose: str | None = None) -> list[Trial]:
        """Trials by number, of some states or one purpose where given; none for an unknown study."""
        with self._read() as connection:
            return trials.select_all(connection, study_id, states, purpose)

    def trial(self, study_id: int, number: int) -> Trial:
        """One trial by its number in the study; :class:`NotFound`."""
        with self._read() as connection:
            return trials.by_number(connection, study_id, number)

    def counts(self, study_id: int, purpose: str | None = None) -> dict[int, dict[TrialState, int]]:
        """Numbers of trials by global batch size, then by state; what there is none of is left out."""
        with self._read() as connection:
            return trials.count(connection, study_id, purpose)

    # convergence

    def convergence(self, trial_ids: Sequence[int]) -> Convergence:
        """Points of many trials in columns, by trial and step; an unknown trial has none."""
        with self._read() as connection:
            return convergence.read(connection, trial_ids)

    def points(self, trial_id: int) -> list[ConvergencePoint]:
        """Points of one trial, by step; :class:`NotFound`."""
        with self._read() as connection:
            return convergence.read_points(connection, trial_id)

    # forecasts, plans, outcomes

    def add_forecast(self, new: NewForecast) -> Forecast:
        """Store a forecast with its settings and laws; :class:`NotFound` without its study."""
        with self._write() as connection:
            return forecasts.add(connection, new)

    def forecasts(self, study_id: int) -> list[Forecast]:
        """Forecasts of a study, oldest first; none for an unknown study."""
        with self._read() as connection:
            return forecasts.of_study(connection, study_id)

    def add_plan(self, new: NewPlan) -> Plan:
        """Store a plan or a baseline; :class:`NotFound` without its study or forecast."""
        with self._write() as connection:
            return plans.add(connection, new)

    def plan(self, plan_id: int) -> Plan:
        """One plan; :class:`NotFound` names the newest."""
        with self._read() as connection:
            return plans.by_id(connection, plan_id)

    def plans(self, study_id: int) -> list[Plan]:
        """Plans of a study, oldest first; none for an unknown study."""
        with self._read() as connection:
            return plans.of_study(connection, study_id)

    def add_outcome(self, new: NewOutcome) -> Outcome:
        """Store what one launch of a plan did; :class:`NotFound` without its plan."""
        with self._write() as connection:
            return plans.add_outcome(connection, new)

    def outcomes(self, plan_id: int) -> list[Outcome]:
        """Outcomes of a plan, oldest first; :class:`NotFound` without the plan."""
        with self._read() as connection:
            return plans.outcomes_of(connection, plan_id)

    def add_exhibit(self, outcome_id: int, exhibit: Mapping[str, Any]) -> None:
        """Store what a model is shown by; :class:`NotFound` without its outcome, :class:`Conflict` for a second."""
        with self._write() as connection:
            exhibits.add(connection, outcome_id, exhibit)

    def exhibits(self, plan_id: int) -> dict[int, dict[str, Any]]:
        """Exhibits of a plan's outcomes, by the id of the outcome; :class:`NotFound` without the plan."""
        with self._read() as connection:
            return exhibits.of_plan(connection, plan_id)

    def calibration(self, study_id: int | None = None) -> list[CalibrationRow]:
        """Every plan that has outcomes beside them, oldest first; those of one study where given."""
        with self._read() as connection:
            return calibration.rows(connection, study_id)
