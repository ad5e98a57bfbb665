"""The state of one sweep: ask, train, record, tell, until the budget of trainings is spent.

The database is the only truth. A trial is written there before it starts, its convergence while it runs and
its end when it ends; so a sweep that is killed at any moment goes on from the database: finished trials stay,
trials that were in flight start again from their last checkpoint, and the samplers are told everything anew.
Nothing here knows what runs the trials: Ray Tune calls these methods from ``tuner``. An error of the database or of the
sweep is kept and ends it in good order, for Tune does not clean up after an exception.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from hpo.errors import HpoError, TuningError
from hpo.study.jobs import training_job
from hpo.study.spec import StudySpec
from hpo.tuning.agenda import Choose, Done, Explore, Repeat, Task, next_choice, next_task, rung_budgets
from hpo.tuning.budgets import Budget
from hpo.tuning.forecast_sampler import ForecastSampler
from hpo.tuning.patience import Patience
from hpo.tuning.recorder import Recorder
from hpo.tuning.sampler import LadderSampler
from search_spaces.settings import TrainingSettings
from storage.errors import StoreError
from storage.records import ConvergencePoint, NewTrial, Study, Trial, TrialState
from storage.store import Store

Progress = Callable[[list[Trial], Mapping[int, Mapping[str, Any]]], None]
"""Called after every event with all trials of the sweep and the last convergence point of those in flight."""

PURPOSE = "sweep"
"""What the trials of a sweep are marked with in the database."""

CHECKPOINT_SECONDS = 10.0
"""Seconds of training between two checkpoints of a trial in flight: what is lost when its process dies."""

GIVE_UP_AFTER = 4
"""Failed trials, and nothing else, after which a sweep stops."""


class Ending(StrEnum):
    """Why a sweep came to its end."""

    COMPLETE = "complete"   # every training of the budget has ended
    SPENT = "spent"         # the study's samples or accelerator hours are spent
    STOPPED = "stopped"     # it was asked to stop, and goes on when it is run again


class Sweep:
    """One study's sweep in this process; creating it takes up what the database holds.

    ``stop`` is asked often, and ends the sweep once it says so; ``patience`` waits for a database that is away.
    """

    def __init__(self, spec: StudySpec, study: Study, store: Store, *, checkpoints: Path, progress: Progress,
                 patience: Patience | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        self._spec, self._study, self._store = spec, study, store
        self._checkpoints, self._progress, self._stop = checkpoints, progress, stop
        self._patience = patience or Patience()
        self._recorder, self._budget = Recorder(store, self._patience), Budget(study, store, self._patience)
        stored = self._stored()
        self.batches = sorted({*spec.ladder, *(trial.global_batch_size for trial in stored)})
        self._budgets = rung_budgets(spec.ladder, spec.budget.trials, spec.seeds)
        self._forecasting = ForecastSampler(spec, len(stored)) if spec.sampler == "forecast" else None
        self._sampler = self._forecasting or LadderSampler(
            spec.search, self.batches, sampler=spec.sampler, name=spec.name, epochs=spec.budget.epochs_per_trial,
            earlier=len(stored))
        self._trials: dict[int, Trial] = {}
        self._tickets: dict[int, int] = {}
        self._ids: dict[str, int] = {}
        self._points: dict[int, Mapping[str, Any]] = {}
        self._in_flight: list[Trial] = []
        self._interrupted = False
        self.spent = ""
        self.failure: HpoError | StoreError | None = None
        self._take_up()
        self.spent = self._budget.spent()

    @property
    def finished_trials(self) -> list[Trial]:
        """The trials that have ended, in the order of their numbers."""
        return [trial for trial in self._trials.values() if trial.state.finished]

    def points(self, trial: Trial) -> list[ConvergencePoint]:
        """The stored convergence points of a trial."""
        return self._patience(lambda: self._store.points(trial.id))

    def check(self) -> None:
        """Raise :class:`TuningError` where the first trials all failed: the rest would too."""
        ended = self.finished_trials
        if len(ended) >= GIVE_UP_AFTER and all(trial.state is TrialState.FAILED for trial in ended):
            raise TuningError(f"the first {len(ended)} trials all failed, so the sweep stops; trial {ended[0].number}: "
                              f"{ended[0].reason}")

    @property
    def interrupted(self) -> bool:
        """Whether the sweep is to end now, and its trials in flight to wait for another run."""
        self._interrupted = self._interrupted or self._stop()
        return self._interrupted or bool(self.spent) or self.failure is not None

    @property
    def ending(self) -> Ending:
        """How the sweep ended; raises the error that ended it."""
        if self.failure is not None:
            raise self.failure
        if self.complete:
            return Ending.COMPLETE
        return Ending.SPENT if self.spent else Ending.STOPPED

    @property
    def complete(self) -> bool:
        """Whether every training of the budget has ended."""
        trials = list(self._trials.values())
        return all(t.state.finished for t in trials) and isinstance(self._next_task(), Done)

    def next_config(self, tune_id: str) -> dict[str, Any] | Done | None:
        """What the next actor trains; None while that depends on running trials."""
        if self.interrupted:
            return Done()
        try:
            self.check()
            trial = self._in_flight.pop(0) if self._in_flight else self._next_trial()
            if trial is None or isinstance(trial, Done):
                return trial
            self._start(trial)
        except (HpoError, StoreError) as error:
            self.failure = error
            return Done()
        self._trials[trial.id] = dataclasses.replace(trial, state=TrialState.RUNNING)
        self._ids[tune_id] = trial.id
        limit = self._forecasting.limit_epochs(trial.global_batch_size) if self._forecasting else None
        return {"job": self._job(trial), "limit_epochs": limit, "checkpoint_seconds": CHECKPOINT_SECONDS,
                "checkpoint": str(self._checkpoints / f"{trial.number}.pt")}

    def result(self, tune_id: str, result: Mapping[str, Any]) -> None:
        """Take one report of a trial."""
        trial_id, written = self._ids[tune_id], False
        if self.failure is not None:
            return
        try:
            for point in result.get("points", ()):
                written = self._recorder.point(trial_id, point) or written
                self._points[trial_id] = point
            if written:
                self.spent = self.spent or self._budget.spent()
        except StoreError as error:
            self.failure = error
        self._show()

    def end(self, tune_id: str, state: TrialState, outcome: Mapping[str, Any] | None, reason: str) -> None:
        """Record the end of a trial and teach it to the sampler."""
        trial_id = self._ids[tune_id]
        if self.failure is not None:
            return
        try:
            trial = self._recorder.finish(self._trials[trial_id], state, outcome, reason)
            self.spent = self.spent or self._budget.spent()
        except StoreError as error:
            self.failure = error
            return
        self._trials[trial_id] = trial
        self._points.pop(trial_id, None)
        self._sampler.tell(trial, self._tickets.pop(trial_id, None))
        (self._checkpoints / f"{trial.number}.pt").unlink(missing_ok=True)
        self._show()

    def close(self) -> None:
        """Write what is gathered; trials in flight wait in the queue for the next run."""
        if self.failure is not None:
            return
        try:
            self._recorder.flush()
            self._patience(lambda: self._store.requeue_running(self._study.id))
        except StoreError as error:
            self.failure = error

    def _take_up(self) -> None:
        self._patience(lambda: self._store.requeue_running(self._study.id))
        for trial in self._stored():
            self._trials[trial.id] = trial
            if trial.state.finished:
                self._sampler.tell(trial)
            else:
                self._in_flight.append(trial)
                self._sampler.began(trial)

    def _stored(self) -> list[Trial]:
        return self._patience(lambda: self._store.trials(self._study.id, purpose=PURPOSE))

    def _next_trial(self) -> Trial | Done | None:
        task = self._next_task()
        if isinstance(task, (Explore, Choose)):
            batch, settings, ticket = self._suggest(task)
            trial = self._add(NewTrial(global_batch_size=batch, seed=0, settings=settings.to_dict(), purpose=PURPOSE))
            self._tickets[trial.id] = ticket
            return trial
        if isinstance(task, Repeat):
            return self._add(NewTrial(global_batch_size=task.global_batch_size, seed=task.seed,
                                      settings=dict(task.settings), purpose=PURPOSE))
        return task if isinstance(task, Done) else None

    def _next_task(self) -> Task:
        trials = list(self._trials.values())
        if self._forecasting:
            return next_choice(self._spec.budget.trials, self._spec.seeds, trials)
        return next_task(self._budgets, trials)

    def _suggest(self, task: Explore | Choose) -> tuple[int, TrainingSettings, int]:
        if isinstance(self._sampler, ForecastSampler):
            return self._sampler.suggest(trial for trial in self._trials.values() if not trial.state.finished)
        assert isinstance(task, Explore), "only an acquisition picks its rung"
        return task.global_batch_size, *self._sampler.suggest(task.global_batch_size)

    def _add(self, new: NewTrial) -> Trial:
        def added() -> Trial | None:
            queued = self._store.trials(self._study.id, [TrialState.QUEUED], PURPOSE)
            return next((trial for trial in queued if trial.id not in self._trials), None)

        trial = self._patience(lambda: self._store.add_trials(self._study.id, [new])[0], added)
        self._trials[trial.id] = trial
        return trial

    def _start(self, trial: Trial) -> None:
        def start() -> bool:
            self._store.start_trials([trial.id])
            return True

        def started() -> bool | None:
            return self._store.trial(self._study.id, trial.number).state is TrialState.RUNNING or None

        self._patience(start, started)

    def _job(self, trial: Trial) -> dict[str, Any]:
        settings = TrainingSettings.from_dict(trial.settings)
        return training_job(self._spec, settings, trial.global_batch_size, trial.seed).to_dict()

    def _show(self) -> None:
        """Whoever watches may interrupt; Tune is then asked to stop, for it does not clean up after an exception."""
        try:
            self._progress(list(self._trials.values()), self._points)
        except KeyboardInterrupt:
            self._interrupted = True
