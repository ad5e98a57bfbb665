"""Forecasts of held-out model sizes and training lengths: python -m benchmarks.scales FOLDER.

FOLDER contains, in any subfolders, any of

- ``dense.csv``: final losses of dense language models over batch size and peak learning rate, one grid per model size
  and token budget (step-law/steplaw, arXiv:2503.04715). Priors for Adam are learnt without the grids of that size;
- ``optimizers.csv``: the best settings of six optimizers with one setting changed, for three model sizes at 1 to 8
  times the Chinchilla tokens (marin, arXiv:2509.02046);
- ``steps_to_target.csv``: steps to a target loss over the batch, one series per model size (arXiv:2410.21676).

None of it is shipped. From smaller or shorter trainings the best loss, the learning rate and, for the grids, the batch
are forecast for a larger model or a longer training, and compared with the trainings there. The baselines are the
unchanged best settings of the nearest smaller grid, and the published law of the grids, which was fitted to them.
``cost`` is the tokens needed over those of the best settings, by the grid's own curve; for the optimizers
``rate left alone`` is the factor by which the best rate of the largest and longest known training is off.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import adamw_grids
from benchmarks.adamw_grids import Grid
from hpo.extrapolation.evidence.evidence import (
    AggregateRow,
    Evidence,
    ScaledSetting,
    TrainingObservation,
)
from hpo.extrapolation.forecast import Forecast, forecast
from hpo.extrapolation.inference.posterior import fit
from hpo.extrapolation.laws.priors import LawPriors
from trainers.job import Question, Target

LOSS = Target.best("loss", higher_is_better=False)
STEP_LAW_SEQUENCE = 2048
TOP = 1024
"""Largest batch considered, in sequences."""


@dataclass(frozen=True)
class Hidden:
    """One held-out size or length; all values except ``distance`` are logarithms.

    ``cost`` is that of the forecast's settings, and of ``others`` by name; None if the table does not determine it.
    """

    source: str
    case: str
    distance: float
    held: bool
    miss: float
    rate_held: bool
    rate_off: float
    cost: float | None
    others: Mapping[str, float]


def step_law(file: Path) -> Iterator[Hidden]:
    """Forecast every grid from those that are shorter, smaller or both."""
    grids = adamw_grids.read_grids(file)
    losses = _losses(file)
    priors = adamw_grids.learnt_priors(grids)
    for grid in grids:
        shorter = [one for one in grids if one.params == grid.params and one.tokens < grid.tokens]
        smaller = [one for one in grids if one.params < grid.params]
        both = [one for one in smaller if one.tokens <= grid.tokens] + shorter
        for kind, known in (("longer", shorter), ("larger", smaller), ("both", both)):
            if kind != "both" and len(known) < 2:
                continue
            if kind == "both" and not (shorter and smaller):
                continue
            yield _of_grid(kind, grid, known, losses, priors[grid.params])


def _of_grid(
    kind: str,
    grid: Grid,
    known: Sequence[Grid],
    losses: Mapping[tuple[int, float, int, float], float],
    priors: LawPriors,
) -> Hidden:
    trials = [
        TrainingObservation(
            int(batch),
            "reached",
            losses[one.params, one.tokens, int(batch), float(rate)],
            {
                "optimizer": "adamw",
                "learning_rate": float(rate),
                "parameters": one.params,
                "tokens": one.tokens,
            },
        )
        for one in known
        for batch, rate in zip(one.batch, one.rate, strict=True)
        if batch <= TOP
    ]
    rates = [trial.settings["learning_rate"] for trial in trials]
    evidence = Evidence(
        trials,
        tuned=(ScaledSetting("learning_rate", "log", min(rates), max(rates)),),
        question=Question(LOSS, grid.tokens / 1e9),
        full_scale={"parameters": grid.params, "tokens": grid.tokens},
    )
    posterior = fit(evidence, rng=np.random.default_rng(0), priors=priors)
    batches = [batch for batch in grid.batches() if batch <= TOP]
    told = [forecast(posterior, batch) for batch in batches]
    chosen = min(told, key=_median)
    batch, rate = chosen.global_batch_size, chosen.settings["learning_rate"]
    least = min(grid.at(each).best()[1] for each in grid.batches())
    best_rate = grid.at(batch).best()[0]
    trained = min(
        loss
        for (params, tokens, at, _), loss in losses.items()
        if (params, tokens, at) == (grid.params, grid.tokens, batch)
    )
    assert chosen.best is not None
    ends = chosen.best.interval
    nearest = min(
        known,
        key=lambda one: (
            abs(math.log(grid.params / one.params)) + abs(math.log(grid.tokens / one.tokens))
        ),
    )
    alone_batch = min(nearest.batches(), key=lambda each: nearest.at(each).best()[1])
    alone = alone_batch, nearest.at(alone_batch).best()[0]
    published = (
        0.58 * grid.tokens**0.571 / STEP_LAW_SEQUENCE,
        math.log(1.79 * grid.params**-0.713 * grid.tokens**0.307),
    )
    return Hidden(
        f"grids, {kind}",
        f"{grid.name}, from {len(known)} grids, {len(trials)} trainings",
        max(
            grid.params / max(one.params for one in known),
            grid.tokens / max(one.tokens for one in known),
        ),
        ends.low <= trained <= ends.high,
        math.log(ends.median / trained),
        math.log(rate.low) <= best_rate <= math.log(rate.high),
        math.log(rate.median) - best_rate,
        _cost(grid, batch, math.log(rate.median)) - least,
        {
            "left alone": _cost(grid, *alone) - least,
            "published law": _cost(grid, *published) - least,
        },
    )


def _median(told: Forecast) -> float:
    assert told.best is not None
    return told.best.interval.median


def _cost(grid: Grid, batch: float, log_rate: float) -> float:
    near = min(grid.batches(), key=lambda each: abs(math.log(each / batch)))
    return float(grid.at(near).smooth(np.array([log_rate]))[0])


def _losses(file: Path) -> dict[tuple[int, float, int, float], float]:
    with file.open(encoding="utf-8", newline="") as lines:
        return {
            (
                int(float(row["params"])),
                float(row["tokens"]),
                int(row["sequences_per_batch"]),
                float(row["learning_rate"]),
            ): float(row["smooth_loss"])
            for row in csv.DictReader(lines)
        }


SIZES = {"130m": 130e6, "300m": 300e6, "520m": 520e6}
FREE = ("learning_rate", "weight_decay")


def optimizers(file: Path) -> Iterator[Hidden]:
    """Forecast the largest model, and the longest training, of every optimizer from the others."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [
            row
            for row in csv.DictReader(lines)
            if row["loss"] and float(row["loss"]) < 10 and row["learning_rate"]
        ]
    for optimizer in sorted({row["optimizer"] for row in rows}):
        own = [row for row in rows if row["optimizer"] == optimizer]
        for name, hidden, known in (
            ("larger", ("520m", 1.0), [row for row in own if row["size"] != "520m"]),
            ("larger", ("300m", 1.0), [row for row in own if row["size"] == "130m"]),
            ("longer", ("520m", 8.0), [row for row in own if float(row["chinchilla"]) <= 4]),
            (
                "both",
                ("520m", 8.0),
                [row for row in own if row["size"] != "520m" and float(row["chinchilla"]) <= 4],
            ),
        ):
            there = [row for row in own if (row["size"], float(row["chinchilla"])) == hidden]
            if there:
                yield _of_optimizer(optimizer, name, hidden, known, there)


