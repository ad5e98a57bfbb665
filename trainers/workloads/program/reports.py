"""Read a program's reports while they are being written, and check each report before it counts."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.errors import WorkloadError
from trainers.job import TrainingJob
from trainers.report import ConvergencePoint
from trainers.workloads.program.options import PROGRESS

STARTED = "started"
"""The key of a line that marks a start or restart of the program; the lines that follow belong to that start."""
MOST_LINE_BYTES = 1 << 20


class ReportFollower:
    """Reads the lines of a report while it is being written, each as soon as it is complete."""

    def __init__(self, path: Path) -> None:
        self._path, self.position, self._number = path, 0, 0

    def next(self) -> dict[str, Any] | None:
        """Return the next line, or None if not yet written; raises :class:`WorkloadError` if it is no JSON object."""
        line = b"\n"
        while not line.strip():
            line = self._line()
            if not line:
                return None
        return self._parsed(line)

    def _line(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self.position)
                line = file.readline(MOST_LINE_BYTES)
        except FileNotFoundError:
            return b""
        if not line.endswith(b"\n") and len(line) < MOST_LINE_BYTES:
            return b""
        self.position += len(line)
        self._number += 1
        return line

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise WorkloadError(
                f"line {self._number} of its report is not a JSON object: "
                f"{line[:80].decode('utf-8', 'replace').strip()!r}"
            )
        return values


@dataclass(frozen=True)
class ReportedPoint:
    """A valid report; ``not_finite`` names any value in it that is not finite, "" if there is none.

    ``scores`` are its metrics, and ``memory_bytes`` is the reported memory, None if not reported.
    """

    point: ConvergencePoint
    train_loss: float | None
    not_finite: str
    scores: Mapping[str, float]
    memory_bytes: int | None


@dataclass
class ReportedCurve:
    """The evaluations that one program has reported, over all its starts, in order of increasing epochs.

    ``metrics`` are all metrics that the program may report. When a restart repeats part of the training, the reports
    that it repeats are dropped.
    """

    job: TrainingJob
    train_samples: int
    reports: list[ReportedPoint]
    metrics: Collection[str] = ()
    _last: float = -1.0
    _started_at: float | None = None
    _seconds_before: float = 0.0

    @property
    def points(self) -> list[ConvergencePoint]:
        """The evaluations, in order of increasing epochs."""
        return [report.point for report in self.reports]

    def start(self, at: float) -> None:
        """Record that the program was started at ``at`` (Unix seconds), from the beginning or from a checkpoint."""
        self._last, self._started_at = -1.0, at
        self._seconds_before = _seconds_of(self.reports)

    def add(self, values: Mapping[str, Any], now: float) -> ReportedPoint | None:
        """Add the evaluation in one report; return None for a report without the target's metric, which shows only
        that the program is alive.

        Raises :class:`WorkloadError` for a value that is not a number, and for epochs that do not increase; the curve
        is then unchanged.
        """
        epochs = self._epochs(values)
        metric = self.job.target.metric
        if epochs is None or metric not in values:
            return None
        if epochs <= self._last:
            raise WorkloadError(
                f"it reported {epochs:g} epochs after {self._last:g}; the epochs of its reports must increase"
            )
        kept, seconds_before = self.reports, self._seconds_before
        if self._last < 0:  # this start repeats the later reports of an earlier start
            kept = [report for report in kept if report.point.epochs < epochs]
            seconds_before = _seconds_of(kept)
        told = {name: _number(values, name) for name in ("train_loss", "loss", metric)}
        strange = next(
            (
                f"{name} {value:g}"
                for name, value in told.items()
                if value is not None and not math.isfinite(value)
            ),
            "",
        )
        batch = _count(values, "global_batch_size") or self.job.global_batch_size
        step = _count(values, "steps") or round(
            epochs * self.train_samples / self.job.global_batch_size
        )
        point = ConvergencePoint(
            step=max(step, kept[-1].point.step + 1 if kept else 1),
            samples=round(epochs * self.train_samples),
            epochs=epochs,
            seconds=self._seconds(values, now, _seconds_of(kept), seconds_before),
            train_loss=_or_nan(told["train_loss"]),
            loss=_or_nan(told["loss"]),
            metric=_or_nan(told[metric]),
            learning_rate=_rate(values, self.job.settings.learning_rate),
            global_batch_size=batch,
            gradient_noise_scale=_number(values, "gradient_noise_scale"),
        )
        report = ReportedPoint(
            point, told["train_loss"], strange, self._scores(values), _memory(values)
        )
        self.reports, self._seconds_before, self._last = kept, seconds_before, epochs
        self.reports.append(report)
        return report

    def _scores(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics in a report whose values are finite numbers."""
        found = {name: _number(values, name) for name in self.metrics if name in values}
        return {
            name: value
            for name, value in found.items()
            if value is not None and math.isfinite(value)
        }

    def _epochs(self, values: Mapping[str, Any]) -> float | None:
        per_unit = {
            "epochs": 1.0,
            "samples": 1 / self.train_samples,
            "steps": self.job.global_batch_size / self.train_samples,
        }
        for name in PROGRESS:
            count = _number(values, name)
            if count is None:
                continue
            if not (math.isfinite(count) and count >= 0):
                raise WorkloadError(
                    f"it reported {count:g} {name}; they must be finite and not negative"
                )
            return count * per_unit[name]
        return None

    def _seconds(
        self, values: Mapping[str, Any], now: float, least: float, seconds_before: float
    ) -> float:
        told = _number(values, "seconds")
        if told is not None and math.isfinite(told):
            return told
        at = _number(values, "time") or now
        started = at if self._started_at is None else self._started_at
        return max(least, seconds_before + at - started)


def _seconds_of(reports: Sequence[ReportedPoint]) -> float:
    return reports[-1].point.seconds if reports else 0.0


def _number(values: Mapping[str, Any], name: str) -> float | None:
    """Return a number from a report, or from the text that a pattern matched; NaN for null; None if absent."""
    if name not in values:
        return None
    value = values[name]
    if value is None:
        return math.nan
    if not isinstance(value, bool) and isinstance(value, (int, float, str)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise WorkloadError(f"it reported {name} {value!r}, which is not a number")


def _count(values: Mapping[str, Any], name: str) -> int | None:
    """Return a number from a report, rounded to an integer; None if absent."""
    found = _number(values, name)
    if found is None:
        return None
    if not (math.isfinite(found) and found >= 0):
        raise WorkloadError(f"it reported {found:g} {name}; they must be finite and not negative")
    return round(found)


def _memory(values: Mapping[str, Any]) -> int | None:
    """Convert ``memory_gb`` to bytes; return None if it is absent or invalid."""
    told = _number(values, "memory_gb")
    return round(told * 1e9) if told is not None and 0 <= told < 1e9 else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _rate(values: Mapping[str, Any], planned: float) -> float:
    told = _number(values, "learning_rate")
    return told if told is not None and math.isfinite(told) else planned
