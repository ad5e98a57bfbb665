"""Forecasts on published grids of AdamW: python -m benchmarks.adamw_grids dense.csv [--top 256].

The file holds final losses of dense language models over batch size and peak learning rate, one grid per model size and
token budget (run tables of the repository step-law/steplaw, arXiv:2503.04715; columns ``params``, ``tokens``,
``sequences_per_batch``, ``learning_rate``, ``smooth_loss``). It is not shipped.

A loss is converted to tokens to a target by L(D) = E + A D^-b, fitted to the best run of every budget of a model size:
a run whose loss is that of the best run of d tokens needs budget / d times as many tokens to match the best one.
From all runs of a grid at batches up to ``--top`` sequences the rate and the tokens are forecast at every larger batch,
with priors learnt without the grids of that model size. The truth there is the grid's own curve of tokens over the
rate.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import least_squares

from benchmarks.extrapolation.learn import learn_adam
from benchmarks.pooled_beliefs import names
from hpo.extrapolation.evidence.evidence import Evidence, ScaledSetting, TrainingObservation
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws.priors import LawPriors

Array = NDArray[np.float64]

DISTANCES = ((1.0, 2.0), (2.0, 4.0), (4.0, 8.0))
GIVEN_UP = 8.0  # times the grid's fewest tokens: longer trainings are censored there
EXPLODED = 100.0  # times the grid's fewest tokens: such a loss means that the training diverged
BANDWIDTH = 0.4  # of the smooth curve through a batch's runs, in log rate; the grids step by 0.35
FINE = 400
HELD_BACK = {(214_663_680, 20e9), (429_260_800, 50e9)}


@dataclass(frozen=True)
class Grid:
    """The runs of one model size and token budget, arrays of one length.

    ``log_tokens`` is the logarithm of the tokens that each needs, over those of the grid's best run.
    """

    params: int
    tokens: float
    batch: Array
    rate: Array
    log_tokens: Array

    @property
    def name(self) -> str:
        """A readable name of the grid."""
        return f"{self.params / 1e6:.0f}M parameters, {self.tokens / 1e9:.1f}B tokens"

    @property
    def held_back(self) -> bool:
        """Whether the grid is neither used for the priors nor was inspected while the law was built."""
        return (self.params, self.tokens) in HELD_BACK

    def batches(self) -> list[int]:
        """The batch sizes, increasing."""
        return [int(batch) for batch in np.unique(self.batch)]

    def at(self, batch: int) -> Curve:
        """The curve of tokens over the rate at one batch size."""
        here = self.batch == batch
        order = np.argsort(self.rate[here])
        return Curve(np.log(self.rate[here][order]), self.log_tokens[here][order])


@dataclass(frozen=True)
class Curve:
    """Tokens over the learning rate at one batch, both in logarithms."""

    log_rate: Array
    log_tokens: Array

    def smooth(self, log_rate: Array) -> Array:
        """Local quadratic regression: single runs scatter by 2 to 5 %."""
        at = np.clip(np.atleast_1d(log_rate), self.log_rate[0], self.log_rate[-1])
        found = []
        for place in at:
            away = self.log_rate - place
            weight = np.exp(-0.25 * (away / BANDWIDTH) ** 2)
            design = np.stack([np.ones_like(away), away, away**2], axis=1)
            capped = np.minimum(self.log_tokens, self.log_tokens.min() + 1.0)
            found.append(
                np.linalg.lstsq(design * weight[:, None], capped * weight, rcond=None)[0][0]
            )
        return np.array(found)

    def raw(self, log_rate: Array) -> Array:
        """Interpolation between the single runs."""
        at = np.clip(np.atleast_1d(log_rate), self.log_rate[0], self.log_rate[-1])
        return np.asarray(PchipInterpolator(self.log_rate, self.log_tokens)(at))

    def best(self) -> tuple[float, float]:
        """The best rate of the smooth curve and its tokens, both in logarithms."""
        grid = np.linspace(self.log_rate[0], self.log_rate[-1], FINE)
        tokens = self.smooth(grid)
        return float(grid[np.argmin(tokens)]), float(tokens.min())


def read_grids(path: Path) -> list[Grid]:
    """The grids of a table, tokens by the curve of each model size."""
    with path.open(encoding="utf-8", newline="") as lines:
        table = [
            tuple(
                float(row[name])
                for name in (
                    "params",
                    "tokens",
                    "sequences_per_batch",
                    "learning_rate",
                    "smooth_loss",
                )
            )
            for row in csv.DictReader(lines)
        ]
    rows = np.array(sorted(table))
    found = []
    for params in np.unique(rows[:, 0]):
        own = rows[rows[:, 0] == params]
        budgets = np.unique(own[:, 1])
        best = np.array([own[own[:, 1] == budget, 4].min() for budget in budgets])
        tokens_of = _tokens_of_loss(budgets, best)
        for budget in budgets:
            _, _, batch, rate, loss = own[own[:, 1] == budget].T
            needed = np.log(budget) - np.log(tokens_of(loss))
            found.append(Grid(int(params), float(budget), batch, rate, needed - needed.min()))
    return found


def _tokens_of_loss(budgets: Array, losses: Array) -> Callable[[Array], Array]:
    """The inverse of L(D) = E + A D^-b through the best losses of the budgets."""
    scaled = budgets / 1e9

    def miss(unknown: Array) -> Array:
        return np.asarray(unknown[0] + np.exp(unknown[1]) * scaled ** -np.exp(unknown[2]) - losses)

    starts = [
        (losses.min() - away, 0.0, np.log(power))
        for away in (0.1, 0.2, 0.4)
        for power in (0.3, 0.5)
    ]
    least, scale, power = min(
        (least_squares(miss, start) for start in starts), key=lambda one: float(one.cost)
    ).x
    return lambda loss: np.asarray(
        1e9 * (np.exp(scale) / np.maximum(loss - least, 1e-3)) ** (1 / np.exp(power))
    )


def evidence(grid: Grid, top: int) -> Evidence:
    """All runs of a grid at batches up to ``top`` as trials; tokens in units of the grid's fewest."""
    found = []
    for batch, rate, needed in zip(grid.batch, grid.rate, np.exp(grid.log_tokens), strict=True):
        if batch <= top:
            state = (
                "diverged" if needed > EXPLODED else "censored" if needed > GIVEN_UP else "reached"
            )
            found.append(
                TrainingObservation(
                    int(batch),
                    state,
                    float(min(needed, GIVEN_UP)),
                    {"optimizer": "adamw", "learning_rate": float(rate)},
                )
            )
    return Evidence(observations=found, tuned=[ScaledSetting("learning_rate")])


