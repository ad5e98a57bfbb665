"""The state of one sweep: ask, train, record, tell, until the budget of trainings is spent.

The database is the only truth. A trial is written there before it starts, its convergence while it runs and
its end when it ends; so a sweep that is killed at any moment goes on from the database: finished trials stay,
trials that were in flight start again from their last checkpoint, and the samplers are told everything anew.
Nothing here knows what runs the trials: Ray Tune calls these methods from ``tuner``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpo.errors import TuningError
from hpo.jobs import training_job
from hpo.study import StudySpec
from hpo.tuning.agenda import Choose, Done, Explore, Repeat, Task, next_choice, next_task, rung_budgets
from hpo.tuning.forecast_sampler import ForecastSampler
from hpo.tuning.recorder import Recorder
from hpo.tuning.sampler import LadderSampler
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, Study, Trial, TrialState
from storage.store import Store

Progress = Callable[[list[Trial], Mapping[int, Mapping[str, Any]]], None]
"""Called after every event with all trials of the sweep and the last convergence point of those in flight."""

PURPOSE = "sweep"
"""What the trials of a sweep are marked with in the database."""

CHECKPOINT_SECONDS = 10.0
"""Seconds of training between two checkpoints of a trial in flight: what is lost when its process dies."""

GIVE_UP_AFTER = 4
"""Failed trials, and nothing else, after which a sweep stops."""


class Sweep:
    """One study's sweep in this process; creating it takes up what the database holds."""

    def __init__(self, spec: StudySpec, study: Study, store: Store, *, checkpoints: Path,
                 progress: Progress) -> None:
        self._spec, self._study, self._store = spec, study, store
        self._checkpoints, self._progress = checkpoints, progress
        self._recorder = Recorder(store)
        stored = store.trials(study.id, purpose=PURPOSE)
        self.batches = sorted({*spec.ladder, *(trial.global_batch_size for trial in stored)})
        self._budgets = rung_budgets(spec.ladder, spec.budget.trials, spec.seeds)
        self._forecasting = ForecastSampler(spec) if spec.sampler == "forecast" else None
        self._sampler = self._forecasting or LadderSampler(
            spec.search, self.batches, sampler=spec.sampler, name=spec.name, epochs=spec.budget.epochs_per_trial)
        self._trials: dict[int, Trial] = {}
        self._tickets: dict[int, int] = {}
        self._ids: dict[str, int] = {}
        self._points: dict[int, Mapping[str, Any]] = {}
        self._in_flight: list[Trial] = []
        self.interrupted = False
        self._take_up()

    @property
    def finished_trials(self) -> list[Trial]:
        """The trials that have ended, in the order of their numbers."""
        return [trial for trial in self._trials.values() if trial.state.finished]

    def check(self) -> None:
        """Raise :class:`TuningError` where the first trials all failed: the rest would too."""
        ended = self.finished_trials
        if len(ended) >= GIVE_UP_AFTER and all(trial.state is TrialState.FAILED for trial in ended):
            raise TuningError(f"the first {len(ended)} trials all failed, so the sweep stops; trial {ended[0].number}: "
                              f"{ended[0].reason}")

    @property
    def complete(self) -> bool:
        """Whether every training of the budget has ended."""
        trials = list(self._trials.values())
        return all(t.state.finished for t in trials) and isinstance(self._next_task(), Done)

    def next_config(self, tune_id: str) -> dict[str, Any] | Done | None:
        """What the next actor trains; None while that depends on running trials."""
        if self.interrupted:
            return Done()
        self.check()
        trial = self._in_flight.pop(0) if self._in_flight else self._next_trial()
        if trial is None or isinstance(trial, Done):
            return trial
        self._store.start_trials([trial.id])
        self._trials[trial.id] = dataclasses.replace(trial, state=TrialState.RUNNING)
        self._ids[tune_id] = trial.id
        limit = self._forecasting.limit_epochs(trial.global_batch_size) if self._forecasting else None
        return {"job": self._job(trial), "limit_epochs": limit, "checkpoint_seconds": CHECKPOINT_SECONDS,
                "checkpoint": str(self._checkpoints / f"{trial.number}.pt")}

    def result(self, tune_id: str, result: Mapping[str, Any]) -> None:
        """Take one report of a trial."""
        trial_id = self._ids[tune_id]
        for point in result.get("points", ()):
            self._recorder.point(trial_id, point)
            self._points[trial_id] = point
        self._show()

    def end(self, tune_id: str, state: TrialState, outcome: Mapping[str, Any] | None, reason: str) -> None:
        """Record the end of a trial and teach it to the sampler."""
        trial_id = self._ids[tune_id]
        self._recorder.finish(trial_id, state, outcome, reason)
        trial = self._store.trial(self._study.id, self._trials[trial_id].number)
        self._trials[trial_id] = trial
        self._points.pop(trial_id, None)
        self._sampler.tell(trial, self._tickets.pop(trial_id, None))
        (self._checkpoints / f"{trial.number}.pt").unlink(missing_ok=True)
        self._show()

    def close(self) -> None:
        """Write what is gathered; trials in flight wait in the queue for the next run."""
        self._recorder.flush()
        self._store.requeue_running(self._study.id)

    def _take_up(self) -> None:
        self._store.requeue_running(self._study.id)
        for trial in self._store.trials(self._study.id, purpose=PURPOSE):
            self._trials[trial.id] = trial
            if trial.state.finished:
                self._sampler.tell(trial)
            else:
                self._in_flight.append(trial)

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
        trial = self._store.add_trials(self._study.id, [new])[0]
        self._trials[trial.id] = trial
        return trial

    def _job(self, trial: Trial) -> dict[str, Any]:
        settings = TrainingSettings.from_dict(trial.settings)
        return training_job(self._spec, settings, trial.global_batch_size, trial.seed).to_dict()

    def _show(self) -> None:
        """Whoever watches may interrupt; Tune is then asked to stop, for it does not clean up after an exception."""
        try:
            self._progress(list(self._trials.values()), self._points)
        except KeyboardInterrupt:
            self.interrupted = True
