"""Intervals: an uncertain quantity as its median and the ends of its 90 % interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEVELS = (0.5, 0.05, 0.95)


@dataclass(frozen=True)
class Interval:
    """A median (or recommendation) and the ends of its 90 % interval."""

    median: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """Return the interval as plain values."""
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class BestMetric:
    """How good runs get within a fixed number of ``epochs``: the predictive interval of the target's ``metric``."""

    metric: str
    epochs: float
    interval: Interval

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BestMetric:
        """Return the metric from the values of :meth:`to_dict`."""
        ends = Interval(*(values[end] for end in ("median", "low", "high")))
        return cls(values["metric"], values["within"]["epochs"], ends)

    def to_dict(self) -> dict[str, Any]:
        """Return the metric as a plain dictionary."""
        return {
            "metric": self.metric,
            "within": {"epochs": self.epochs},
            **self.interval.to_dict(),
        }
