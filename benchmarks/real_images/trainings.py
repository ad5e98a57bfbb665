"""The brute force at the target batch: real trainings, stored as JSON lines, and their optimum."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_images.cases import Case
from hpo.study.jobs import training_job
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.workloads import load_workload

FIRST_SEED = 100  # seeds from here on: the sweeps train with smaller ones
NEAR = 1.75  # factor around the best rate: more seeds are trained and a parabola is fitted there
GOOD = 1.05  # times the fewest epochs, up to which a rate is good
BOOTSTRAPS = 2000


@dataclass(frozen=True)
class Training:
    """One training at the target batch; ``curve`` is its top-1 after ``curve_epochs`` epochs."""

    learning_rate: float
    seed: int
    state: str
    epochs: float
    samples: float
    curve_epochs: Sequence[float]
    curve: Sequence[float]


@dataclass(frozen=True)
class Optimum:
    """The best learning rate and its epochs (geometric mean), with 90 % intervals by bootstrap over seeds.

    ``good`` is the range of rates that cost at most 5 % more epochs, within the fitted range.
    """

    learning_rate: float
    rates: tuple[float, float]
    epochs: float
    epochs_interval: tuple[float, float]
    good: tuple[float, float]


def read(file: Path) -> list[Training]:
    """Return the trainings in a file."""
    return (
        [Training(**json.loads(line)) for line in file.read_text().splitlines()]
        if file.exists()
        else []
    )


def train_missing(case: Case, recommended: Sequence[float], file: Path) -> None:
    """Run every training of the brute force and the recommended rates that is not in ``file``."""
    train = _trainer(case)
    while missing := _missing(case, recommended, read(file)):
        for rate, seed in missing:
            done = train(rate, seed)
            with file.open("a") as lines:
                lines.write(json.dumps(dataclasses.asdict(done)) + "\n")
            print(
                f"{case.name}: rate {rate:.4g}, seed {seed}: {done.state} after {done.epochs:.4g} epochs",
                flush=True,
            )


def by_rate(trainings: Iterable[Training]) -> dict[float, list[Training]]:
    """Return the trainings of each learning rate, from low to high."""
    found: dict[float, list[Training]] = defaultdict(list)
    for training in trainings:
        found[training.learning_rate].append(training)
    return dict(sorted(found.items()))


def optimum(case: Case, trainings: Sequence[Training]) -> Optimum:
    """Return the vertex of a parabola in the log rate through the log epochs near the best rate of the grid."""
    logs = _reached(case, trainings)
    rng = np.random.default_rng(0)
    drawn = [
        _lowest({rate: rng.choice(values, len(values)) for rate, values in logs.items()})
        for _ in range(BOOTSTRAPS)
    ]
    rate, epochs, good = _lowest(logs)
    rates, means = (
        np.quantile([each[part] for each in drawn], (0.05, 0.95)).tolist() for part in (0, 1)
    )
    return Optimum(rate, (rates[0], rates[1]), epochs, (means[0], means[1]), good)


def _missing(
    case: Case, recommended: Sequence[float], held: Sequence[Training]
) -> list[tuple[float, int]]:
    have = {(training.learning_rate, training.seed) for training in held}
    wanted = [(rate, case.seeds) for rate in case.grid]
    missing = _not_in(have, wanted)
    if missing:
        return missing
    best = _best(_reached(case, held))
    near = [rate for rate in case.grid if max(rate / best, best / rate) <= NEAR]
    return _not_in(have, [(rate, case.more_seeds) for rate in (*near, *recommended)])


def _not_in(
    have: set[tuple[float, int]], wanted: Iterable[tuple[float, int]]
) -> list[tuple[float, int]]:
    asked = dict.fromkeys(
        (rate, FIRST_SEED + number) for rate, seeds in wanted for number in range(seeds)
    )
    return sorted((each for each in asked if each not in have), key=lambda each: each[1])


def _trainer(case: Case) -> Callable[[float, int], Training]:
    spec = next(case.specs())
    workload = load_workload(spec.workload, spec.data)

    def train(rate: float, seed: int) -> Training:
        settings = TrainingSettings.from_dict({**spec.search.fixed, "learning_rate": rate})
        run = begin_training(training_job(spec, settings, case.batch, seed), workload=workload)
        points = []
        while not run.finished:
            points.append(run.advance())
        outcome = run.outcome
        return Training(
            rate,
            seed,
            outcome.state,
            outcome.epochs,
            points[-1].samples,
            [round(point.epochs, 4) for point in points],
            [round(point.metric, 4) for point in points],
        )

    return train


def _reached(case: Case, trainings: Sequence[Training]) -> dict[float, Any]:
    """Return the log epochs of the grid's rates at which every seed reached the target."""
    rates = {rate: each for rate, each in by_rate(trainings).items() if rate in case.grid}
    return {
        rate: np.log([training.epochs for training in each])
        for rate, each in rates.items()
        if all(training.state == "reached" for training in each)
    }


def _best(logs: Mapping[float, Any]) -> float:
    return min(logs, key=lambda rate: float(np.mean(logs[rate])))


def _lowest(logs: Mapping[float, Any]) -> tuple[float, float, tuple[float, float]]:
    """Return rate, epochs and range of good rates by a parabola near the best; those of the best rate without one."""
    best = _best(logs)
    near = {rate: values for rate, values in logs.items() if max(rate / best, best / rate) <= NEAR}
    x = np.concatenate(
        [np.full(len(values), math.log(rate / best)) for rate, values in near.items()]
    )
    level = float(np.mean(logs[best]))
    if len(near) < 3:
        return best, math.exp(level), (best, best)
    bend, slope, start = np.polyfit(x, np.concatenate(list(near.values())), 2)
    if bend <= 0:
        return best, math.exp(level), (best, best)
    at = float(np.clip(-slope / (2 * bend), x.min(), x.max()))
    width = math.sqrt(math.log(GOOD) / bend)
    low, high = (
        best * math.exp(float(np.clip(at + side, x.min(), x.max()))) for side in (-width, width)
    )
    return best * math.exp(at), math.exp(float(start + slope * at + bend * at * at)), (low, high)
