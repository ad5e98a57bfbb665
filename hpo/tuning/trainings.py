"""The state of a study's trials in this process: choose, train and record, until there is nothing left to start.

The database is the only source of truth. A trial is written to it before it starts, its convergence while it runs, and
its result when it ends. Trials that are killed at any moment therefore resume from the database: finished trials stay,
and trials that were in flight restart from their last checkpoint. A subclass decides which trial is next, based only on
the previous trials. This module does not depend on what runs the trials: Ray Tune calls these methods through
``tuner``. An error of the database or of a trial is stored and ends all trials cleanly, because Tune does not clean up
after an exception.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from hpo.errors import HpoError, TuningError
from hpo.extrapolation.evidence.stored import trial_as_counted
from hpo.study.jobs import training_job, trial_folder
from hpo.study.spec import StudySpec
from hpo.tuning.budgets import BudgetUse
from hpo.tuning.generation.strategy import SweepDone
from hpo.tuning.retry import StorageRetry
from hpo.tuning.trial_writer import TrialWriter
from search_spaces.settings import TrainingSettings
from storage.errors import StoreError
from storage.records import ConvergencePoint, NewTrial, Study, Trial, TrialState
from storage.store import Store
from trainers.errors import TrainerError
from trainers.workloads.program.files import ProgramFiles

Progress = Callable[[list[Trial], Mapping[int, Mapping[str, Any]]], None]
"""Called after every event with all trials and the last convergence point of each trial in flight."""

CHECKPOINT_SECONDS = 10.0
"""Seconds of training between two checkpoints of a trial: at most this much work is lost when its process dies."""

MOST_AGAIN = 2
"""How often a trial is restarted if its process died before it started to train."""

GIVE_UP_AFTER = 4
"""Number of trials after which the study stops if all of them failed."""


def failed_trials_advice(study: str) -> str:
    """Return advice for a study whose trials failed."""
    return (
        f"fix the cause and run the study again: failed trials are trained again if "
        f"its program or command has changed, and always with `hpo run --retry-failed` (on a server "
        f"`hpo resume --retry-failed`); `hpo delete {study}` removes the study, "
        f"`hpo rename {study} NEW` frees its name"
    )


class TrainingsEnding(StrEnum):
    """How a study's trials ended."""

    COMPLETE = "complete"  # every planned trial has ended
    SPENT = "spent"  # the study's budget of samples or accelerator hours is spent
    STOPPED = "stopped"  # stopped on request; trials resume when the study is run again


