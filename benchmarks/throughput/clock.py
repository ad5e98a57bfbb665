"""The time of whole trainings, predicted from the smaller scales of a family, against the logs' run time."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.throughput.families import (
    FAMILY,
    LEAST_SCALES,
    NEEDED,
    Case,
    cases,
    read_series,
    scales,
    unseen,
)
from benchmarks.throughput.forecasters import Forecaster
from benchmarks.throughput.learn import ThroughputSeries
from benchmarks.throughput.parts import PartSeconds, fit_part, run_seconds
from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.throughput import Measurement

CLOCKED = (*NEEDED, "run_seconds", "last_epoch", "train_samples")


@dataclass
class Runs:
    """The logged values of one number of accelerators and one batch of a family, one value per run."""

    seconds: list[float] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    start_seconds: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    seconds_per_evaluation: list[float] = field(default_factory=list)
    samples_per_epoch: int = 0


@dataclass(frozen=True)
class ClockResult:
    """The run time of one case: predicted with known epochs, with those of the largest scale seen, and measured."""

    case: Case
    predicted: Interval
    epochs_carried_over: float
    training_alone: float
    measured: float


def print_clock(path: Path, way: Forecaster, *, only_unseen: bool) -> None:
    """Print a table of the median error of the run time and how often the interval holds."""
    clocked = read_clock(path)
    results = [
        one
        for series in read_series(path)
        if len(scales(series)) >= LEAST_SCALES
        if unseen(series) or not only_unseen
        for one in _results(series, clocked, way)
    ]
    if not results:
        return
    print(
        f"\nrun time: {len({one.case.series.name for one in results})} families, {len(results)} cases\n\n"
        "| | median error | of families | coverage |\n|---|---|---|---|"
    )
    for name, predicted in (
        ("sum of the parts", [one.predicted.median for one in results]),
        ("training alone", [one.training_alone for one in results]),
        ("with the epochs of the largest scale seen", [one.epochs_carried_over for one in results]),
    ):
        errors = [
            abs(each / one.measured - 1.0) for each, one in zip(predicted, results, strict=True)
        ]
        held = f"{np.mean([one.predicted.low <= one.measured <= one.predicted.high for one in results]):.1%}"
        print(
            f"| {name} | {np.median(errors):.1%} | {_of_families(results, errors):.1%} | "
            f"{held if name == 'sum of the parts' else ''} |"
        )


def read_clock(path: Path) -> Mapping[str, Mapping[tuple[int, int], Runs]]:
    """Return, by family name, the runs with logged times of every number of accelerators and global batch size."""
    found: dict[str, dict[tuple[int, int], Runs]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if all(row[name] for name in CLOCKED) and int(row["n_accelerators"]) > 0:
                family = found.setdefault(" / ".join(row[name] for name in FAMILY if row[name]), {})
                runs = family.setdefault(
                    (int(row["n_accelerators"]), int(row["global_batch_size"])), Runs()
                )
                runs.seconds.append(float(row["run_seconds"]))
                runs.epochs.append(float(row["last_epoch"]))
                runs.start_seconds.append(
                    max(_number(row, "pre_train_seconds"), _number(row, "staging_in_run_seconds"))
                )
                runs.evaluations.append(_number(row, "n_evals"))
                runs.seconds_per_evaluation.append(
                    _number(row, "eval_seconds") / max(_number(row, "n_evals"), 1.0)
                )
                runs.samples_per_epoch = int(float(row["train_samples"]))
    return found


def _results(
    series: ThroughputSeries, clocked: Mapping[str, Mapping[tuple[int, int], Runs]], way: Forecaster
) -> Iterator[ClockResult]:
    runs = clocked.get(series.name, {})
    for case in cases(series):
        seen = [(row, runs[_key(row)]) for row in case.seen if _key(row) in runs]
        asked = runs.get(_key(case.asked))
        if asked is not None and seen:
            yield _result(case, seen, asked, way(case))


def _result(
    case: Case, seen: Sequence[tuple[Measurement, Runs]], asked: Runs, rate: Interval
) -> ClockResult:
    number = case.asked.accelerators
    start = fit_part(
        [PartSeconds(row.accelerators, median(runs.start_seconds)) for row, runs in seen]
    ).at(number)
    evaluation = fit_part(
        [PartSeconds(row.accelerators, median(runs.seconds_per_evaluation)) for row, runs in seen]
    ).at(number)
    largest = max(seen, key=lambda one: one[0].accelerators)[1]
    per_epoch = median(largest.evaluations) / median(largest.epochs)

    def seconds(epochs: float) -> Interval:
        return run_seconds(
            epochs,
            asked.samples_per_epoch,
            rate,
            start_seconds=start,
            evaluations=math.ceil(per_epoch * epochs),
            seconds_per_evaluation=evaluation,
        )

    epochs = median(asked.epochs)
    return ClockResult(
        case,
        seconds(epochs),
        seconds(median(largest.epochs)).median,
        epochs * asked.samples_per_epoch / rate.median,
        median(asked.seconds),
    )


def _of_families(results: Sequence[ClockResult], errors: Sequence[float]) -> float:
    names = {one.case.series.name for one in results}
    return float(
        np.median(
            [
                np.median(
                    [
                        error
                        for one, error in zip(results, errors, strict=True)
                        if one.case.series.name == name
                    ]
                )
                for name in names
            ]
        )
    )


def _key(row: Measurement) -> tuple[int, int]:
    return row.accelerators, row.global_batch_size


def _number(row: Mapping[str, str], name: str) -> float:
    return float(row[name]) if row[name] else 0.0
