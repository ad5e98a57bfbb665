"""The protocol: every prefix of at least three rungs of a series predicts every larger rung.

A rung is a batch size; if a series has several configurations of one batch size, either all of them are seen or each
is predicted. Each series counts once: scores are medians over its cases, then medians over series, by how far the
predicted rung lies beyond the largest rung seen.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.extrapolation.learn import Series, group, read_reference_points
from benchmarks.extrapolation.reference_points import fact
from benchmarks.extrapolation.runs import CoarseRow, read_runs
from hpo.extrapolation.evidence.evidence import AggregateRow

LEAST_RUNGS = 3
DISTANCES = ((1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, np.inf))
DISTANCE_NAMES = ("up to 2x", "2x to 4x", "4x to 8x", "beyond 8x")

# (name of the series, rows seen, batches to predict) -> rows of (median, low, high)
Forecaster: TypeAlias = Callable[
    [str, Sequence[AggregateRow], Sequence[int]], Sequence[tuple[float, float, float]]
]


@dataclass(frozen=True)
class Case:
    """One prediction; ``distance`` is the ratio of the predicted rung to the largest rung seen.

    The target was reached somewhere in (observed - resolution, observed].
    """

    series: str
    rungs_seen: int
    distance: float
    observed: float
    median: float
    low: float
    high: float
    resolution: float = 0.0

    @property
    def error(self) -> float:
        """Absolute error relative to the observed epochs."""
        return abs(self.median / self.observed - 1)

    @property
    def covered(self) -> bool:
        """Whether the interval contains the observed epochs."""
        return self.low <= self.observed <= self.high

    @property
    def met(self) -> bool:
        """Whether the interval contains a number of epochs at which the target may have been reached."""
        return self.low <= self.observed and self.observed - self.resolution <= self.high


@dataclass(frozen=True)
class Score:
    """The score of one forecaster; the tuples are indexed by distance, NaN if no series reaches it.

    ``coverage`` is over all cases, ``coverage_by_series`` counts each series once, ``met_at`` allows for the
    resolution of the evaluations; ``count`` is the number of cases.
    """

    error: tuple[float, ...]
    series: tuple[int, ...]
    count: tuple[int, ...]
    worst_tenth: tuple[float, ...]
    coverage_at: tuple[float, ...]
    met_at: tuple[float, ...]
    width_at: tuple[float, ...]
    coverage: float
    coverage_by_series: float

    @property
    def width(self) -> float:
        """The ratio of high to low for rungs two to four times the largest one seen."""
        return self.width_at[1]


def load(path: Path | None, runs_of: str = "team") -> list[Series]:
    """Load series from the table of facts, a table in its format, or one of MLPerf's files, according to the header.

    ``runs_of`` says how rows of runs.csv form series: a key of ``runs.GROUPS``.
    """
    if path is None:
        return read_reference_points()
    with path.open(encoding="utf-8", newline="") as file:
        header = next(csv.reader(file))
    if "series" in header:
        return read_reference_points(path)
    if "run_id" in header:
        return read_runs(path, runs_of)
    with path.open(encoding="utf-8", newline="") as file:
        return group(
            [
                {name: str(value) for name, value in fact(row).items()}
                for row in csv.DictReader(file)
            ]
        )


def cases(series: Series, forecaster: Forecaster, least_rungs: int = LEAST_RUNGS) -> Iterator[Case]:
    """Yield all predictions of one series."""
    rows = sorted(series.rows, key=lambda row: row.global_batch_size)
    batches = sorted({row.global_batch_size for row in rows})
    for seen in range(least_rungs, len(batches)):
        top = batches[seen - 1]
        known = [row for row in rows if row.global_batch_size <= top]
        for batch, prediction in zip(
            batches[seen:], forecaster(series.name, known, batches[seen:]), strict=True
        ):
            for row in rows:
                if row.global_batch_size == batch:
                    resolution = row.resolution_epochs if isinstance(row, CoarseRow) else 0.0
                    yield Case(
                        series.name,
                        seen,
                        batch / top,
                        row.epochs_to_target,
                        *prediction,
                        resolution,
                    )


def score(found: Sequence[Case]) -> Score:
    """Return the score of one forecaster over its cases."""
    binned = [[case for case in found if low < case.distance <= high] for low, high in DISTANCES]
    grouped = [_by_series(group) for group in binned]
    errors = [[case.error for case in group] for group in binned]
    return Score(
        tuple(_over_series(groups, lambda case: case.error) for groups in grouped),
        tuple(len(groups) for groups in grouped),
        tuple(len(group) for group in binned),
        tuple(float(np.quantile(group, 0.9)) if group else np.nan for group in errors),
        tuple(_share(case.covered for case in group) for group in binned),
        tuple(_share(case.met for case in group) for group in binned),
        tuple(_over_series(groups, lambda case: case.high / case.low) for groups in grouped),
        _share(case.covered for case in found),
        _share(_share(case.covered for case in group) for group in _by_series(found).values()),
    )


def _by_series(found: Sequence[Case]) -> Mapping[str, list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in found:
        groups.setdefault(case.series, []).append(case)
    return groups


def _over_series(groups: Mapping[str, Sequence[Case]], measure: Callable[[Case], float]) -> float:
    medians = [np.median([measure(case) for case in group]) for group in groups.values()]
    return float(np.median(medians)) if medians else float("nan")


def _share(held: Iterable[float]) -> float:
    values = list(held)
    return float(np.mean(values)) if values else float("nan")
