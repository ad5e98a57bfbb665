"""Sweeps of small language models and the forecast of a larger one: python -m benchmarks.growing_models FOLDER.

Each sweep trains widths 32 and 64 at batches 16 to 64 for an eighth and a half of the samples, with AdamW, and
forecasts width 128 at batch 128 for all of them; in the standard parametrization and in mup with base width 32. The
truth is a grid of rates at the full scale, two seeds each, that no sweep sees; ``regret`` is by how much the loss of a
rate, on the curve through the means of the grid, is above the least. Beside the forecast: the rate of the best trial of
the largest and longest models left alone, that rate moved by the square root of the batch, and by Step Law
(arXiv:2503.04715) from there. ``cost`` is that of a sweep in trainings at the full scale. FOLDER keeps what was
trained; a second call goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hpo
from hpo.study.jobs import training_job
from hpo.study.sizes import full_point, point_of, relative_cost
from hpo.study.spec import StudySpec
from search_spaces.settings import TrainingSettings

RATES = (0.001, 0.002, 0.004, 0.007, 0.012, 0.02, 0.035)
SEEDS = (100, 101)
SWEEPS = 5
WIDTHS, LENGTHS, BATCHES = (32, 64), (2048, 8192), (16, 32, 64)
FULL = {"global_batch_size": 128, "width": 128, "samples": 16384}
PARAMETRIZATIONS: Mapping[str, Mapping[str, Any]] = {
    "standard": {},
    "mup": {"parametrization": "mup", "base_width": 32},
}


def study(parametrization: str, number: int) -> StudySpec:
    """One sweep; its number is in its name, from which the sampler draws."""
    return StudySpec.from_dict(
        {
            "name": f"{parametrization}-{number}",
            "workload": "language",
            "data": {
                "source": "python",
                "sequence_length": 64,
                "train_samples": 2048,
                "evaluation_samples": 64,
                **PARAMETRIZATIONS[parametrization],
            },
            "target": {"metric": "loss", "best_within": {"samples": FULL["samples"]}},
            "ladder": {
                "global_batch_size": list(BATCHES),
                "width": list(WIDTHS),
                "samples": list(LENGTHS),
            },
            "full_scale": FULL,
            "search": {
                "optimizer": "adamw",
                "learning_rate": {"log_uniform": [0.0005, 0.1], "role": "scaled"},
            },
            "budget": {"trials": 48},
        }
    )


def trained(parametrization: str, rate: float, seed: int) -> float:
    """The best loss of one training at the full scale."""
    import torch

    from trainers.begin import begin_training

    torch.set_num_threads(1)
    settings = TrainingSettings(optimizer="adamw", learning_rate=rate)
    job = training_job(study(parametrization, 0), settings, FULL["global_batch_size"], seed)
    training = begin_training(job)
    best = math.inf
    while not training.finished:
        point = training.advance()
        best = min(best, math.inf if point is None else float(point.metric))
    return best


@dataclass(frozen=True)
class Scored:
    """One sweep's forecast; ``regrets`` are those of its rate and of the others, in loss."""

    parametrization: str
    told: float
    low: float
    high: float
    truth: float
    rate: float
    rate_held: bool
    cost: float
    regrets: Mapping[str, float]


