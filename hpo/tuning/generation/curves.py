"""Predictions from a partial learning curve: when it will reach the target, and how fast it is relative to another.

After its initial phase, a learning curve follows a power law with a floor, metric = a + b t^-c, or an exponential
approach, a + b exp(-t / tau) (Domhan, Springenberg and Hutter 2015; Viering and Loog 2021, arXiv:2103.10948). For each
shape in a grid (of c or tau), a linear fit gives a and b; shapes are weighted by how well they fit. The crossing of the
target then has a distribution: a training run is hopeless if even its 10 % quantile is beyond the limit.

Two training runs of one workload pass through the same levels of loss and metric. The ratio of the times at which they
do so is an early estimate of the ratio of their epochs to target. The estimate exaggerates the difference, and the
remainder of each run adds an error: over 2,100 training runs of seven workloads (benchmarks/search_economy), the log
ratio of epochs to target is about half of the log ratio at an early look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]

LEAST_POINTS = 6  # a curve with fewer evaluations is not fitted
POWERS = np.geomspace(0.1, 4.0, 16)
DECAYS = np.geomspace(0.1, 10.0, 12)  # tau over the epochs trained
LEAST_NOISE = 0.01  # share of the metric's span so far; assumed lower bound on the misfit
# Neighbouring evaluations have correlated errors: a curve counts as this many independent points. Chosen on 250 curves
# of random noisy quadratics: the bands from 10 to 90 % held for 95 % of them with 3 points, for 65 % with 6
WITNESSES = 3.0
PATIENCE = 0.25
LEVELS = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class PredictedCrossing:
    """Predicted epochs at which a curve reaches its target: the 10, 50 and 90 % quantiles; inf if it never does."""

    low: float
    median: float
    high: float


def predict_crossing(
    epochs: ArrayLike, metric: ArrayLike, threshold: float
) -> PredictedCrossing | None:
    """Predict when a curve will reach its target; return None if the curve is too short or flat.

    ``epochs`` (evaluations,) are positive and increasing.
    """
    t, y = np.asarray(epochs, dtype=float), np.asarray(metric, dtype=float)
    usable = np.isfinite(y) & (t > 0)
    t, y = t[usable], y[usable]
    if len(t) < LEAST_POINTS:
        return None
    kept = t >= 0.2 * t[-1]  # the start of a curve predicts little about its continuation
    t, y = t[kept] / t[-1], y[kept]
    last, span = float(np.asarray(epochs, dtype=float)[usable][-1]), float(np.ptp(y))
    if len(t) < LEAST_POINTS - 1 or span == 0:
        return None
    shapes = np.vstack([t ** -POWERS[:, None], np.exp(-t / DECAYS[:, None])])
    centred, level = shapes - shapes.mean(axis=1, keepdims=True), y - y.mean()
    slope = centred @ level / (centred**2).sum(axis=1)
    misfit = level - slope[:, None] * centred
    variance = (misfit**2).mean(axis=1) + (LEAST_NOISE * span) ** 2
    weight = np.exp(-0.5 * WITNESSES * (np.log(variance) - np.log(variance.min())))
    floor = y.mean() - slope * shapes.mean(axis=1)
    return _quantiles(_times(floor, slope, threshold) * last, weight / weight.sum())


def is_hopeless(
    epochs: Sequence[float], metric: Sequence[float], threshold: float, limit_epochs: float
) -> bool:
    """Return whether the curve so far gives a 90 % probability that the run needs more than ``limit_epochs``.

    No run is judged before it has trained for a share ``PATIENCE`` of the limit.
    """
    if not epochs or epochs[-1] < PATIENCE * limit_epochs:
        return False
    crossing = predict_crossing(epochs, metric, threshold)
    return crossing is not None and crossing.low > limit_epochs


def _times(floor: Array, slope: Array, threshold: float) -> Array:
    """Return when each shape reaches the threshold, in units of the epochs trained; inf for a floor short of the
    threshold.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = (threshold - floor) / slope
        powers, decays = share[: len(POWERS)], share[len(POWERS) :]
        times = np.concatenate([powers ** (-1 / POWERS), -DECAYS * np.log(decays)])
    return np.where(np.isfinite(times) & (share > 0), np.maximum(times, 1.0), np.inf)


def _quantiles(times: Array, weight: Array) -> PredictedCrossing:
    order = np.argsort(times)
    below = np.cumsum(weight[order])
    return PredictedCrossing(
        *(
            float(times[order][min(int(np.searchsorted(below, level)), len(times) - 1)])
            for level in LEVELS
        )
    )


LAST = 2
"""Number of evaluations over which the current level is averaged; the average replaces the best level, because a curve
may get worse again.
"""

SHRUNK = 0.55
"""Factor that shrinks the log ratio from an early look."""

LARGEST = 1e3
"""Bound to which levels are clipped, as an exploded loss cannot be averaged."""


@dataclass(frozen=True)
class LearningCurve:
    """The evaluations of one training run after ``epochs``; ``signals`` are metric and loss, signed so that higher is
    better.

    A signal is ignored if it was not measured in this curve or in the curve it is compared with.
    """

    epochs: Sequence[float]
    signals: Sequence[Sequence[float] | None]

    def levels(self, signal: int) -> Array | None:
        """Return the values of a signal; None unless every evaluation measured it."""
        values = self.signals[signal]
        if values is None or len(values) != len(self.epochs):
            return None
        found = np.asarray(values, dtype=float)
        return None if np.isnan(found).any() else np.clip(found, -LARGEST, LARGEST)


@dataclass(frozen=True)
class CurveComparison:
    """Comparison of a run's curve with a reference curve: the estimated log ratio of their epochs to target, and the
    epochs at which the reference had the run's current level.
    """

    log_quotient: float
    reference_epochs: float


def compare_curves(curve: LearningCurve, reference: LearningCurve) -> CurveComparison | None:
    """Compare a training run with the reference; return None if they share no usable signal."""
    quotients, stands = [], []
    for signal in range(len(curve.signals)):
        mine, theirs = curve.levels(signal), reference.levels(signal)
        if mine is None or theirs is None or not len(mine) or not len(theirs):
            continue
        last = min(LAST, len(mine))
        level, now = float(mine[-last:].mean()), float(np.mean(curve.epochs[-last:]))
        there = _first_time(reference.epochs, theirs, level)
        if there is None:  # this run is already beyond the reference
            now_there = _first_time(curve.epochs, mine, float(theirs.max()))
            if now_there is None:
                continue
            now, there = now_there, float(reference.epochs[-1])
        quotients.append(math.log(now / there))
        stands.append(math.log(there))
    if not quotients:
        return None
    return CurveComparison(float(np.mean(quotients)), math.exp(float(np.mean(stands))))


def _first_time(epochs: Sequence[float], levels: Array, level: float) -> float | None:
    """Return when a level was first reached, interpolated linearly between evaluations; None if it never was."""
    risen = np.maximum.accumulate(levels)
    at = int(np.searchsorted(risen, level))
    if at >= len(risen):
        return None
    if at == 0:
        return 0.5 * float(epochs[0])
    below, above = float(risen[at - 1]), float(risen[at])
    within = (level - below) / max(above - below, 1e-12)
    return float(epochs[at - 1] + within * (epochs[at] - epochs[at - 1]))