def _of_optimizer(
    optimizer: str,
    kind: str,
    hidden: tuple[str, float],
    known: Sequence[Mapping[str, str]],
    there: Sequence[Mapping[str, str]],
) -> Hidden:
    trials = [_trial(row) for row in known]
    rates = [trial.settings["learning_rate"] for trial in trials]
    size, chinchilla = hidden
    tokens = 20 * chinchilla * SIZES[size]
    evidence = Evidence(
        trials,
        tuned=(ScaledSetting("learning_rate", "log", min(rates), max(rates)),),
        question=Question(LOSS, tokens / 1e9),
        full_scale={"parameters": SIZES[size], "tokens": tokens},
    )
    best = min(there, key=lambda row: float(row["loss"]))
    told = forecast(
        fit(evidence, rng=np.random.default_rng(0)), int(float(best["train_batch_size"]))
    )
    assert told.best is not None
    ends, rate = told.best.interval, told.settings["learning_rate"]
    loss, best_rate = float(best["loss"]), float(best["learning_rate"])
    alone = min(
        known,
        key=lambda row: (-SIZES[row["size"]], -float(row["chinchilla"]), float(row["loss"])),
    )
    return Hidden(
        f"optimizers, {kind}",
        f"{optimizer}, {size} at {chinchilla:g} times, from {len(trials)} trainings",
        SIZES[size] / max(SIZES[row["size"]] for row in known)
        if kind == "larger"
        else chinchilla / max(float(row["chinchilla"]) for row in known),
        ends.low <= loss <= ends.high,
        math.log(ends.median / loss),
        rate.low <= best_rate <= rate.high,
        math.log(rate.median / best_rate),
        None,
        {"rate left alone": abs(math.log(float(alone["learning_rate"]) / best_rate))},
    )


def _trial(row: Mapping[str, str]) -> TrainingObservation:
    size = SIZES[row["size"]]
    settings = {
        "optimizer": {"soape": "soap", "mars": "adamw"}.get(row["optimizer"], row["optimizer"]),
        "learning_rate": float(row["learning_rate"]),
        "parameters": size,
        "tokens": 20 * float(row["chinchilla"]) * size,
    }
    return TrainingObservation(
        int(float(row["train_batch_size"])), "reached", float(row["loss"]), settings
    )