class StudyTrainings:
    """One study's trials for one purpose in this process; the constructor loads the state from the database.

    ``stop`` is called often, and ends the trials once it returns true; ``retry`` waits for an unavailable database.
    """

    purpose: ClassVar[str]
    """Purpose of these trials in the database."""

    def __init__(
        self,
        spec: StudySpec,
        study: Study,
        store: Store,
        *,
        checkpoints: Path,
        progress: Progress,
        retry: StorageRetry | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spec, self._study, self._store = spec, study, store
        self._checkpoints, self._progress, self._stop = checkpoints, progress, stop
        self._retry = retry or StorageRetry()
        self._writer, self._budget = (
            TrialWriter(store, self._retry),
            BudgetUse(study, store, self._retry),
        )
        self._trials: dict[int, Trial] = {}
        self._ids: dict[str, int] = {}
        self._points: dict[int, Mapping[str, Any]] = {}
        self._in_flight: list[Trial] = []
        self._again: Counter[int] = Counter()
        self._interrupted = False
        self.resources: dict[str, Any] = {}
        """The resources of each trial, for :class:`~hpo.tuning.resources.TrialResources`; set by the code that runs
        them.
        """
        self.spent = ""
        self.failure: HpoError | StoreError | None = None
        self._queue_again()
        for trial in self._stored():
            self._trials[trial.id] = trial
            if not trial.state.finished:
                self._in_flight.append(trial)
        self._take_up()
        self.spent = self._budget.spent()

    def _queue_again(self) -> None:
        """Queue the trials that were in flight when an earlier run died."""
        self._retry(lambda: self._store.requeue_running(self._study.id))

    def _take_up(self) -> None:
        """Learn from the trials of earlier runs, before any trial starts."""

    def _next_trial(self) -> Trial | SweepDone | None:
        """Add and return the next trial, or :class:`SweepDone` if there is none; return None while the choice depends
        on running trials.
        """
        raise NotImplementedError

    def _nothing_left(self) -> bool:
        """Return whether no other trial remains to be started, given that none is running."""
        raise NotImplementedError

    def _config(self, trial: Trial) -> dict[str, Any]:  # noqa: ARG002
        """Return the config entries of a trial that the stopping rules use."""
        return {"limit_epochs": None, "stoppable": False}

    def _budget_epochs(self, trial: Trial) -> float | None:  # noqa: ARG002
        """Return the maximum number of epochs for a trial; None means the study's budget per trial."""
        return None

    def _ended(self, trial: Trial) -> None:
        """Learn from a trial that has just ended."""

    @property
    def trials(self) -> list[Trial]:
        """All trials, ordered by number."""
        return list(self._trials.values())

    @property
    def finished_trials(self) -> list[Trial]:
        """The trials that have ended, ordered by number."""
        return [trial for trial in self._trials.values() if trial.state.finished]

    def points(self, trial: Trial) -> list[ConvergencePoint]:
        """Return the stored convergence points of a trial."""
        return self._retry(lambda: self._store.points(trial.id))

    def check(self) -> None:
        """Raise :class:`TuningError` if all of the first trials failed, not counting pruned ones."""
        ended = [trial for trial in self.finished_trials if trial.state is not TrialState.PRUNED]
        if len(ended) >= GIVE_UP_AFTER and all(trial.state is TrialState.FAILED for trial in ended):
            raise TuningError(
                f"the first {len(ended)} trials all failed, so the {self.purpose} stops; trial "
                f"{ended[0].number}: {ended[0].reason}\n{failed_trials_advice(self._study.name)}"
            )

    @property
    def interrupted(self) -> bool:
        """Whether the trials must end now, leaving those in flight to another run."""
        self._interrupted = self._interrupted or self._stop()
        return self._interrupted or bool(self.spent) or self.failure is not None

    @property
    def ending(self) -> TrainingsEnding:
        """How the trials ended; raises the error that ended them, if there was one."""
        if self.failure is not None:
            raise self.failure
        if self.complete:
            return TrainingsEnding.COMPLETE
        return TrainingsEnding.SPENT if self.spent else TrainingsEnding.STOPPED

    @property
    def running(self) -> bool:
        """Whether a trial is in flight."""
        return any(trial.state is TrialState.RUNNING for trial in self._trials.values())

    @property
    def complete(self) -> bool:
        """Whether every planned training has ended."""
        return all(trial.state.finished for trial in self._trials.values()) and self._nothing_left()

    def next_config(self, tune_id: str) -> dict[str, Any] | SweepDone | None:
        """Return the next job for an actor; None while the choice depends on running trials."""
        if self.interrupted:
            return SweepDone()
        try:
            self.check()
            trial = self._in_flight.pop(0) if self._in_flight else self._next_trial()
            if trial is None or isinstance(trial, SweepDone):
                return trial
            if trial.state is not TrialState.RUNNING:
                self._start(trial)
            job = self._job(trial)
        except (HpoError, StoreError) as error:
            self.failure = error
            return SweepDone()
        except TrainerError as error:
            self.failure = TuningError(f"a trial's settings cannot be trained: {error}")
            return SweepDone()
        self._trials[trial.id] = dataclasses.replace(trial, state=TrialState.RUNNING)
        self._ids[tune_id] = trial.id
        return {
            "job": job,
            "checkpoint_seconds": CHECKPOINT_SECONDS,
            "checkpoint": str(self._checkpoints / f"{trial.number}.pt"),
            "folder": str(self._folder(trial)),
            "resources": self.resources,
            **self._config(trial),
        }

    def result(self, tune_id: str, result: Mapping[str, Any]) -> None:
        """Record one intermediate or final result of a trial."""
        trial_id, written = self._ids[tune_id], False
        if self.failure is not None:
            return
        try:
            for point in result.get("points", ()):
                written = self._writer.point(trial_id, point) or written
                self._points[trial_id] = point
            if written:
                self.spent = self.spent or self._budget.spent()
        except StoreError as error:
            self.failure = error
        self._show()

    def end(
        self, tune_id: str, state: TrialState, outcome: Mapping[str, Any] | None, reason: str
    ) -> None:
        """Record the end of a trial and learn from it."""
        trial_id = self._ids[tune_id]
        if self.failure is not None:
            return
        try:
            trial = self.as_counted(
                self._writer.finish(self._trials[trial_id], state, outcome, reason)
            )
            self.spent = self.spent or self._budget.spent()
        except StoreError as error:
            self.failure = error
            return
        self._trials[trial_id] = trial
        self._points.pop(trial_id, None)
        self._ended(trial)
        (self._checkpoints / f"{trial.number}.pt").unlink(missing_ok=True)
        files = ProgramFiles(self._folder(trial))
        shutil.rmtree(files.checkpoint, ignore_errors=True)
        if state is TrialState.FAILED:  # a retry starts from scratch
            files.set_report_aside()
        self._show()

    def again(self, tune_id: str) -> bool:
        """Restart a trial before any others; return False if it was restarted :data:`MOST_AGAIN` times already."""
        trial_id = self._ids[tune_id]
        self._again[trial_id] += 1
        if self._again[trial_id] > MOST_AGAIN:
            return False
        self._in_flight.append(self._trials[trial_id])
        return True

    def close(self) -> None:
        """Write the buffered results; trials in flight stay in the queue for the next run."""
        if self.failure is not None:
            return
        try:
            self._writer.flush()
            self._retry(lambda: self._store.requeue_running(self._study.id))
        except StoreError as error:
            self.failure = error

    def _folder(self, trial: Trial) -> Path:
        """Return the folder for a program's files, next to the checkpoints of other trials."""
        return trial_folder(self._checkpoints.parents[1], self._study.id, trial.number)

    def _stored(self) -> list[Trial]:
        found = self._retry(lambda: self._store.trials(self._study.id, purpose=self.purpose))
        return [self.as_counted(trial) for trial in found]

    def as_counted(self, trial: Trial) -> Trial:
        """Return the trial as the search counts it: see :func:`hpo.extrapolation.evidence.stored.trial_as_counted`."""
        return trial_as_counted(trial, self._spec.question)

    def _add(self, new: NewTrial) -> Trial:
        def added() -> Trial | None:
            queued = self._store.trials(self._study.id, [TrialState.QUEUED], self.purpose)
            return next((trial for trial in queued if trial.id not in self._trials), None)

        trial = self._retry(lambda: self._store.add_trials(self._study.id, [new])[0], added)
        self._trials[trial.id] = trial
        self._make_room(trial)
        return trial

    def _make_room(self, trial: Trial) -> None:
        """Remove old files from a new trial's paths, left by a deleted study whose number was reused for this study."""
        shutil.rmtree(self._folder(trial), ignore_errors=True)
        (self._checkpoints / f"{trial.number}.pt").unlink(missing_ok=True)

    def _start(self, trial: Trial) -> None:
        def start() -> bool:
            self._store.start_trials([trial.id])
            return True

        def started() -> bool | None:
            return (
                self._store.trial(self._study.id, trial.number).state is TrialState.RUNNING or None
            )

        self._retry(start, started)

    def _job(self, trial: Trial) -> dict[str, Any]:
        settings = TrainingSettings.from_record(trial.settings)
        return training_job(
            self._spec, settings, trial.global_batch_size, trial.seed, self._budget_epochs(trial)
        ).to_dict()

    def _show(self) -> None:
        """Call the observer; if it raises an interrupt, ask Tune to stop, because Tune does not clean up after an
        exception.
        """
        try:
            self._progress(list(self._trials.values()), self._points)
        except KeyboardInterrupt:
            self._interrupted = True
