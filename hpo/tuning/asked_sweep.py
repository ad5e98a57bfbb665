"""A sweep in ask-and-tell mode: remote clients train its trials, one at a time.

The next trial and early stops are decided by the strategy, samplers and stopping rule of :mod:`hpo.tuning.tuner`. All
state is in the database, so that another process can take over; :meth:`AskedSweep.look` reads trials that other
processes added or ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo.study.jobs import training_job
from hpo.study.sizes import Point, sizes_of_settings
from hpo.study.spec import StudySpec
from hpo.tuning.generation.samplers import Sampler
from hpo.tuning.generation.strategy import SweepDone, WaitForTrainings
from hpo.tuning.retry import StorageRetry
from hpo.tuning.stopping import RunningTrial
from hpo.tuning.sweep import Sweep
from hpo.tuning.tuner import stopping_rule_of_study
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, Study, Trial, TrialState
from storage.store import Store
from trainers.job import TrainingJob
from trainers.report import ConvergencePoint


@dataclass(frozen=True)
class SuggestedTrial:
    """A trial to be added, with the sampler's ticket for it; the ticket is None for a repetition."""

    new: NewTrial
    ticket: int | None


class AskedSweep(Sweep):
    """One study's sweep, kept in sync with changes that other processes make in its database; not thread-safe."""

    def __init__(self, spec: StudySpec, study: Study, store: Store) -> None:
        super().__init__(
            spec,
            study,
            store,
            checkpoints=Path(),
            progress=lambda trials, running: None,  # noqa: ARG005
            retry=StorageRetry(0),
        )
        self._rule = stopping_rule_of_study(spec, self)
        self._asked: dict[int, RunningTrial] = {}
        self._completed: set[int] = set()
        for trial in self.trials:
            if trial.state is TrialState.RUNNING:
                self.began(trial, None)
                self.judge(trial, self.points(trial))

    def _queue_again(self) -> None:
        """Do nothing: trials in flight are held by the clients that train them."""

    def look(self, *, again: bool = False) -> None:
        """Read the trials that other processes have added, ended or returned to the queue: if the counts of trials by
        state have changed, or if ``again`` is true, because two trials may have swapped their states.

        If another process has added trials, the samplers are rebuilt as in a resumed sweep, so that they draw other
        random numbers than the samplers of that process. The rest of the initial design is queued again.
        """
        if not again and self._store.counts(self._study.id, self.purpose) == self._counts():
            return
        stored = self._stored()
        added = [trial for trial in stored if trial.id not in self._trials]
        self._trials.update((trial.id, trial) for trial in added)
        for trial in added:
            if trial.state.finished:
                self._replay(trial, self.points(trial))
        for trial in stored:
            if self._trials[trial.id].state is trial.state:
                continue
            if trial.state.finished:
                self._take(trial)
            self._trials[trial.id] = trial
        if added:
            before = self._samplers
            self._take_up()
            self._tickets.clear()
            self._queue_rest_of(before)

    def _queue_rest_of(self, before: Mapping[Point, Sampler]) -> None:
        """Queue what is left of the initial design of the samplers ``before`` in those that replaced them."""
        for point, sampler in self._samplers.items():
            queue = getattr(sampler, "queue_rest_of", None)  # plug-ins need not have it
            if queue is not None:
                queue(before[point], [each for each in self.trials if self._point(each) == point])

    def check_budget(self) -> None:
        """Set ``spent`` once the study's budget is spent, running trials of all processes included."""
        self.spent = self.spent or self._budget.spent()

    def _take(self, trial: Trial) -> None:
        """Record a trial that another process ended."""
        points = self.points(trial)
        if trial.id in self._asked:
            self.judge(trial, points)
            self.ended(trial, points)
            return
        self._trials[trial.id] = trial
        self._replay(trial, points)
        self._ended(trial)

    def _replay(self, trial: Trial, points: Sequence[ConvergencePoint | Any]) -> None:
        """Pass a trial that has ended to the stopping rule."""
        if trial.id in self.explored and points:
            results = [{"epochs": point.epochs, "metric": point.metric} for point in points]
            last: dict[str, Any] = {**results[-1], "state": str(trial.state)}
            self._rule.replay(f"stored-{trial.id}", self.rung(trial), [*results[:-1], last])

    def next(self) -> Trial | SuggestedTrial | SweepDone | None:
        """Return a queued trial, or a new one to be added; return None while the choice depends on running trials."""
        self.check()
        for trial in self.trials:
            if trial.state is TrialState.QUEUED:
                return trial
        task = self._next_task()
        if isinstance(task, SweepDone):
            return task
        if isinstance(task, WaitForTrainings):
            return None
        return SuggestedTrial(*self._new_trial(task))

    def forget(self, suggested: SuggestedTrial) -> None:
        """Discard a suggestion because another process added a trial first."""
        if suggested.ticket is not None:
            sampler = self._samplers[
                sizes_of_settings(self._spec, suggested.new.settings.get("own", {}))
            ]
            sampler.forget(suggested.ticket, suggested.new.global_batch_size)

    def began(self, trial: Trial, suggested: SuggestedTrial | None) -> None:
        """Record that a trial has begun."""
        self._trials[trial.id] = trial
        if suggested is not None and suggested.ticket is not None:
            self._tickets[trial.id] = suggested.ticket
        job = {"global_batch_size": trial.global_batch_size, "epochs": self.job(trial).epochs}
        config = {"job": job, **self._config(trial)}
        asked = RunningTrial(f"stored-{trial.id}", config)
        self._asked[trial.id] = asked
        self._completed.discard(trial.id)
        self._rule.begins(asked)

    def judge(self, trial: Trial, points: Sequence[ConvergencePoint | Any]) -> str:
        """Return why the trial must stop after these additional points; "" if it may continue.

        A trial that has reached its target, diverged or trained all its epochs is not stopped: its client ends it.
        """
        asked = self._asked.get(trial.id)
        if asked is None:
            self.began(trial, None)
            asked = self._asked[trial.id]
        if self.has_completed(trial):
            return ""
        last = next((at for at, point in enumerate(points) if self._completes(asked, point)), None)
        if last is not None and asked.trial_id not in self._rule.stopped:
            self._completed.add(trial.id)
            if trial.id in self.explored:
                results = [{"epochs": each.epochs, "metric": each.metric} for each in points[:last]]
                self._rule.replay(asked.trial_id, self.rung(trial), results)
            return ""
        for point in points:
            asked.last_result = {
                "trial_id": asked.trial_id,
                "state": "running",
                "epochs": point.epochs,
                "metric": point.metric,
                "points": [{"epochs": point.epochs, "metric": point.metric}],
            }
            if asked.trial_id in self._rule.stopped:
                break
            self._rule.stops(asked, asked.last_result)
        if asked.trial_id not in self._rule.stopped:
            return ""
        return self._rule.reason(asked.trial_id, asked.last_result.get("epochs", 0.0))

    def _completes(self, asked: RunningTrial, point: ConvergencePoint | Any) -> bool:
        """Return whether a training ends with this evaluation by itself."""
        whole: float = asked.config["job"]["epochs"] * (1 - 1e-9)
        reached = self._spec.target.reached(point.metric)
        return reached or not math.isfinite(point.metric) or point.epochs >= whole

    def has_completed(self, trial: Trial) -> bool:
        """Return whether a running trial only waits for its client to end it."""
        return trial.id in self._completed

    def gone(self, trial: Trial) -> None:
        """Record that a trial has returned to the queue."""
        self._trials[trial.id] = trial

    def ended(self, trial: Trial, points: Sequence[ConvergencePoint | Any]) -> None:
        """Record that a trial has ended, and learn from it only once."""
        before, trial = self._trials.get(trial.id), self.as_counted(trial)
        if before is not None and before.state.finished:
            return
        self._trials[trial.id] = trial
        asked = self._asked.pop(trial.id, None)
        self._completed.discard(trial.id)
        if asked is not None and points:
            last = points[-1]
            result = {"epochs": last.epochs, "metric": last.metric, "state": str(trial.state)}
            self._rule.ended(asked, result)
        self._ended(trial)
        self.check_budget()

    def job(self, trial: Trial) -> TrainingJob:
        """Return the training job of a trial."""
        settings = TrainingSettings.from_record(trial.settings)
        return training_job(self._spec, settings, trial.global_batch_size, trial.seed)

    def _counts(self) -> dict[int, dict[TrialState, int]]:
        counts: dict[int, dict[TrialState, int]] = {}
        for trial in self.trials:
            of_batch = counts.setdefault(trial.global_batch_size, {})
            of_batch[trial.state] = of_batch.get(trial.state, 0) + 1
        return counts
