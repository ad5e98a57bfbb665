"""Studies in the experiment trackers that people have already: TensorBoard and MLflow, once or while they run.

The database is read and never waited for: what trains a study, here or anywhere, knows nothing of a tracker, and a
tracker that is away costs no trial. Each trial is a run with its settings, its curves by optimizer step, and how it
ended. What was written before is completed and never written twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hpo.study.spec import StudySpec
from storage.figures import TRIAL_FIELDS
from storage.records import ConvergencePoint, Study, StudyState, Trial, TrialState
from storage.store import Store

POLL_SECONDS = 2.0
"""Seconds between two looks for what is new."""

_OPEN = (StudyState.QUEUED, StudyState.RUNNING)


class Tracker(Protocol):
    """Where the trials of one study are written; one thread calls it."""

    def begin(self, trial: Trial) -> int:
        """A trial that is trained; returns the step up to which its curve was written before, 0 for none."""

    def add(self, trial: Trial, points: Sequence[ConvergencePoint]) -> None:
        """Further points of its curve, by step."""

    def end(self, trial: Trial) -> None:
        """How it ended; called once."""

    def close(self) -> None:
        """Give everything back."""


def track(
    store: Store,
    study: Study,
    tracker: Tracker,
    *,
    follow: bool = False,
    stopped: Callable[[float], bool] = lambda seconds: False,  # noqa: ARG005
) -> int:
    """Write the trials of a study; returns how many have ended.

    With ``follow`` it goes on until the study rests, or ``stopped``, which waits for so many seconds, says so.
    """
    written: dict[int, int] = {}
    ended: set[int] = set()
    while True:
        # read before the trials: what ended with the study is there then
        at_rest = store.study_by_id(study.id).state not in _OPEN
        for trial in store.trials(study.id):
            if trial.id in ended or trial.state is TrialState.QUEUED:
                continue
            if trial.id not in written:
                written[trial.id] = tracker.begin(trial)
            new = [point for point in store.points(trial.id) if point.step > written[trial.id]]
            if new:
                tracker.add(trial, new)
                written[trial.id] = new[-1].step
            if trial.state.finished:
                tracker.end(trial)
                ended.add(trial.id)
        if at_rest or not follow or stopped(POLL_SECONDS):
            return len(ended)


def parameters(study: Study, spec: StudySpec, trial: Trial) -> dict[str, Any]:
    """The settings of a trial that its study names, tuned and fixed, with its batch, seed and purpose."""
    names = [*spec.search.to_optuna(), *spec.search.fixed]
    return {
        "study": study.name,
        "workload": study.workload,
        "global_batch_size": trial.global_batch_size,
        "seed": trial.seed,
        "purpose": trial.purpose,
        **{name: trial.settings[name] for name in names if name in trial.settings},
    }


def curve_values(study: Study, point: ConvergencePoint) -> dict[str, float]:
    """What was measured at a point, by name: the target's metric by its own."""
    measured = {
        "epochs": point.epochs,
        "samples": float(point.samples),
        "loss": point.loss,
        study.metric: point.metric,
        "train_loss": point.train_loss,
        "learning_rate": point.learning_rate,
        "gradient_noise_scale": point.gradient_noise_scale,
    }
    return {
        name: float(value)
        for name, value in measured.items()
        if value is not None and not math.isnan(value)
    }


def results(trial: Trial) -> dict[str, float]:
    """The numbers with which a trial ended."""
    found = {each.name: getattr(trial, each.name) for each in TRIAL_FIELDS}
    return {
        name: float(value)
        for name, value in found.items()
        if value is not None and math.isfinite(value)
    }
