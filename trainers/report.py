"""Reports of a training run, during the run and at its end: convergence points and the outcome, as JSON lines."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from trainers.json_text import json_text
from trainers.private_files import open_private, write_private_text

SAMPLE_IMAGES_KEYS = ("sample_images", "exhibit")
"""The keys of the line with sample images: the current key, and the key in earlier releases."""

OTHERS = frozenset({"started", "outcome", *SAMPLE_IMAGES_KEYS})
"""The keys of the lines that are not convergence points."""


@dataclass(frozen=True)
class ConvergencePoint:
    """One evaluation of a training run.

    ``train_loss`` is the mean over the updates since the last evaluation; ``loss`` and ``metric`` are means over the
    evaluation samples; ``learning_rate`` is the rate of the last update. ``seconds`` counts training and evaluation
    since the first start, including time before a resume, but not startup.
    """

    step: int
    samples: int
    epochs: float
    seconds: float
    train_loss: float
    loss: float
    metric: float
    learning_rate: float
    global_batch_size: int
    gradient_noise_scale: float | None = None

    def to_json(self) -> str:
        """Return one line of JSON; a value that is not finite becomes null."""
        return json_text(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> ConvergencePoint:
        """Return the point in a line written by :meth:`to_json`; infinite values become NaN."""
        return cls._from_dict(json.loads(line))

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> ConvergencePoint:
        unknown = {
            name: math.nan
            for name, value in values.items()
            if value is None and name != "gradient_noise_scale"
        }
        return cls(**{**values, **unknown})


BUDGET_TOLERANCE = 1.01
"""Relative tolerance of a fixed budget of epochs: one update more or less still counts as the same budget."""


class CountedPoint(Protocol):
    """The fields of a convergence point that say how far a training run got."""

    @property
    def samples(self) -> int:
        """Training samples so far."""

    @property
    def epochs(self) -> float:
        """Epochs so far."""

    @property
    def global_batch_size(self) -> int:
        """Samples per update."""


def is_within_budget(point: CountedPoint, epochs: float) -> bool:
    """Return whether an evaluation counts for the best metric within a budget of ``epochs``: up to 1 % beyond it, or
    with the update that ends the budget.
    """
    if point.epochs <= BUDGET_TOLERANCE * epochs:
        return True
    last_update = point.epochs * point.global_batch_size / point.samples if point.samples else 0.0
    return point.epochs - last_update < epochs * (1 - 1e-9)


@dataclass(frozen=True)
class TrainingOutcome:
    """How a training run ended: it ``reached`` the target, was ``censored`` by its budget, or ``diverged``.

    ``epochs_to_target`` is known only if the target was reached; ``epochs`` and ``steps`` are the totals trained.
    ``memory_bytes`` is the most memory that the first worker held at an evaluation: memory of its accelerator, or of
    the process if it has none. ``micro_batch_size`` is the largest size found to fit in memory; both are None if
    unknown. ``measures`` holds every metric other than the target's, at the last evaluation.
    """

    state: str
    epochs_to_target: float | None
    epochs: float
    steps: int
    seconds: float
    best_metric: float
    final_metric: float
    reason: str
    memory_bytes: int | None = None
    micro_batch_size: int | None = None
    measures: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by name, without values that were not measured."""
        plain = dataclasses.asdict(self)
        further = ("memory_bytes", "micro_batch_size", "measures")
        return {name: value for name, value in plain.items() if value or name not in further}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingOutcome:
        """Create the outcome from plain values; null metrics become NaN."""
        unknown = {
            name: math.nan for name in ("best_metric", "final_metric") if values[name] is None
        }
        return cls(**{**values, **unknown})


@dataclass(frozen=True)
class TrainingStart:
    """One start of a restartable training run: its first step, its number of workers and nodes, and its time (UTC).

    ``job`` is the digest of its job (:meth:`trainers.job.TrainingJob.digest`), "" in reports of earlier releases;
    ``seed`` is its seed, None in those reports.
    """

    step: int
    workers: int
    nodes: int
    job: str = ""
    seed: int | None = None
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


class ReportFile:
    """A JSON-lines file with one object per convergence point, and ``{"outcome": {...}}`` at the end.

    A workload with sample images adds ``{"sample_images": {...}}`` after the outcome
    (:mod:`trainers.loop.sample_images`). A run with a checkpoint adds ``{"started": {...}}`` at each start.

    Every line is flushed as it is written, so that a reader can follow the file and a crash loses no line.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def start(self, last_step: int = 0, start: TrainingStart | None = None) -> None:
        """Start the file again, keeping the points up to ``last_step``, which belong to the run that is resumed.

        If ``start`` is given, it is added, and earlier starts are kept too, unless the run had ended.
        """
        before = _read(self.path) if self.path.exists() else []
        ended = any("outcome" in values for values in before)
        kept = [
            values
            for values in before
            if _is_kept(values, last_step, starts=not ended or last_step > 0)
        ]
        temporary = self.path.with_name(self.path.name + ".new")
        write_private_text(temporary, "".join(json_text(values) + "\n" for values in kept))
        temporary.replace(self.path)
        if start is not None:
            self._append(json_text({"started": dataclasses.asdict(start)}))

    def point(self, point: ConvergencePoint) -> None:
        """Append one convergence point."""
        self._append(point.to_json())

    def outcome(self, outcome: TrainingOutcome) -> None:
        """Append the outcome."""
        self._append(json_text({"outcome": outcome.to_dict()}))

    def sample_images(self, images: Mapping[str, Any]) -> None:
        """Append sample images of the trained model."""
        self._append(json_text({"sample_images": dict(images)}))

    def _append(self, line: str) -> None:
        with open(self.path, "a", encoding="utf-8", opener=open_private) as file:
            file.write(line + "\n")


def read_points(path: Path | str) -> list[ConvergencePoint]:
    """Return the convergence points of a report, in order; a last line cut short by a crash is skipped."""
    return [
        ConvergencePoint._from_dict(values) for values in _read(path) if not OTHERS & values.keys()
    ]


def read_outcome(path: Path | str) -> TrainingOutcome | None:
    """Return the outcome of a report, or None if the run has not ended."""
    outcomes = [values["outcome"] for values in _read(path) if "outcome" in values]
    return TrainingOutcome.from_dict(outcomes[-1]) if outcomes else None


def read_sample_images(path: Path | str) -> dict[str, Any] | None:
    """Return the sample images in a report, or None if its workload has none."""
    written = [values[key] for values in _read(path) for key in SAMPLE_IMAGES_KEYS if key in values]
    return dict(written[-1]) if written else None


def read_starts(path: Path | str) -> list[TrainingStart]:
    """Return the starts of a restartable training run, in order; a run that was never interrupted has one."""
    return [TrainingStart(**values["started"]) for values in _read(path) if "started" in values]


def is_point(line: bytes) -> bool:
    """Return whether a line of a report is a convergence point."""
    return not any(line.startswith(f'{{"{name}"'.encode()) for name in OTHERS)


def _read(path: Path | str) -> list[dict[str, Any]]:
    complete, _, _ = Path(path).read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in complete.splitlines() if line]


def _is_kept(values: Mapping[str, Any], last_step: int, *, starts: bool) -> bool:
    if "started" in values:
        return starts
    return not OTHERS & values.keys() and values["step"] <= last_step
