"""The tables: each forecast next to the brute-force result, the results of every tried rate, and the costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import stats

from benchmarks.real_images.cases import Case
from benchmarks.real_images.sweeps import Sweep
from benchmarks.real_images.trainings import Optimum, Training, by_rate, optimum
from hpo.extrapolation.inference.intervals import Interval

LEVEL = 0.95  # quantile of the t distribution, for 90 % intervals


def lines(case: Case, sweeps: Sequence[Sweep], trainings: Sequence[Training]) -> list[str]:
    """Return all tables of a case, in Markdown."""
    best = optimum(case, trainings)
    return [
        *_forecasts(sweeps, trainings, best),
        "",
        *_rates(case, trainings, best),
        "",
        *_costs(case, sweeps, trainings),
    ]


def _forecasts(sweeps: Sequence[Sweep], trainings: Sequence[Training], best: Optimum) -> list[str]:
    table = [
        "| sweep | forecast: epochs (90 %), trust | observed mean (90 %) | single runs (90 %) | "
        "forecast within the mean's / the single runs' interval | observed mean within the forecast's | "
        "recommended rate | over the best | epochs over the fewest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for sweep in sweeps:
        runs = by_rate(trainings).get(sweep.rate, [])
        epochs = [run.epochs for run in runs if run.state == "reached"]
        made = sweep.forecast.epochs_to_target
        first = f"| {sweep.name} | {_shown(made)}, {sweep.forecast.trust} |"
        rate = f"{sweep.rate:.3g} | {sweep.rate / best.learning_rate:.2f}"
        if len(epochs) < 3 or len(epochs) < len(runs):
            what = f"{len(epochs)} of {len(runs)} reached the target" if runs else "not trained yet"
            table.append(f"{first} {what} | - | - | - | {rate} | - |")
            continue
        mean, single = (_interval(epochs, single=single) for single in (False, True))
        held = [
            _yes(mean.low <= made.median <= mean.high),
            _yes(single.low <= made.median <= single.high),
            _yes(made.low <= mean.median <= made.high),
        ]
        table.append(
            f"{first} {_shown(mean)}, {len(runs)} seeds | {single.low:.3g} to {single.high:.3g} | "
            f"{held[0]} / {held[1]} | {held[2]} | {rate} | {mean.median / best.epochs:.2f} |"
        )
    return table


def _rates(case: Case, trainings: Sequence[Training], best: Optimum) -> list[str]:
    table = [
        f"Brute force at {case.batch}: best rate {best.learning_rate:.3g} ({best.rates[0]:.3g} to "
        f"{best.rates[1]:.3g}), {best.epochs:.3g} epochs ({best.epochs_interval[0]:.3g} to "
        f"{best.epochs_interval[1]:.3g}); at most 5 % more from {best.good[0]:.3g} to {best.good[1]:.3g}",
        "",
        "| rate | seeds | ended | epochs to target: mean | lowest to highest |",
        "|---|---|---|---|---|",
    ]
    for rate, runs in by_rate(trainings).items():
        ended = Counter(run.state for run in runs)
        epochs = [run.epochs for run in runs if run.state == "reached"]
        shown = (
            f"{stats.gmean(epochs):.3g} | {min(epochs):.3g} to {max(epochs):.3g}"
            if epochs
            else "- | -"
        )
        table.append(
            f"| {rate:.3g}{'' if rate in case.grid else ' (recommended)'} | {len(runs)} | "
            f"{', '.join(f'{count} {state}' for state, count in ended.items())} | {shown} |"
        )
    return table


def _costs(case: Case, sweeps: Sequence[Sweep], trainings: Sequence[Training]) -> list[str]:
    grid = [run for run in trainings if run.learning_rate in case.grid]
    spent = sum(run.samples for run in grid)
    table = [
        "| what | trainings | thousand samples | of the brute force |",
        "|---|---|---|---|",
        f"| brute force at {case.batch} | {len(grid)} | {spent / 1000:.0f} | 1 |",
    ]
    return table + [
        f"| {sweep.name} on the ladder | {len(sweep.result.trials)} | {sweep.samples / 1000:.0f} | "
        f"{sweep.samples / spent:.2f} |"
        for sweep in sweeps
    ]


def _interval(epochs: Sequence[float], *, single: bool) -> Interval:
    """Return the geometric mean with its 90 % interval (Student's t on logarithms), or that of one more training."""
    logs = np.log(epochs)
    spread = (
        float(logs.std(ddof=1))
        * math.sqrt(single + 1 / len(logs))
        * float(stats.t.ppf(LEVEL, len(logs) - 1))
    )
    return Interval(*(math.exp(float(logs.mean()) + side * spread) for side in (0, -1, 1)))


def _shown(interval: Interval) -> str:
    return f"{interval.median:.3g} ({interval.low:.3g} to {interval.high:.3g})"


def _yes(held: bool) -> str:
    return "yes" if held else "no"