def score(parametrization: str, number: int, folder: Path, losses: Sequence[float]) -> Scored:
    """The forecast of one sweep beside the grid's ``losses``."""
    spec = study(parametrization, number)
    result = hpo.run_study(spec, f"sqlite:///{folder / 'sweeps.db'}", folder=folder)
    made = result.forecast
    assert made is not None and made.numbers.best is not None
    curve = np.polynomial.Polynomial.fit(np.log(RATES), np.log(losses), 3)
    grid = np.linspace(math.log(RATES[0]), math.log(RATES[-1]), 400)
    best = float(grid[np.argmin(curve(grid))])
    least = float(curve(best))

    def regret(rate: float) -> float:
        at = min(max(math.log(rate), float(grid[0])), float(grid[-1]))
        return float(np.expm1(curve(at) - least))

    largest = [
        trial
        for trial in result.trials
        if dict(point_of(spec, trial.settings)) == {"width": 64, "training_samples": 8192}
        and spec.question.need(trial) is not None
        and trial.global_batch_size == BATCHES[-1]
    ]
    alone = float(
        min(largest, key=lambda trial: trial.best_metric or math.inf).settings["learning_rate"]
    )
    model, length = (FULL["width"] / 64) ** 2, FULL["samples"] / 8192
    settings, ends = made.numbers.settings["learning_rate"], made.numbers.best.interval
    cost = math.fsum(
        relative_cost(point_of(spec, trial.settings))
        / relative_cost(full_point(spec))
        * (trial.samples or 0)
        / trial.settings["training_samples"]
        for trial in result.trials
    )
    return Scored(
        parametrization,
        ends.median,
        ends.low,
        ends.high,
        float(np.exp(curve(math.log(settings.median)))),
        settings.median,
        settings.low <= math.exp(best) <= settings.high,
        cost,
        {
            "forecast": regret(settings.median),
            "left alone": regret(alone),
            "square root of the batch": regret(alone * math.sqrt(FULL["global_batch_size"] / 64)),
            "Step Law": regret(alone * model**-0.713 * length**0.307),
        },
    )


def tables(found: Sequence[Scored], losses: Mapping[str, Sequence[float]]) -> str:
    """The grids, every sweep, and the means, in Markdown."""
    lines = [
        f"| rate | {' | '.join(f'{rate:g}' for rate in RATES)} |",
        "|---|" + "--:|" * len(RATES),
    ]
    lines += [
        f"| {name} | {' | '.join(f'{loss:.3f}' for loss in each)} |"
        for name, each in losses.items()
    ]
    names = list(found[0].regrets)
    lines += [
        "",
        f"| | told (90 %) | trained at that rate | held | rate | holds the best | cost | {' | '.join(names)} |",
        "|---|---|--:|---|--:|---|--:|" + "--:|" * len(names),
    ]
    for each in found:
        held = each.low <= each.truth <= each.high
        lines.append(
            f"| {each.parametrization} | {each.told:.3f} ({each.low:.3f} to {each.high:.3f}) | {each.truth:.3f} "
            f"| {'yes' if held else 'no'} | {each.rate:.4f} | {'yes' if each.rate_held else 'no'} | {each.cost:.2f} "
            f"| {' | '.join(f'{each.regrets[name]:.2%}' for name in names)} |"
        )
    for name in losses:
        own = [each for each in found if each.parametrization == name]
        held = sum(each.low <= each.truth <= each.high for each in own)
        means = " | ".join(
            f"{statistics.fmean(each.regrets[rule] for each in own):.2%}" for rule in names
        )
        lines.append(
            f"| {name}, mean | | | {held} of {len(own)} | | {sum(each.rate_held for each in own)} of {len(own)} "
            f"| {statistics.fmean(each.cost for each in own):.2f} | {means} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Train the grids, sweep, forecast and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    file = arguments.folder / "grid.json"
    known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    wanted = [
        each
        for each in itertools.product(PARAMETRIZATIONS, RATES, SEEDS)
        if repr(each) not in known
    ]
    with ProcessPoolExecutor(arguments.processes) as pool:
        for each, loss in zip(
            wanted, pool.map(trained, *zip(*wanted, strict=True)) if wanted else (), strict=True
        ):
            known[repr(each)] = loss
            file.write_text(json.dumps(known))
    losses = {
        name: [
            statistics.fmean(known[repr((name, rate, seed))] for seed in SEEDS) for rate in RATES
        ]
        for name in PARAMETRIZATIONS
    }
    found = [
        score(name, number, arguments.folder, losses[name])
        for name in PARAMETRIZATIONS
        for number in range(SWEEPS)
    ]
    print(tables(found, losses))


if __name__ == "__main__":
    main()
