"""How quick a training is, by its first evaluations: beside one of the same batch, long before either has arrived.

Two trainings of one workload pass the same levels of loss and metric; the quotient of the times at which they do is
what an early look says of the quotient of their epochs to target. It says it with exaggeration, and is off by what
lies ahead of it: over 2,100 trainings of seven workloads (benchmarks/search_economy) the log quotient of epochs to
target is about half of that of an early look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

LAST = 2
"""Evaluations over which the level of now is averaged: of one that has fallen back, this and not the best counts."""

SHRUNK = 0.55
"""What the log quotient is to be multiplied by."""

LARGEST = 1e3
"""Levels beyond it are cut: a loss that has exploded is no number to average."""


@dataclass(frozen=True)
class LearningCurve:
    """One training's evaluations after ``epochs``; ``signals`` are metric and loss, the higher the better.

    A signal that was not measured is left out, here or in the curve that it is compared with.
    """

    epochs: Sequence[float]
    signals: Sequence[Sequence[float] | None]

    def levels(self, signal: int) -> Array | None:
        """The values of a signal; None where it was not measured at every evaluation."""
        values = self.signals[signal]
        if values is None or len(values) != len(self.epochs):
            return None
        found = np.asarray(values, dtype=float)
        return None if np.isnan(found).any() else np.clip(found, -LARGEST, LARGEST)


@dataclass(frozen=True)
class Compared:
    """Log epochs to target over those of the reference as the curves tell it, and the epochs at which the reference
    stood where the training stands now.
    """

    log_quotient: float
    reference_epochs: float


def compare(curve: LearningCurve, reference: LearningCurve) -> Compared | None:
    """A training beside the reference; None where no signal tells."""
    quotients, stands = [], []
    for signal in range(len(curve.signals)):
        mine, theirs = curve.levels(signal), reference.levels(signal)
        if mine is None or theirs is None or not len(mine) or not len(theirs):
            continue
        last = min(LAST, len(mine))
        level, now = float(mine[-last:].mean()), float(np.mean(curve.epochs[-last:]))
        there = _first_time(reference.epochs, theirs, level)
        if there is None:  # it is further than the reference has come
            now_there = _first_time(curve.epochs, mine, float(theirs.max()))
            if now_there is None:
                continue
            now, there = now_there, float(reference.epochs[-1])
        quotients.append(math.log(now / there))
        stands.append(math.log(there))
    if not quotients:
        return None
    return Compared(float(np.mean(quotients)), math.exp(float(np.mean(stands))))


def _first_time(epochs: Sequence[float], levels: Array, level: float) -> float | None:
    """When a level was first there, between evaluations by a straight line; None where it never was."""
    risen = np.maximum.accumulate(levels)
    at = int(np.searchsorted(risen, level))
    if at >= len(risen):
        return None
    if at == 0:
        return 0.5 * float(epochs[0])
    below, above = float(risen[at - 1]), float(risen[at])
    within = (level - below) / max(above - below, 1e-12)
    return float(epochs[at - 1] + within * (epochs[at] - epochs[at - 1]))