def critical_batches(file: Path) -> Iterator[Hidden]:
    """Forecast every series at the largest batches, from its smallest ones and the series of the other sizes."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    series = sorted({row["series"] for row in rows}, key=_series_size)
    for name in series:
        own = [row for row in rows if row["series"] == name]
        others = [row for row in rows if row["series"] != name]
        for top in (256, 512, 1024, 2048):
            seen = [row for row in own if int(row["global_batch_size"]) <= top]
            for kind, known in (("alone", seen), ("with other sizes", [*seen, *others])):
                evidence = Evidence(
                    aggregates=[_row(row) for row in known],
                    full_scale=_scales(name) if known is not seen else {},
                )
                posterior = fit(evidence, rng=np.random.default_rng(0))
                for row in own:
                    batch, truth = int(row["global_batch_size"]), float(row["epochs_to_target"])
                    if batch > top:
                        told = forecast(posterior, batch).epochs_to_target
                        yield Hidden(
                            f"series {kind}",
                            f"{name}, up to {top}",
                            batch / top,
                            told.low <= truth <= told.high,
                            math.log(told.median / truth),
                            True,
                            0.0,
                            None,
                            {},
                        )


def _scales(name: str) -> dict[str, float]:
    """Return the scales of a size; its target is the loss after 20 tokens per parameter."""
    return {"parameters": _series_size(name), "tokens": 20 * _series_size(name)}


def _series_size(name: str) -> float:
    return float(name.split("_")[1].rstrip("M")) * 1e6


def _row(row: Mapping[str, str]) -> AggregateRow:
    settings = {"optimizer": "adamw", **_scales(row["series"])}
    return AggregateRow(
        int(row["global_batch_size"]), float(row["epochs_to_target"]), settings=settings
    )


DISTANCES = ((1.0, 2.01), (2.01, 4.01), (4.01, 8.01), (8.01, math.inf))


def tables(found: Sequence[Hidden]) -> Iterator[str]:
    """A summary by source and distance, then every case, in Markdown."""
    yield (
        "| left out | times the largest seen | cases | intervals that held | median miss | rate's intervals | rate off "
        "| mean, median cost | others |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|--:|---|"
    for source in dict.fromkeys(each.source for each in found):
        for low, high in DISTANCES:
            some = [each for each in found if each.source == source and low <= each.distance < high]
            if some:
                yield _summary(source, f"{low:.0f} to {high:.0f}", some)
    yield ""
    yield "| left out | case | miss | held | rate off | rate held | cost | others |"
    yield "|---|---|--:|---|--:|---|--:|---|"
    for each in found:
        others = ", ".join(f"{name} {math.exp(cost):.3f}" for name, cost in each.others.items())
        yield (
            f"| {each.source} | {each.case} | {math.expm1(each.miss):+.1%} | {'yes' if each.held else 'no'} "
            f"| {math.exp(each.rate_off):.2f} | {'yes' if each.rate_held else 'no'} "
            f"| {'-' if each.cost is None else f'{math.exp(each.cost):.3f}'} | {others} |"
        )


def _summary(source: str, distance: str, some: Sequence[Hidden]) -> str:
    costs = [math.exp(each.cost) for each in some if each.cost is not None]
    others = []
    for name in some[0].others:
        values = [math.exp(each.others[name]) for each in some]
        others.append(f"{name} {np.mean(values):.3f}, {np.median(values):.3f}")
    return (
        f"| {source} | {distance} | {len(some)} | {np.mean([each.held for each in some]):.0%} "
        f"| {math.expm1(float(np.median([abs(each.miss) for each in some]))):.1%} "
        f"| {np.mean([each.rate_held for each in some]):.0%} "
        f"| {math.exp(float(np.median([abs(each.rate_off) for each in some]))):.2f} "
        f"| {f'{np.mean(costs):.3f}, {np.median(costs):.3f}' if costs else '-'} | {'; '.join(others)} |"
    )


READERS = {
    "dense.csv": step_law,
    "optimizers.csv": optimizers,
    "steps_to_target.csv": critical_batches,
}


def main() -> None:
    """Forecast and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=READERS, help="one of the files")
    arguments = parser.parse_args()
    found: list[Hidden] = []
    for name, read in READERS.items():
        for file in sorted(arguments.folder.rglob(name))[:1]:
            if arguments.only in (None, name):
                found += read(file)
    if not found:
        parser.error(
            f"{arguments.folder} must hold one of the files that --help names, but holds none; fetch one first"
        )
    print("\n".join(tables(found)))


if __name__ == "__main__":
    main()
