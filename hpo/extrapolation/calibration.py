"""What became of earlier forecasts: it widens or narrows the next interval, and counts for its trust.

The error of a past forecast, in standard deviations of its own interval, should have a mean square of one. What it was,
together with a start belief that counts as ``START_COUNTS`` forecasts, scales the spread of the next forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

START_COUNTS = 6.0
NARROWEST, WIDEST = 0.8, 3.0
OUTLIER = 4.0  # standard deviations: one forecast that failed altogether says no more
MISSED = 2.5  # what a run that never reached its target counts as
HALF_WIDTH = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class PastForecast:
    """A forecast's interval of epochs beside what was observed.

    ``observed`` is None where the runs did not reach the target; ``inside`` says whether they bore it out, None where
    that is not known.
    """

    median: float
    low: float
    high: float
    observed: float | None
    inside: bool | None

    @property
    def error(self) -> float | None:
        """The observed error in standard deviations of the interval; None where nothing is known."""
        if self.observed is None:
            return MISSED if self.inside is False else None
        side = self.high if self.observed > self.median else self.low
        spread = max(abs(float(np.log(side / self.median))), 1e-3) / HALF_WIDTH
        return min(abs(float(np.log(self.observed / self.median))) / spread, OUTLIER)


@dataclass(frozen=True)
class Calibration:
    """How forecasts did so far: ``held`` of ``count`` intervals, and the ``scale`` for the next one's spread."""

    count: int = 0
    held: int = 0
    scale: float = 1.0

    @property
    def doubt(self) -> str | None:
        """What it says against a forecast; None where it says nothing."""
        if self.count >= 3 and self.held < 0.7 * self.count:
            return f"only {self.held} of {self.count} earlier forecasts held"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"forecasts": self.count, "held": self.held, "scale": self.scale}


def calibrate(past: Sequence[PastForecast]) -> Calibration:
    """The calibration of past forecasts; those of which nothing is known do not count."""
    known = [(one, one.error) for one in past if one.error is not None]
    squares = START_COUNTS + sum((error or 0.0) ** 2 for _, error in known)
    scale = (
        float(np.clip(np.sqrt(squares / (START_COUNTS + len(known))), NARROWEST, WIDEST))
        if known
        else 1.0
    )
    return Calibration(len(known), sum(bool(one.inside) for one, _ in known), scale)
