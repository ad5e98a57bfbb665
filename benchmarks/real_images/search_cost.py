"""Samples until a search finds a rate that is within 5 % of the best at the target batch.

Trainings at the target batch are looked up: a rate gets the learning curve of one of the seeds at the nearest rate of
the brute force. The ladder's trials are those of the sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_images import sweeps
from benchmarks.real_images.cases import Case
from benchmarks.real_images.sweeps import Sweep
from benchmarks.real_images.trainings import Training, by_rate, optimum
from benchmarks.search_cost.halving import halving, new_study

HOLDS = 3  # further trials after which the rate must still be good
MOST = 40.0  # budget of a search, in trainings with the best rate
DIRECT_SEEDS = 50
FEWEST_ON_LADDER, EVERY = 8, 4  # trials on the ladder before the first forecast, and between two
NEVER = (math.inf, math.inf)

Moment = tuple[float, float, float | None]
"""Samples spent so far, in total and at the target batch, and the currently recommended rate."""

Stop = Callable[[Sequence[float], Sequence[float]], bool]


@dataclass(frozen=True)
class Looked:
    """A looked-up training, up to where it was stopped."""

    state: str
    epochs: float
    samples: float


class Lookup:
    """Trainings at the target batch, from the brute force."""

    def __init__(self, case: Case, trainings: Sequence[Training]) -> None:
        self._runs = {rate: runs for rate, runs in by_rate(trainings).items() if rate in case.grid}
        self.budget = case.epochs

    def train(
        self,
        rate: float,
        rng: np.random.Generator,
        limit: float | None = None,
        stop: Stop | None = None,
    ) -> Looked:
        """Look up one training; ``stop`` is called after each evaluation, with the epochs and top-1 so far."""
        runs = self._runs[min(self._runs, key=lambda other: abs(math.log(other / rate)))]
        run = runs[int(rng.integers(len(runs)))]
        last = len(run.curve)
        for count, epochs in enumerate(run.curve_epochs[:-1], start=1):
            if epochs >= (limit or math.inf) or (
                stop and stop(run.curve_epochs[:count], run.curve[:count])
            ):
                last = count
                break
        epochs, whole = run.curve_epochs[last - 1], last == len(run.curve)
        return Looked(
            run.state if whole else "pruned", epochs, run.samples * epochs / run.curve_epochs[-1]
        )


def lines(case: Case, found: Sequence[Sweep], trainings: Sequence[Training]) -> list[str]:
    """Return a Markdown table of the spending of each search."""
    best, lookup = optimum(case, trainings), Lookup(case, trainings)
    unit = best.epochs * next(iter(found)).result.train_samples
    spent = {
        name: [
            _settled(search(case, lookup, seed, MOST * unit), best.good)
            for seed in range(DIRECT_SEEDS)
        ]
        for name, search in (
            ("TPE with halving at the target", _tpe_with_halving),
            ("random search at the target", _random_search),
        )
    }
    for sampler in dict.fromkeys(sweep.result.spec.sampler for sweep in found):
        own = [sweep for sweep in found if sweep.result.spec.sampler == sampler]
        spent[f"ladder alone ({sampler})"] = [
            _settled(_ladder(sweep), best.good, holds=1) for sweep in own
        ]
    return [
        f"Search cost at {case.batch}, in trainings there with the best rate ({unit / 1000:.3g} thousand samples); "
        f"a rate is good from {best.good[0]:.3g} to {best.good[1]:.3g}",
        "",
        "| search | searches | found | samples: median | 25 % to 75 % | ... at the target batch |",
        "|---|---|---|---|---|---|",
        *(_line(name, np.array(values) / unit) for name, values in spent.items()),
    ]


def _line(name: str, spent: NDArray[np.float64]) -> str:
    """Return a row; ``spent`` (searches, 2) is in total and at the target batch."""
    samples, at_target = spent.T
    middle, low, high = (_shown(samples, level) for level in (0.5, 0.25, 0.75))
    return (
        f"| {name} | {len(spent)} | {np.mean(np.isfinite(samples)):.0%} | {middle} | {low} to {high} | "
        f"{_shown(at_target, 0.5)} |"
    )


def _shown(values: NDArray[np.float64], level: float) -> str:
    value = float(np.quantile(values, level, method="higher"))
    return f"{value:.2f}" if math.isfinite(value) else "not found"


def _settled(
    moments: Iterator[Moment], good: tuple[float, float], holds: int = HOLDS
) -> tuple[float, float]:
    """Return the spending when the rate became good and stayed so for ``holds`` moments; infinite if never."""
    streak: list[tuple[float, float]] = []
    for samples, at_target, rate in moments:
        streak = (
            [*streak, (samples, at_target)]
            if rate is not None and good[0] <= rate <= good[1]
            else []
        )
        if len(streak) > holds:
            break
    return streak[0] if streak else NEVER


def _random_search(case: Case, lookup: Lookup, seed: int, most: float) -> Iterator[Moment]:
    rng, samples, best = np.random.default_rng((seed, 1)), 0.0, (math.inf, math.nan)
    while samples < most:
        rate = float(np.exp(rng.uniform(*np.log(case.rates))))
        run = lookup.train(rate, rng)
        samples += run.samples
        if run.state == "reached":
            best = min(best, (run.epochs, rate))
        yield samples, samples, best[1]


def _tpe_with_halving(case: Case, lookup: Lookup, seed: int, most: float) -> Iterator[Moment]:
    """Search with Optuna's TPE and SuccessiveHalvingPruner (ASHA's rule), both with defaults, at the target batch."""
    import optuna

    rng, samples, best = np.random.default_rng((seed, 2)), 0.0, (math.inf, math.nan)
    study = new_study(seed)
    while samples < most:
        trial = study.ask()
        rate = trial.suggest_float("learning_rate", *case.rates, log=True)
        stop = halving(trial, lookup.budget)
        run = lookup.train(
            rate, rng, stop=lambda epochs, top1, stop=stop: stop(epochs, [1 - top1[-1]])
        )  # type: ignore[misc]
        samples += run.samples
        if run.state == "pruned":
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            lost = {"reached": 0.0, "censored": 1.0, "diverged": 2.0}[run.state]
            study.tell(trial, math.log(lookup.budget if lost else run.epochs) + lost)
        if run.state == "reached":
            best = min(best, (run.epochs, rate))
        yield samples, samples, best[1]


def _ladder(sweep: Sweep) -> Iterator[Moment]:
    """Yield the forecast's recommendation after every ``EVERY`` trials of a sweep."""
    for count in range(FEWEST_ON_LADDER, len(sweep.result.trials) + 1, EVERY):
        made = sweeps.after(sweep, count)
        yield (
            sweeps.samples_of(sweep.result, count),
            0.0,
            None if made is None else sweeps.rounded(made),
        )
