"""Real training runs on a grid of learning rates and warmups at every rung and at the target batch, with full curves.

They are the lookup tables on which searches are simulated. Runs are stored as JSON lines, one file for each case, and
an interrupted grid can be resumed: the next run depends only on the stored ones.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.real_panel.cases import Case
from benchmarks.real_panel.trainings import rounded, train_samples
from benchmarks.real_panel.trainings import workload as workload_of
from hpo.study.jobs import training_job
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training

RATES = 9
"""Learning rates of a grid, evenly spaced in their logarithm over the range that the case searches."""

WARMUPS = {"ladder": 3, "target": 5}
"""Warmups of a grid, from two updates to ``WHOLE`` times the fewest epochs at the batch size, evenly spaced in log."""

WHOLE = 1.2
SEEDS = 2
PROBES = 0
"""The seed of the first runs at a batch size: all rates with one warmup, to determine how long the other runs must
be."""

BUDGET = 5.0
"""Budget of a run, in multiples of the fewest epochs at its batch size."""


@dataclass(frozen=True)
class Whole:
    """One run with its full curve; ``state`` is "reached", "diverged" or "censored" (by its budget).

    After ``epochs``, the evaluation gave ``metric`` and ``loss``; ``train_loss`` is the mean since the previous
    evaluation. ``budget`` is the run's budget in epochs.
    """

    case: str
    global_batch_size: int
    settings: Mapping[str, float]
    seed: int
    state: str
    budget: float
    epochs: tuple[float, ...]
    metric: tuple[float, ...]
    loss: tuple[float, ...]
    train_loss: tuple[float, ...]

    @property
    def lost(self) -> bool:
        """Whether the run did not reach the target."""
        return self.state != "reached"

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the requested run."""
        return (self.global_batch_size, *sorted(self.settings.items()), self.seed)


def read(case: str, folder: Path) -> list[Whole]:
    """Return the stored runs of a case in a folder."""
    file = folder / f"{case}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [Whole(**json.loads(line)) for line in lines]


def batches(case: Case) -> tuple[int, ...]:
    """Return the rungs and the target batch size, which is the lower of the panel's two."""
    return (*case.ladder, case.batches[0])


def train_missing(case: Case, folder: Path) -> None:
    """Train every run of the grid that is missing from the folder, one after the other."""
    held = read(case.name, folder)
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.process_time()
    for count, (batch, settings, seed, budget) in enumerate(_wanted(case, held), start=1):
        done = train(case, batch, settings, seed, budget)
        held.append(done)
        with (folder / f"{case.name}.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(dataclasses.asdict(done)) + "\n")
        if count % 50 == 0:
            print(
                f"{case.name}: {len(held)} runs, batch {batch}, "
                f"{time.process_time() - begun:.0f} s",
                flush=True,
            )
    print(f"{case.name}: {len(held)} runs, complete", flush=True)


def complete(case: Case, held: Sequence[Whole]) -> bool:
    """Return whether no run of the grid is missing."""
    return bool(held) and next(_wanted(case, list(held)), None) is None


def train(
    case: Case, global_batch_size: int, settings: Mapping[str, float], seed: int, budget: float
) -> Whole:
    """Train one run with the project's own loop, until it reaches the target or the budget in epochs."""
    spec = next(case.specs())
    run = begin_training(
        training_job(
            spec,
            TrainingSettings.from_dict({**spec.search.fixed, **settings}),
            global_batch_size,
            seed,
            epochs=budget,
        ),
        workload=workload_of(case),
    )
    points = []
    while not run.finished:
        points.append(run.advance())
    return Whole(
        case.name,
        global_batch_size,
        dict(settings),
        seed,
        run.outcome.state,
        round(budget, 4),
        tuple(round(point.epochs, 4) for point in points),
        *(
            tuple(_short(getattr(point, name)) for point in points)
            for name in ("metric", "loss", "train_loss")
        ),
    )


def _wanted(case: Case, held: list[Whole]) -> Iterator[tuple[int, dict[str, float], int, float]]:
    """Yield the batch size, settings, seed and budget of the next run, while ``held`` grows."""
    rates = np.geomspace(*case.rates, RATES)
    before: float | None = None
    for batch in batches(case):
        grown = (
            1.0
            if batch == case.ladder[0]
            else batch / max(rung for rung in case.ladder if rung < batch)
        )
        most = case.epochs if before is None else BUDGET * before * math.sqrt(grown) * 1.5
        first = round((before or 1.0) / 4, 3)
        middle_out = sorted(range(RATES), key=lambda at: abs(at - _expected(case, held, batch)))
        probes = [
            rounded({"learning_rate": float(rates[at]), "warmup_epochs": first})
            for at in middle_out
        ]
        for settings in probes:
            yield from _unless_held(held, batch, settings, PROBES, _budget(held, batch, most))
        # the grid depends only on the probes, so that it stays the same while it is trained
        probed = [each for each in held if each.global_batch_size == batch and each.seed == PROBES]
        least = fewest(probed, batch)
        if least is None:
            raise ValueError(
                f"no probe of {case.name} reached the target at batch {batch} within {most:.3g} epochs"
            )
        updates = train_samples(case) / batch
        kind = "target" if batch == case.batches[0] else "ladder"
        warmups = np.geomspace(2 / updates, max(WHOLE * least, 4 / updates), WARMUPS[kind])
        lowest = min(each.settings["learning_rate"] for each in probed if not each.lost)
        for seed in range(SEEDS):
            for at in middle_out:
                # rates two or more steps below every rate that reaches the target would only be slower
                if at + 1 < RATES and float(rates[at + 1]) < 0.99 * lowest:
                    continue
                for warmup in warmups:
                    settings = rounded(
                        {"learning_rate": float(rates[at]), "warmup_epochs": float(warmup)}
                    )
                    yield from _unless_held(
                        held, batch, settings, seed + 1, _budget(held, batch, most)
                    )
        before = fewest(held, batch)


def _unless_held(
    held: Sequence[Whole], batch: int, settings: dict[str, float], seed: int, budget: float
) -> Iterator[tuple[int, dict[str, float], int, float]]:
    key = (batch, *sorted(settings.items()), seed)
    if all(each.key != key for each in held):
        yield batch, settings, seed, budget


def fewest(held: Sequence[Whole], batch: int) -> float | None:
    """Return the epochs of the second-fastest run at a batch size, as the fastest of many is biased low."""
    reached = sorted(
        each.epochs[-1] for each in held if each.global_batch_size == batch and not each.lost
    )
    return reached[min(1, len(reached) - 1)] if reached else None


def _budget(held: Sequence[Whole], batch: int, most: float) -> float:
    least = fewest(held, batch)
    return most if least is None else min(most, BUDGET * least)


def _expected(case: Case, held: Sequence[Whole], batch: int) -> float:
    """Return the grid position of the expected best rate: the rung below's, scaled by the square root of the batch."""
    below = [each for each in held if each.global_batch_size < batch and not each.lost]
    if not below:
        return (RATES - 1) / 2
    rung = max(each.global_batch_size for each in below)
    best = min(
        (each for each in below if each.global_batch_size == rung), key=lambda each: each.epochs[-1]
    )
    step = math.log(case.rates[1] / case.rates[0]) / (RATES - 1)
    rate = math.log(best.settings["learning_rate"]) + 0.5 * math.log(batch / rung)
    return (rate - math.log(case.rates[0])) / step


def _short(value: float) -> float:
    return float(f"{value:.4g}") if math.isfinite(value) else 1e30
