"""When would a paused training reach its target? Read off the trainings that did.

Trainings of one workload pass the same levels of the metric at about the same shares of their way: one that has come to
a level in t epochs, where those that reached the target had gone the share s of theirs, needs about t / s. How far that
is off is what those trainings say of each other, and more where little of the way is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import Foretold

Array: TypeAlias = NDArray[np.float64]

# standard deviation of the log epochs foretold from the share s of the way: AT_END + BEFORE (1 - s)
AT_END, BEFORE = 0.08, 0.7
LEAST_SHARE = 0.05  # from less of the way nothing is told
SHARES = np.linspace(0.02, 1.0, 50)


class ReferenceCurve:
    """The level of the metric by the share of the way, of one training that reached its target: increasing."""

    def __init__(self, epochs: Sequence[float], score: Sequence[float], needed: float) -> None:
        self._shares = np.concatenate([[0.0], np.asarray(epochs, dtype=float) / needed])
        risen = np.maximum.accumulate(np.asarray(score, dtype=float))
        self._levels = np.concatenate([[min(float(risen[0]), 0.0) if len(risen) else 0.0], risen])

    def share(self, level: float) -> float:
        """The share of the way at which the level was reached; 1 where it lies beyond."""
        at = int(np.searchsorted(self._levels, level))
        if at >= len(self._levels):
            return 1.0
        if at == 0:
            return 0.0
        below, above = self._levels[at - 1], self._levels[at]
        within = 0.0 if above <= below else (level - below) / (above - below)
        return float(self._shares[at - 1] + within * (self._shares[at] - self._shares[at - 1]))


def foretell(
    epochs: Sequence[float],
    score: Sequence[float],
    references: Sequence[ReferenceCurve],
    *,
    relative: bool = False,
) -> Foretold | None:
    """Epochs to the target of a training that has come to its last evaluation; None where nothing tells.

    ``score`` is the metric, the higher the better; ``references`` are trainings that reached the target, or the best
    one of those that have not, which makes what is foretold ``relative``.
    """
    if not epochs or not references:
        return None
    risen = np.maximum.accumulate(np.asarray(score, dtype=float))
    level = float(risen[-1])
    if not np.isfinite(level):
        return None
    # the moment at which that level was first there: a curve that has gone flat since says less of the rest
    shares = np.array([reference.share(level) for reference in references])
    shares = np.clip(shares, 0.0, 1.0)
    usable = shares >= LEAST_SHARE
    if not usable.any():
        return None
    told = np.log(epochs[-1]) - np.log(shares[usable])
    share = float(np.exp(np.mean(np.log(shares[usable]))))
    spread = float(np.std(told)) if len(told) > 1 else 0.0
    sd = float(np.hypot(AT_END + BEFORE * (1 - share), spread))
    return Foretold(float(np.exp(np.mean(told))), sd, share, relative)


def doubt(share: Array) -> Array:
    """Standard deviation of the log epochs that are foretold from a share of the way."""
    return np.asarray(AT_END + BEFORE * (1 - np.clip(share, 0.0, 1.0)))
