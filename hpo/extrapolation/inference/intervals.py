"""Interval: a figure that is not known exactly, as its median and the ends of its 90 % interval."""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = (0.5, 0.05, 0.95)


@dataclass(frozen=True)
class Interval:
    """A median (or recommendation) and the ends of its 90 % interval."""

    median: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """The interval as plain values."""
        return {"median": self.median, "low": self.low, "high": self.high}
