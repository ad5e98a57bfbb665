"""Scores the forecasters: python -m benchmarks.extrapolation [--data TABLE.csv | --simulated COUNT]."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.extrapolation.forecasters import JOINT, forecasters
from benchmarks.extrapolation.learn import Series, read_reference_points
from benchmarks.extrapolation.protocol import (
    DISTANCE_NAMES,
    LEAST_RUNGS,
    Case,
    Forecaster,
    Score,
    cases,
    load,
    score,
)
from benchmarks.extrapolation.runs import BENCHMARKS, GROUPS, CoarseRow
from benchmarks.extrapolation.simulated import LAWS, simulate


def main() -> None:
    """Print the tables."""
    arguments = _arguments()
    series, known = _task(arguments)
    print(
        f"| forecaster | {' | '.join(DISTANCE_NAMES)} | 90 % intervals hold | by series | width at 2x to 4x | time |"
    )
    print("|---|" + "---|" * (len(DISTANCE_NAMES) + 4))
    joint: list[Case] = []
    for name, forecaster in known.items():
        start = time.perf_counter()
        found = [case for one in series for case in cases(one, forecaster, arguments.least_rungs)]
        print(_line(name, score(found), time.perf_counter() - start), flush=True)
        if name == JOINT:
            joint = found
    print(_by_distance(JOINT, score(joint)))
    for law in LAWS if arguments.simulated else ():
        print(
            _by_distance(
                f"truth: {law}", score([case for case in joint if case.series.startswith(law)])
            )
        )
    if arguments.cases:
        print("\n".join(_told(case) for case in joint))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--data",
        type=Path,
        help="a table like reference_points.csv (the default), or MLPerf's "
        "reference_convergence.csv or runs.csv",
    )
    source.add_argument("--simulated", type=int, metavar="COUNT", help="number of simulated series")
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulated series")
    parser.add_argument(
        "--series", choices=sorted(GROUPS), default="team", help="how to group runs.csv into series"
    )
    parser.add_argument(
        "--optimizer",
        help="the optimizer of every row in a table of new series, such as adamw; forecasts then use the shipped "
        "priors",
    )
    parser.add_argument(
        "--least-rungs", type=int, default=LEAST_RUNGS, help="the fewest rungs to forecast from"
    )
    parser.add_argument(
        "--cases", action="store_true", help="also print every prediction of the joint model"
    )
    return parser.parse_args()


def _task(arguments: argparse.Namespace) -> tuple[Sequence[Series], Mapping[str, Forecaster]]:
    if arguments.simulated:
        return simulate(arguments.simulated, arguments.seed), forecasters(
            read_reference_points(), lambda _: ()
        )
    series = load(arguments.data, arguments.series)
    if arguments.optimizer:
        return [_trained_by(one, arguments.optimizer) for one in series], forecasters(
            read_reference_points(), lambda _: ()
        )
    if any(isinstance(row, CoarseRow) for one in series for row in one.rows):  # of runs.csv
        return series, forecasters(read_reference_points(), lambda _: BENCHMARKS)
    return series, forecasters(series)


def _trained_by(series: Series, optimizer: str) -> Series:
    rows = [
        dataclasses.replace(row, settings={**row.settings, "optimizer": optimizer})
        for row in series.rows
    ]
    return dataclasses.replace(series, rows=rows)


def _line(name: str, result: Score, seconds: float) -> str:
    errors = " | ".join(f"{error:.1%}" for error in result.error)
    intervals = f"{result.coverage:.0%} | {result.coverage_by_series:.0%} | {result.width:.2f}"
    if result.width == 1.0:
        intervals = "- | - | -"
    return f"| {name} | {errors} | {intervals} | {seconds:.0f} s |"


def _by_distance(title: str, result: Score) -> str:
    """Return the details of one forecaster that are not in the table of forecasters."""
    rows = {
        "series": [str(count) for count in result.series],
        "cases": [str(count) for count in result.count],
        "median error": [f"{error:.1%}" for error in result.error],
        "worst tenth of the errors": [f"{error:.1%}" for error in result.worst_tenth],
        "90 % intervals hold": [f"{share:.0%}" for share in result.coverage_at],
        "within the resolution of the evaluations": [f"{share:.0%}" for share in result.met_at],
        "width": [f"{width:.2f}" for width in result.width_at],
    }
    head = [f"\n| {title} | {' | '.join(DISTANCE_NAMES)} |", "|---|" + "---|" * len(DISTANCE_NAMES)]
    return "\n".join(
        [*head, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())]
    )


def _told(case: Case) -> str:
    return (
        f"    {case.series} {case.rungs_seen} rungs, {case.distance:.2f}x: observed {case.observed:.4g}, forecast "
        f"{case.median:.4g} ({case.low:.4g} to {case.high:.4g}){'' if case.covered else ' MISSED'}"
    )


if __name__ == "__main__":
    main()
