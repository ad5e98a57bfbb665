"""Samples spent until the settings for the target batch are good: python -m benchmarks.search_cost --problems 4.

See README.md beside this file for the protocol and results. Results are appended to --output as JSON lines, one for
each search; searches that it already contains are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_cost import methods
from benchmarks.search_cost.simulation import TARGET_BATCH, Task, make_task

METHODS: dict[str, methods.Search] = {
    "search": methods.searched,
    "TPE with halving at the target": methods.tpe_with_halving,
    "random search at the target": methods.random_search,
}
OURS, DIRECT = tuple(METHODS)[:1], tuple(METHODS)[1:]
GOOD, HOLDS = 1.05, 3  # within 5 % of the fewest epochs, and still so after HOLDS more trials
MOST = 40.0  # budget of a search, in trainings at the target batch with the best settings
SAMPLES_PER_SECOND = (
    1e6  # throughput of the full machine at any batch size and workload: a stated constant
)
MOMENTA = {"0": 0.0, "0.9": 0.9, "tuned": None}


def search_cost(task: Task, method: str, seed: int) -> dict[str, Any]:
    """Return what one search spent until its recommendation was good and stayed so; inf if it never did."""
    one = task.best_epochs * task.problem.train_samples
    good: list[methods.Moment] = []
    begun, trials, last = time.process_time(), 0, None
    for moment in METHODS[method](task, seed, MOST * one):
        trials, last = trials + 1, moment
        good = [*good, moment] if moment.factor <= GOOD else []
        if len(good) > HOLDS:
            break
    settled = good[0] if good else None
    return {
        "spent": settled.samples / one if settled else math.inf,
        "at_target": settled.samples_at_target / one if settled else math.inf,
        "factor": settled.factor if settled else last.factor if last else math.inf,
        "unit": one,
        "trials": trials,
        "seconds": time.process_time() - begun,
    }


def run(
    problems: Sequence[int], seeds: int, momenta: Sequence[str], names: Sequence[str], output: Path
) -> None:
    """Run every search that is not in ``output``."""
    held = {(row["momentum"], row["problem"], row["seed"], row["method"]) for row in read(output)}
    for seed in range(seeds):
        for problem in problems:
            for momentum in momenta:
                missing = [name for name in names if (momentum, problem, seed, name) not in held]
                if not missing:
                    continue
                task = make_task(problem, MOMENTA[momentum])
                for name in missing:
                    row = {"momentum": momentum, "problem": problem, "seed": seed, "method": name}
                    with output.open("a") as lines:
                        lines.write(json.dumps(row | search_cost(task, name, seed)) + "\n")


def read(output: Path) -> list[dict[str, Any]]:
    """Return the results in a file."""
    return [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []


def tables(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a Markdown table for each choice of momentum, over problems on which every method was run."""
    lines = []
    for momentum in MOMENTA:
        found = [row for row in rows if row["momentum"] == momentum]
        names = [name for name in METHODS if any(row["method"] == name for row in found)]
        cases: dict[tuple[int, int], dict[str, Any]] = {}
        for row in found:
            cases.setdefault((row["problem"], row["seed"]), {})[row["method"]] = row
        full = [case for case in cases.values() if len(case) == len(names)]
        if not full:
            continue
        lines += [
            f"Momentum {momentum}: {len({row['problem'] for case in full for row in case.values()})} problems, "
            f"{len(full)} searches of each method",
            "",
            "| search | found | samples: median | 25 % to 75 % | ... at the target batch | "
            "hours on the full machine | samples of the better direct search over these |",
            "|---|---|---|---|---|---|---|",
        ]
        direct = [
            min((case[name]["spent"] for name in DIRECT if name in case), default=math.inf)
            for case in full
        ]
        best_direct = min(
            (
                _quantile([case[name]["spent"] for case in full], 0.5)
                for name in DIRECT
                if name in names
            ),
            default=math.nan,
        )
        lines += [_line(name, [case[name] for case in full], best_direct) for name in names] + [""]
        for name in (name for name in OURS if name in names):
            ratios = [
                other / case[name]["spent"]
                if math.isfinite(case[name]["spent"])
                else (0.0 if math.isfinite(other) else math.nan)
                for case, other in zip(full, direct, strict=True)
            ]
            finite = [ratio for ratio in ratios if not math.isnan(ratio)]
            if finite:
                low, middle, high = (
                    f"{_quantile(finite, level):.3g}" for level in (0.25, 0.5, 0.75)
                )
                lines += [
                    f"{name}: case by case the luckier direct search spends {middle} times as much (median; "
                    f"25 %: {low}, 75 %: {high})"
                ]
        lines.append("")
    return lines


def _line(name: str, rows: Sequence[dict[str, Any]], direct: float) -> str:
    spent = [row["spent"] for row in rows]
    hours = [row["at_target"] * row["unit"] / SAMPLES_PER_SECOND / 3600 for row in rows]
    middle = _quantile(spent, 0.5)
    return (
        f"| {name} | {np.mean(np.isfinite(spent)):.0%} | {_shown(middle)} | {_shown(_quantile(spent, 0.25))} to "
        f"{_shown(_quantile(spent, 0.75))} | {_shown(_quantile([row['at_target'] for row in rows], 0.5))} "
        f"| {_quantile(hours, 0.5):.2g} | {direct / middle if math.isfinite(middle) else math.nan:.2g} |"
    )


def _quantile(values: Sequence[float], level: float) -> float:
    return float(np.quantile(values, level, method="higher"))


def _shown(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else f"> {MOST:.0f}"


def main() -> None:
    """Search, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--first-problem",
        type=int,
        default=500,
        help="the method was built with a look at problems below 410",
    )
    parser.add_argument("--momentum", choices=MOMENTA, nargs="+", default=["0", "tuned"])
    parser.add_argument("--method", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--output", type=Path, default=Path("search_cost.jsonl"))
    arguments = parser.parse_args()
    problems = range(arguments.first_problem, arguments.first_problem + arguments.problems)
    run(problems, arguments.seeds, arguments.momentum, arguments.method, arguments.output)
    print(
        f"Target batch {TARGET_BATCH}. Samples in trainings at the target batch with the best settings.\n"
    )
    print("\n".join(tables(read(arguments.output))))


if __name__ == "__main__":
    main()
