"""Calibration on earlier forecasts: it widens or narrows the next interval and affects the verdict on trust.

The error of a past forecast, in standard deviations of its own interval, should have a mean square of one. The observed
mean square, pooled with a prior worth ``START_COUNTS`` forecasts, scales the spread of the next forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

START_COUNTS = 6.0
NARROWEST, WIDEST = 0.8, 3.0
OUTLIER = 4.0  # cap on the error of one failed forecast, in standard deviations
MISSED = 2.5  # the error, in standard deviations, of a run that never reached its target
HALF_WIDTH = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class PastForecast:
    """A forecast's interval of epochs, and the epochs that were observed.

    ``observed`` is None if the runs did not reach the target; ``inside`` says whether they confirmed the interval (None
    if unknown).
    """

    median: float
    low: float
    high: float
    observed: float | None
    inside: bool | None

    @property
    def error(self) -> float | None:
        """The observed error in standard deviations of the interval; None if nothing was observed."""
        if self.observed is None:
            return MISSED if self.inside is False else None
        side = self.high if self.observed > self.median else self.low
        spread = max(abs(float(np.log(side / self.median))), 1e-3) / HALF_WIDTH
        return min(abs(float(np.log(self.observed / self.median))) / spread, OUTLIER)


@dataclass(frozen=True)
class ForecastCalibration:
    """Past forecasts: ``held`` of ``count`` intervals were confirmed; ``scale`` multiplies the spread of new ones."""

    count: int = 0
    held: int = 0
    scale: float = 1.0

    @property
    def doubt(self) -> str | None:
        """A reason to doubt the next forecast, or None if there is none."""
        if self.count >= 3 and self.held < 0.7 * self.count:
            return f"only {self.held} of {self.count} earlier forecasts held"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as a plain dictionary."""
        return {"forecasts": self.count, "held": self.held, "scale": self.scale}


def calibrate_forecasts(past: Sequence[PastForecast]) -> ForecastCalibration:
    """Return the calibration of past forecasts; those without an observation do not count."""
    known = [(one, one.error) for one in past if one.error is not None]
    squares = START_COUNTS + sum((error or 0.0) ** 2 for _, error in known)
    scale = (
        float(np.clip(np.sqrt(squares / (START_COUNTS + len(known))), NARROWEST, WIDEST))
        if known
        else 1.0
    )
    return ForecastCalibration(len(known), sum(bool(one.inside) for one, _ in known), scale)