@dataclass(frozen=True)
class Case:
    """One forecast or rule at one batch; rates and tokens in logarithms."""

    grid: str
    distance: float
    rate: float
    best_rate: float
    cost: float
    raw_cost: float
    rate_held: bool = True
    tokens_held: bool = True
    tokens_error: float = 0.0
    rate_width: float = 0.0
    tokens_width: float = 0.0


def _case(grid: Grid, batch: int, top: int, rate: float, **more: float | bool) -> Case:
    curve = grid.at(batch)
    best_rate, least = curve.best()
    at = np.array([rate])
    raw = float(curve.raw(at)[0] - curve.log_tokens.min())
    return Case(
        grid.name, batch / top, rate, best_rate, float(curve.smooth(at)[0]) - least, raw, **more
    )  # type: ignore[arg-type]


def rules(grid: Grid, top: int) -> Iterable[tuple[str, Case]]:
    """The rules of thumb from the best rate at the largest rung: of its smooth curve, and of its best run."""
    last = max(batch for batch in grid.batches() if batch <= top)
    curve = grid.at(last)
    for origin, start in (
        ("", curve.best()[0]),
        (", best run", float(curve.log_rate[np.argmin(curve.log_tokens)])),
    ):
        for name, power in (("none", 0.0), ("sqrt", 0.5), ("linear", 1.0)):
            for batch in grid.batches():
                if batch > top:
                    yield (
                        name + origin,
                        _case(grid, batch, last, start + power * float(np.log(batch / last))),
                    )


def forecasts(grid: Grid, top: int, priors: LawPriors, seed: int = 0) -> Iterable[Case]:
    """The forecast at every batch beyond ``top``."""
    seen = evidence(grid, top)
    posterior = fit(seen, rng=np.random.default_rng(seed), priors=priors)
    for batch in grid.batches():
        if batch > top:
            found = forecast(posterior, batch)
            rate, tokens = found.settings["learning_rate"], found.epochs_to_target
            curve = grid.at(batch)
            observed = float(curve.smooth(np.log([rate.median]))[0])
            best = curve.best()[0]
            yield _case(
                grid,
                batch,
                seen.batches[-1],
                float(np.log(rate.median)),
                rate_held=bool(np.log(rate.low) <= best <= np.log(rate.high)),
                tokens_held=bool(np.log(tokens.low) <= observed <= np.log(tokens.high)),
                tokens_error=float(np.log(tokens.median)) - observed,
                rate_width=float(rate.high / rate.low),
                tokens_width=float(tokens.high / tokens.low),
            )


