"""Sweep, forecast and plan for up to 27,360 accelerators, then run the plan on a simulated machine, with failing nodes.

``python -m benchmarks.simulated_machine [--runs N] [--picture FILE.svg]``

The study is a real one, swept by the service. Its plans are for 4,560 nodes of Summit with the time of DeepLabv3+. The
"real" run takes the exact number of updates that the plan's settings need (closed form), on a machine whose figures
are drawn from their intervals, with every update waiting for the slowest rank and nodes failing at random.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hpo
from benchmarks.extrapolation.svg import Picture
from benchmarks.simulated_machine.simulation import simulate
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.inference.posterior import Posterior
from hpo.planning.machines import load_machine
from hpo.planning.placement.epochs import epoch_quantiles
from hpo.planning.placement.rates import step_options
from hpo.planning.plan import Plan
from hpo.planning.timing.assumptions import STEP_VARIATION
from hpo.planning.timing.costs import home_cost
from hpo.planning.timing.failures import NodeFailures
from hpo.planning.timing.step_time import StepTime, expected_slowest, step_time
from hpo.runs.results import StudyResult
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem
from trainers.workloads.noisy_quadratic.steps import steps_to_target

MACHINE, COST = "summit", "deeplabv3plus"
PLACES = ((27_360, 4560), (109_440, 4560), (437_760, 4560), (1_039_680, 4560), (2**20, 4096))
"""Global batch sizes, the last two about 2^20, and nodes; all but the last take 27,360 accelerators."""
NODE_HOURS = (math.inf, 50_000.0, 5_000.0)
"""Mean hours between failures of a node: none, one of 4,560 nodes every 11 hours, one every 66 minutes."""


@dataclass(frozen=True)
class Cell:
    """One batch size and failure rate: the plan, the updates that its settings really need, and the simulated runs."""

    plan: Plan
    node_hours: float
    updates: int
    seconds: tuple[float, ...]
    failures: float

    @property
    def inside(self) -> int:
        """Number of simulated runs that ended within the plan's interval."""
        ends = self.plan.seconds
        return sum(ends.low <= seconds <= ends.high for seconds in self.seconds) if ends else 0


def sweep(folder: Path) -> StudyResult:
    """Return the study, run by the service."""
    return hpo.run_study(
        hpo.load_study(Path(__file__).parent / "study.yaml"),
        str(folder / "simulated_machine.db"),
        folder=folder,
    )


def cells(
    result: StudyResult, posterior: Posterior, runs: int, rng: np.random.Generator
) -> Iterator[Cell]:
    """Plan and simulate every place at every failure rate."""
    problem = QuadraticProblem.from_data(dict(result.spec.data))
    for batch, nodes in PLACES:
        forecast = hpo.forecast(result, batch, posterior)
        for node_hours in NODE_HOURS:
            plan = hpo.make_plan(
                forecast,
                MACHINE,
                nodes,
                cost=COST,
                ranks_per_node=6 if nodes == 4560 else 4,
                node_failure_hours=None if math.isinf(node_hours) else node_hours,
            )
            needed = np.asarray(
                steps_to_target(
                    problem,
                    result.spec.target.threshold,
                    global_batch_size=batch,
                    learning_rate=plan.job.settings.learning_rate,
                )
            ).item()
            if math.isinf(needed):
                raise SystemExit(
                    f"the settings for batch {batch} diverge: {plan.job.settings.learning_rate:.3g}"
                )
            updates = int(needed)
            ran = list(simulated(plan, updates, node_hours, runs, rng))
            yield Cell(
                plan,
                node_hours,
                updates,
                tuple(seconds for seconds, _ in ran),
                float(np.mean([failures for _, failures in ran])),
            )


def simulated(
    plan: Plan, updates: int, node_hours: float, runs: int, rng: np.random.Generator
) -> Iterator[tuple[float, int]]:
    """Return seconds and failures of runs, each on a machine whose figures are drawn from their intervals."""
    step = modelled(plan)
    variations = epoch_quantiles(STEP_VARIATION, 101)
    slower = epoch_quantiles(
        Interval(1.0, step.total.low / step.total.median, step.total.high / step.total.median), 101
    )
    scatter = STEP_VARIATION.median * step.compute * expected_slowest(plan.workers)
    others = (
        step.exposed_communication + step.control + step.input + max(step.straggler - scatter, 0.0)
    )
    for _ in range(runs):
        factor, variation = float(rng.choice(slower)), float(rng.choice(variations))
        found = simulate(
            updates,
            rank_seconds=step.compute * factor,
            other_seconds=others * factor,
            ranks=plan.workers,
            nodes=plan.nodes,
            coefficient_of_variation=variation,
            failures=NodeFailures(node_hours),
            rng=rng,
        )
        yield found.seconds, found.failures


