"""The time of a whole training from its parts: start-up with staging, training, evaluations.

    seconds = start(N) + epochs * samples per epoch / rate(N, B) + evaluations * evaluation(N)

Start-up and one evaluation are each a + c / N: the work of every node (opening files, compiling, the slowest rank)
and the work shared by N accelerators (samples to copy or to evaluate). The rate is that of training alone, as
``hpo throughput`` forecasts it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.errors import EvidenceError
from hpo.extrapolation.inference.intervals import Interval

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class PartSeconds:
    """Seconds of one part of a training, measured on ``accelerators``."""

    accelerators: int
    seconds: float


@dataclass(frozen=True)
class PartLaw:
    """Seconds of a part as ``fixed + shared / accelerators``, both in seconds and not negative."""

    fixed: float
    shared: float

    def at(self, accelerators: int) -> float:
        """Return the seconds on ``accelerators``."""
        return self.fixed + self.shared / accelerators


def fit_part(rows: Sequence[PartSeconds]) -> PartLaw:
    """Fit by non-negative least squares of relative errors; if all rows are 0 seconds, the law is 0.

    Rows of 0 seconds among others are left out, as nothing was logged there. Raises :class:`EvidenceError` without rows
    or for seconds that are negative or not finite.
    """
    from scipy.optimize import nnls

    if not rows:
        raise EvidenceError("the seconds of a part need at least one measured row")
    for row in rows:
        if row.accelerators < 1 or not (math.isfinite(row.seconds) and row.seconds >= 0):
            raise EvidenceError(
                f"a part needs 1 accelerator or more and finite seconds of 0 or more, but got "
                f"{row.seconds!r} seconds on {row.accelerators!r} accelerators"
            )
    told = [row for row in rows if row.seconds > 0]
    if not told:
        return PartLaw(0.0, 0.0)
    seconds = np.array([row.seconds for row in told])
    terms = np.array([[1.0, 1.0 / row.accelerators] for row in told]) / seconds[:, None]
    if len({row.accelerators for row in told}) == 1:
        return PartLaw(float(np.median(seconds)), 0.0)
    (fixed, shared), _ = nnls(terms, np.ones(len(told)))
    return PartLaw(float(fixed), float(shared))


def run_seconds(
    epochs: float,
    samples_per_epoch: int,
    samples_per_second: Interval,
    *,
    start_seconds: float = 0.0,
    evaluations: float = 0.0,
    seconds_per_evaluation: float = 0.0,
) -> Interval:
    """Return the seconds of a training of ``epochs``, from its start to its last evaluation, at this training rate."""
    around = start_seconds + evaluations * seconds_per_evaluation
    samples = epochs * samples_per_epoch
    rate = samples_per_second
    return Interval(
        around + samples / rate.median, around + samples / rate.high, around + samples / rate.low
    )
