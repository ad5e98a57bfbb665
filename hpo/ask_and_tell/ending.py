"""Infers how a trial ended from its points, for runs that report only their evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from trainers.report import TrainingOutcome


class EvaluatedPoint(Protocol):
    """The fields of a convergence point that are used here."""

    @property
    def step(self) -> int:
        """Updates so far."""

    @property
    def epochs(self) -> float:
        """Epochs so far."""

    @property
    def seconds(self) -> float:
        """Seconds so far."""

    @property
    def metric(self) -> float:
        """The target's metric."""


class Threshold(Protocol):
    """A study's target."""

    @property
    def higher_is_better(self) -> bool:
        """Whether the metric rises to the threshold."""

    @property
    def ends(self) -> bool:
        """Whether reaching the target ends a training run."""

    def reached(self, value: float) -> bool:
        """Return whether the value of the metric has reached the threshold."""


def outcome_of(points: Sequence[EvaluatedPoint], target: Threshold) -> TrainingOutcome | None:
    """Return the outcome of a training run from its evaluations, in order; None if there are none.

    The outcome is ``reached`` at the first evaluation that reaches the target, ``diverged`` if an earlier metric is not
    finite, and otherwise ``censored``, because the run ended before the target.
    """
    if not points:
        return None
    last, finite = points[-1], [point.metric for point in points if math.isfinite(point.metric)]
    best = (max if target.higher_is_better else min)(finite, default=math.nan)
    state, at, reason = (
        "censored",
        None,
        f"it ended after {last.epochs:g} epochs{', before the target' if target.ends else ''}",
    )
    for point in points:
        if target.reached(point.metric):
            state, at, reason = "reached", point.epochs, ""
            break
        if not math.isfinite(point.metric):
            state, at = "diverged", None
            reason = f"the metric was {point.metric} after {point.epochs:g} epochs"
            break
    return TrainingOutcome(
        state=state,
        epochs_to_target=at,
        epochs=last.epochs,
        steps=last.step,
        seconds=last.seconds,
        best_metric=best,
        final_metric=last.metric,
        reason=reason,
    )
