"""The protocol: every prefix of at least three rungs of a series predicts every larger rung.

Each series counts once: the median over its cases, then the median over series, by how far the predicted rung is
beyond the largest rung seen.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from hpo.extrapolation.evidence import Aggregate
from hpo.extrapolation.learn import Series, read_reference_points

LEAST_RUNGS = 3
DISTANCES = ((1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, np.inf))
DISTANCE_NAMES = ("up to 2x", "2x to 4x", "4x to 8x", "beyond 8x")

# (name of the series, rows seen, batches to predict) -> rows of (median, low, high)
Forecaster: TypeAlias = Callable[[str, Sequence[Aggregate], Sequence[int]], Sequence[tuple[float, float, float]]]


@dataclass(frozen=True)
class Case:
    """One prediction: the distance is in times the largest rung seen."""

    series: str
    rungs_seen: int
    distance: float
    observed: float
    median: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Absolute error relative to the observed epochs."""
        return abs(self.median / self.observed - 1)

    @property
    def covered(self) -> bool:
        """Whether the interval holds the observed epochs."""
        return self.low <= self.observed <= self.high


@dataclass(frozen=True)
class Score:
    """The score of one forecaster; the tuples run over the distances, NaN where no series reaches."""

    error: tuple[float, ...]
    series: tuple[int, ...]
    worst_tenth: tuple[float, ...]
    coverage: float
    coverage_by_series: float
    width: float


def load(path: Path | None) -> list[Series]:
    """Series from the shipped table of facts, from one of its form, or from MLPerf's reference_convergence.csv."""
    if path is None:
        return read_reference_points()
    with path.open(newline="") as file:
        header = next(csv.reader(file))
    if "series" in header:
        return read_reference_points(path)
    from benchmarks.extrapolation.reference_points import fact
    from hpo.extrapolation.learn import group
    with path.open(newline="") as file:
        return group([{name: str(value) for name, value in fact(row).items()} for row in csv.DictReader(file)])


def cases(series: Series, forecaster: Forecaster) -> Iterator[Case]:
    """All predictions of one series."""
    rows = sorted(series.rows, key=lambda row: row.global_batch_size)
    for seen in range(LEAST_RUNGS, len(rows)):
        top = rows[seen - 1].global_batch_size
        larger = [row for row in rows[seen:] if row.global_batch_size > top]
        if not larger:
            continue
        predictions = forecaster(series.name, rows[:seen], [row.global_batch_size for row in larger])
        for row, (median, low, high) in zip(larger, predictions, strict=True):
            yield Case(series.name, seen, row.global_batch_size / top, row.epochs_to_target, median, low, high)


def score(found: Sequence[Case]) -> Score:
    """The score of the cases of one forecaster."""
    binned = [_by_series([case for case in found if low < case.distance <= high]) for low, high in DISTANCES]
    coverage = [np.mean([case.covered for case in group]) for group in _by_series(found).values()]
    widths = [np.median([case.high / case.low for case in group]) for group in binned[1].values()]
    errors = [[case.error for group in groups.values() for case in group] for groups in binned]
    return Score(tuple(_median([np.median([case.error for case in group]) for group in groups.values()])
                       for groups in binned),
                 tuple(len(groups) for groups in binned),
                 tuple(float(np.quantile(group, 0.9)) if group else np.nan for group in errors),
                 float(np.mean([case.covered for case in found])), float(np.mean(coverage)), _median(widths))


def _by_series(found: Sequence[Case]) -> Mapping[str, list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in found:
        groups.setdefault(case.series, []).append(case)
    return groups


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else float("nan")
