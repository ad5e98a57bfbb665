"""Scores the forecasters: python -m benchmarks.extrapolation [--data TABLE.csv] [--cases]."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.extrapolation.forecasters import forecasters
from benchmarks.extrapolation.protocol import DISTANCE_NAMES, Score, cases, load, score


def _line(name: str, result: Score, seconds: float) -> str:
    errors = " | ".join(f"{error:.1%}" for error in result.error)
    intervals = f"{result.coverage:.0%} | {result.coverage_by_series:.0%} | {result.width:.2f}"
    if result.width == 1.0:
        intervals = "- | - | -"
    return f"| {name} | {errors} | {intervals} | {seconds:.0f} s |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a table like hpo/extrapolation/reference_points.csv (the default), "
                                                  "or MLPerf's reference_convergence.csv")
    parser.add_argument("--cases", action="store_true", help="also print every prediction of the joint model")
    arguments = parser.parse_args()
    series = load(arguments.data)
    print(f"| forecaster | {' | '.join(DISTANCE_NAMES)} | 90 % intervals hold | by series | width at 2x to 4x | time |")
    print("|---|" + "---|" * (len(DISTANCE_NAMES) + 4))
    for name, forecaster in forecasters(series).items():
        start = time.perf_counter()
        found = [case for one in series for case in cases(one, forecaster)]
        print(_line(name, score(found), time.perf_counter() - start), flush=True)
        if arguments.cases and name == "joint model":
            for case in found:
                print(f"    {case.series} {case.rungs_seen} rungs, {case.distance:.2f}x: observed {case.observed:.4g}, "
                      f"forecast {case.median:.4g} ({case.low:.4g} to {case.high:.4g})"
                      f"{'' if case.covered else ' MISSED'}")
    print("series in each distance:", ", ".join(str(count) for count in score(found).series))


if __name__ == "__main__":
    main()