def modelled(plan: Plan) -> StepTime:
    """Return the time of one update of a plan by the machine's and the workload's figures."""
    return step_time(
        load_machine(MACHINE),
        home_cost(COST),
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        local_batch_size=plan.local_batch_size,
        micro_batch_size=plan.micro_batch_size or plan.local_batch_size,
        options=step_options(plan.job.settings),
    )


def table(found: list[Cell]) -> str:
    """Return a Markdown table, one row for each cell."""
    rows = [
        "| batch | accelerators | a node fails every | predicted h | simulated h (5 to 95 %) | inside | failures | "
        "updates | epochs predicted | epochs needed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in found:
        plan, hours = cell.plan, np.array(cell.seconds) / 3600
        seconds, epochs = plan.seconds, plan.epochs
        if seconds is None or epochs is None:
            raise ValueError("a plan without a time cannot be compared")
        low, median, high = np.quantile(hours, (0.05, 0.5, 0.95))
        rate = "never" if math.isinf(cell.node_hours) else f"{cell.node_hours:,.0f} h"
        needed = cell.updates * plan.global_batch_size / 2**26
        rows.append(
            f"| {plan.global_batch_size:,} | {plan.workers:,} | {rate} | {_hours(seconds)} | "
            f"{median:.1f} ({low:.1f} to {high:.1f}) | {cell.inside}/{len(cell.seconds)} | "
            f"{cell.failures:.1f} | {cell.updates:,} | {epochs.median:.1f} ({epochs.low:.1f} to "
            f"{epochs.high:.1f}) | {needed:.1f} |"
        )
    return "\n".join(rows)


def _hours(seconds: Interval) -> str:
    return f"{seconds.median / 3600:.1f} ({seconds.low / 3600:.1f} to {seconds.high / 3600:.1f})"


def draw(found: list[Cell], file: Path) -> None:
    """Draw predicted against simulated hours: one colour for each failure rate, bars for the plan's intervals."""
    colours = dict(zip(NODE_HOURS, ("#4477AA", "#EE7733", "#AA3377"), strict=True))
    ends = [
        value / 3600
        for cell in found
        if cell.plan.seconds
        for value in (*cell.seconds, cell.plan.seconds.low, cell.plan.seconds.high)
    ]
    low, high = 0.8 * min(ends), 1.25 * max(ends)
    picture = Picture(
        "simulated hours to target", "predicted hours, 90 % interval", (low, high), (low, high)
    )
    picture.line([low, high], [low, high], "#5b6670", "predicted as simulated", dashed=True)
    for node_hours, colour in colours.items():
        chosen = [cell for cell in found if cell.node_hours == node_hours and cell.plan.seconds]
        medians = [float(np.median(cell.seconds)) / 3600 for cell in chosen]
        for cell, x in zip(chosen, medians, strict=True):
            seconds = cell.plan.seconds
            if seconds is not None:
                picture.line([x, x], [seconds.low / 3600, seconds.high / 3600], colour, "")
        name = (
            "no failures" if math.isinf(node_hours) else f"a node fails every {node_hours:,.0f} h"
        )
        picture.points(
            medians,
            [cell.plan.seconds.median / 3600 for cell in chosen if cell.plan.seconds],
            colour,
            name,
        )
    file.write_text(picture.text(), encoding="utf-8")


def main() -> None:
    """Run it, and print the table and the time of each part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=40, help="simulated runs of each cell")
    parser.add_argument("--picture", type=Path, default=None)
    asked = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = sweep(Path(folder))
        swept = time.perf_counter()
        posterior = hpo.fit_posterior(dataclasses.replace(result, forecast=None))
        fitted = time.perf_counter()
        found = list(cells(result, posterior, asked.runs, np.random.default_rng(0)))
    ended = time.perf_counter()
    print(table(found))
    inside, runs = sum(cell.inside for cell in found), sum(len(cell.seconds) for cell in found)
    print(f"\n{inside} of {runs} simulated runs ended within their plan's 90 % interval.")
    print(
        f"sweep {swept - began:.1f} s, fit {fitted - swept:.1f} s, plans and simulations {ended - fitted:.1f} s"
    )
    if asked.picture:
        draw(found, asked.picture)


if __name__ == "__main__":
    main()