def table(found: Mapping[str, Sequence[Case]]) -> str:
    """Return a table of errors of the rate and costs by distance, and of intervals over all cases."""
    names = [f"{low:g}x to {high:g}x" for low, high in DISTANCES]
    lines = [
        f"| | {' | '.join(names)} | rate held | tokens held | rate width | tokens width |",
        "|---|" + "---|" * (len(names) + 4),
    ]
    for name, cases in found.items():
        cells = []
        for low, high in DISTANCES:
            here = [case for case in cases if low < case.distance <= high * 1.0001]
            off = np.exp(np.median([abs(case.rate - case.best_rate) for case in here]))
            cost, raw = (
                [np.expm1(getattr(case, kind)) for case in here] for kind in ("cost", "raw_cost")
            )
            error = np.median([abs(np.expm1(case.tokens_error)) for case in here])
            cells.append(
                f"{off:.2f}, {np.median(cost):.1%} (mean {np.mean(cost):.1%}, raw {np.median(raw):.1%} / "
                f"{np.mean(raw):.1%}), tokens {error:.0%}"
            )
        held = [
            f"{np.mean([case.rate_held for case in cases]):.0%}",
            f"{np.mean([case.tokens_held for case in cases]):.0%}",
            f"{np.median([case.rate_width for case in cases]):.2f}",
            f"{np.median([case.tokens_width for case in cases]):.2f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {' | '.join(held)} |")
    return "\n".join(lines)


def learnt_priors(grids: Sequence[Grid]) -> dict[int, LawPriors]:
    """Return for each model size the priors learnt from whole grids of the others, without held-back budgets."""
    found = {}
    for params in {grid.params for grid in grids}:
        teachers = [
            evidence(grid, max(grid.batches()))
            for grid in grids
            if grid.params != params and not grid.held_back
        ]
        found[params] = replace(
            LawPriors(), adam=learn_adam(teachers, rng=np.random.default_rng(0))
        )
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="dense.csv")
    parser.add_argument("--top", type=int, default=256, help="the largest batch that is seen")
    parser.add_argument(
        "--grids",
        choices=("all", "development", "held-back"),
        default="all",
        help="held-back budgets were not looked at while the law was built",
    )
    parser.add_argument(
        "--learn", action="store_true", help="only learn the priors that ship, from all grids"
    )
    parser.add_argument("--cases", action="store_true", help="also every forecast")
    arguments = parser.parse_args()
    grids = read_grids(arguments.file)
    if arguments.learn:
        teachers = [evidence(grid, max(grid.batches())) for grid in grids]
        learnt = learn_adam(teachers, rng=np.random.default_rng(0))
        print(
            "\n".join(
                f"{name}: Normal({getattr(learnt, name).mean:.2f}, {getattr(learnt, name).sd:.2f})"
                for name in names(learnt)
            )
        )
        return
    priors = learnt_priors(grids)
    if arguments.grids != "all":
        grids = [grid for grid in grids if grid.held_back == (arguments.grids == "held-back")]
    found: dict[str, list[Case]] = {}
    start = time.perf_counter()
    for grid in grids:
        found.setdefault("forecast", []).extend(forecasts(grid, arguments.top, priors[grid.params]))
    seconds = time.perf_counter() - start
    for grid in grids:
        for name, case in rules(grid, arguments.top):
            found.setdefault(name, []).append(case)
    print(table(found))
    print(f"{seconds / len(grids):.1f} s a grid")
    if arguments.cases:
        for case in found["forecast"]:
            print(
                f"{case.grid} {case.distance:.1f}x: rate {np.exp(case.rate):.2e} (best {np.exp(case.best_rate):.2e}, "
                f"{'held' if case.rate_held else 'missed'}), cost {np.expm1(case.cost):.1%}, tokens "
                f"{np.expm1(case.tokens_error):+.0%} ({'held' if case.tokens_held else 'missed'})"
            )


if __name__ == "__main__":
    main()
