"""Scores throughput forecasts on published runs.

    python -m benchmarks.throughput RUNS.csv [--cases] [--unseen] [--part rates|time]

RUNS.csv is a table of MLPerf Training and HPC result logs with the columns of families.py. Series of the shipped table
from other reports are scored too. ``--cases`` prints every case of the step model, ``--unseen`` scores only the
held-out families, on which no choice was based (families.py). The last table scores the time of whole trainings;
``--part`` prints only it, or only the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.throughput.clock import print_clock
from benchmarks.throughput.families import Case, cases, read_series, scored, unseen
from benchmarks.throughput.forecasters import forecasters
from benchmarks.throughput.learn import ThroughputSeries, read_reference_throughputs
from hpo.extrapolation.inference.intervals import Interval

OTHERS = "other reports"
HORIZONS = ((1, 2), (2, 4), (4, 8), (8, np.inf))


@dataclass(frozen=True)
class Result:
    """One case and its prediction."""

    case: Case
    predicted: Interval

    @property
    def error(self) -> float:
        """Relative error of the median."""
        return self.predicted.median / self.case.asked.samples_per_second - 1.0

    @property
    def covered(self) -> bool:
        """Whether the interval contains the measurement."""
        return self.predicted.low <= self.case.asked.samples_per_second <= self.predicted.high

    @property
    def width(self) -> float:
        """Ratio of the interval's ends."""
        return self.predicted.high / self.predicted.low


def main() -> None:
    """Print one table per group of families."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="table of MLPerf result logs")
    parser.add_argument("--cases", action="store_true", help="print every case of the step model")
    parser.add_argument(
        "--unseen", action="store_true", help="only families on which nothing was chosen"
    )
    parser.add_argument("--part", choices=["rates", "time"], help="one part of it; all if none")
    asked = parser.parse_args()
    reference = read_reference_throughputs()
    families = scored(read_series(asked.runs))
    known = {one.origin for one in families}
    others = [one for one in reference if one.origin not in known]
    if asked.unseen:
        families, others = ([one for one in group if unseen(one)] for group in (families, others))
    ways = forecasters(reference)
    groups = {} if asked.part == "time" else _groups(families, others)
    together: dict[str, list[Result]] = {name: [] for name in ways}
    for title, group in groups.items():
        results = {
            name: [Result(case, way(case)) for series in group for case in cases(series)]
            for name, way in ways.items()
        }
        _print_table(title, group, results)
        if asked.cases:
            _print_cases(results["generation left out"])
        if title != OTHERS:
            for name, each in results.items():
                together[name] += each
    if groups:
        _print_table("all MLPerf families", families, together)
    if asked.part != "rates":
        print_clock(asked.runs, ways["generation left out"], only_unseen=asked.unseen)


def _groups(
    families: Sequence[ThroughputSeries], others: Sequence[ThroughputSeries]
) -> Mapping[str, Sequence[ThroughputSeries]]:
    found: dict[str, list[ThroughputSeries]] = {}
    for one in families:
        found.setdefault(one.name.split(" / ")[0], []).append(one)
    found[OTHERS] = scored(others)
    return {name: group for name, group in found.items() if group}


def _print_table(
    title: str, group: Sequence[ThroughputSeries], results: Mapping[str, Sequence[Result]]
) -> None:
    bins = " | ".join(
        f"{low} to {high:g} times" if np.isfinite(high) else f"beyond {low}"
        for low, high in HORIZONS
    )
    count = len(next(iter(results.values())))
    print(
        f"\n{title}: {len(group)} families, {count} cases\n\n| | median error | of families | mean error | {bins} | "
        f"coverage | median width |\n|---{'|---' * (5 + len(HORIZONS))}|"
    )
    for name, each in results.items():
        errors = np.array([abs(one.error) for one in each])
        horizons = np.array([one.case.horizon for one in each])
        inside = [errors[(horizons > low) & (horizons <= high)] for low, high in HORIZONS]
        cells = [
            _percent(np.median(errors)),
            _percent(_of_families(each)),
            _percent(errors.mean()),
            *(f"{_percent(np.median(part))} ({len(part)})" if len(part) else "" for part in inside),
        ]
        point = all(one.width == 1 for one in each)
        cells += (
            ["", ""]
            if point
            else [
                _percent(np.mean([one.covered for one in each])),
                f"{np.median([one.width for one in each]):.2f}",
            ]
        )
        print(f"| {name} | {' | '.join(cells)} |")


def _of_families(results: Sequence[Result]) -> float:
    names = {one.case.series.name for one in results}
    return float(
        np.median(
            [
                np.median([abs(one.error) for one in results if one.case.series.name == name])
                for name in names
            ]
        )
    )


def _print_cases(results: Sequence[Result]) -> None:
    print()
    for one in results:
        seen = ", ".join(f"{row.accelerators}x{row.local_batch_size:g}" for row in one.case.seen)
        asked = one.case.asked
        ends = [end / asked.samples_per_second for end in (one.predicted.low, one.predicted.high)]
        print(
            f"{one.case.series.name}: {seen} -> {asked.accelerators}x{asked.local_batch_size:g}: {one.error:+.1%} "
            f"[{ends[0]:.2f}, {ends[1]:.2f}]{'' if one.covered else '  missed'}"
        )


def _percent(value: float) -> str:
    return f"{value:.1%}"


if __name__ == "__main__":
    main()
