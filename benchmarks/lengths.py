"""Forecasts of longer language model trainings from short ones: python -m benchmarks.lengths FOLDER [--only NAME ...].

Each case trains small byte-level transformers at several batches, widths and lengths, at two rates near the best of
the next cheaper ones, and forecasts the loss of a training 4 or 8 times as long, at the largest width seen or twice
that. It is compared with the best of four rates there, by the mean of two further seeds. FOLDER keeps the trainings; a
second call continues. It takes ten minutes on one free core.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpo.extrapolation.evidence.evidence import Evidence, TrainingObservation
from hpo.extrapolation.evidence.stored import tuned_settings_of_space
from hpo.extrapolation.forecast import forecast
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.inference.posterior import fit
from hpo.study.jobs import training_job
from hpo.study.sizes import Point, full_scale_sizes, points, relative_cost, transferred_sizes
from hpo.study.spec import StudySpec
from search_spaces.settings import TrainingSettings

FIRST, AFTER = (0.25, 0.5, 1.0, 2.0), ((1.0, 1.5), (1.0, 1 / 1.5))
"""Multiples of the middle rate at the smallest size, and of the best rate of the next cheaper size at the others."""
AT_FULL_SCALE = (0.35, 0.6, 1.0, 1.7)
SEEDS = (101, 102)
ENGLISH = "topics.py"
"""The help texts of Python's library, in English: half a megabyte."""


@dataclass(frozen=True)
class Case:
    """``rate`` is the middle rate of the smallest size; ``sizes`` are those of the ladder and of the full scale."""

    name: str
    optimizer: Mapping[str, Any]
    rate: float
    sizes: Mapping[str, tuple[Sequence[int], int]]
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def study(self) -> StudySpec:
        """Return the study of these trainings."""
        length = self.sizes["samples"][1]
        return StudySpec.from_dict(
            {
                "name": self.name,
                "workload": "language",
                "data": {
                    "source": "python",
                    "sequence_length": 64,
                    "train_samples": 4096,
                    "evaluation_samples": 64,
                    **self.data,
                },
                "target": {"metric": "loss", "best_within": {"samples": length}},
                "ladder": {name: list(seen) for name, (seen, _) in self.sizes.items()},
                "full_scale": {name: full for name, (_, full) in self.sizes.items()},
                "search": {
                    **self.optimizer,
                    "learning_rate": {
                        "log_uniform": [self.rate / 20, self.rate * 20],
                        "role": "scaled",
                    },
                },
                "budget": {"trials": 1000},
                "sampler": "tpe",
            }
        )


def english() -> str:
    """Return the path of Python's help texts."""
    import pydoc_data

    return str(Path(next(iter(pydoc_data.__path__)), ENGLISH))


ADAMW, SGD = {"optimizer": "adamw"}, {"optimizer": "sgd", "momentum": 0.9}


def cases() -> tuple[Case, ...]:
    """Return the cases, with widths, texts and optimizers that were not used to develop any law."""
    text = {"source": "text", "path": english()}
    longer = {"global_batch_size": ((16, 32, 64), 64)}
    return (
        Case(
            "English, wider and 4 times as long",
            ADAMW,
            0.02,
            {**longer, "width": ((16, 32), 64), "samples": ((1024, 2048), 8192)},
            text,
        ),
        Case(
            "SGD, wider and 4 times as long",
            SGD,
            0.4,
            {**longer, "width": ((16, 32), 64), "samples": ((1024, 2048), 8192)},
        ),
        Case(
            "8 times as long",
            ADAMW,
            0.02,
            {**longer, "width": ((32,), 32), "samples": ((512, 1024, 2048), 16384)},
        ),
        Case(
            "English, SGD, 4 times as long",
            SGD,
            0.4,
            {**longer, "width": ((48,), 48), "samples": ((1024, 2048, 4096), 16384)},
            text,
        ),
    )


class Trainings:
    """The trainings, stored in a file: the best loss of each, infinite if it diverged."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}

    def loss(self, case: Case, point: Point, batch: int, rate: float, seed: int) -> float:
        """Return the best loss of one training, which is run if it is not stored."""
        key = repr((case.name, point, batch, float(f"{rate:.6g}"), seed))
        if key not in self._known:
            self._known[key] = _train(case, point, batch, float(f"{rate:.6g}"), seed)
            self._file.write_text(json.dumps(self._known))
        return self._known[key]


def _train(case: Case, point: Point, batch: int, rate: float, seed: int) -> float:
    import torch

    from trainers.begin import begin_training

    torch.set_num_threads(1)
    spec = case.study()
    settings = dataclasses.replace(
        TrainingSettings.from_dict({**spec.search.fixed, "learning_rate": rate}), own=dict(point)
    )
    training = begin_training(training_job(spec, settings, batch, seed))
    metrics = []
    while not training.finished:
        told = training.advance()
        metrics.append(math.inf if told is None else float(told.metric))
    training.close()
    return min((each for each in metrics if math.isfinite(each)), default=math.inf)


def sweep(case: Case, trainings: Trainings) -> Iterator[tuple[Point, int, float, float]]:
    """Yield size, batch, rate and loss of every training of the ladder, the cheapest size first."""
    spec = case.study()
    best: dict[int, float] = {}
    seeds = itertools.count(1)
    ordered = sorted(points(spec), key=lambda point: relative_cost(point, spec))
    for number, (point, batch) in enumerate(itertools.product(ordered, spec.ladder)):
        tried = (
            [times * case.rate for times in FIRST]
            if batch not in best
            else [times * best[batch] for times in AFTER[number % 2]]
        )
        losses = {rate: trainings.loss(case, point, batch, rate, next(seeds)) for rate in tried}
        best[batch] = min(losses, key=lambda rate: losses[rate])
        for rate, loss in losses.items():
            yield point, batch, rate, loss


def truth(case: Case, trainings: Trainings, near: float) -> float:
    """Return the full-scale loss of the best of four rates around ``near``: the mean of two further seeds."""
    spec = case.study()
    point, batch = full_scale_sizes(spec), spec.full_scale.global_batch_size
    losses = {
        times * near: trainings.loss(case, point, batch, times * near, 100)
        for times in AT_FULL_SCALE
    }
    best = min(losses, key=lambda rate: losses[rate])
    return statistics.fmean(trainings.loss(case, point, batch, best, seed) for seed in SEEDS)


def told(case: Case, swept: Sequence[tuple[Point, int, float, float]]) -> Interval:
    """Return the forecast of the loss at full scale."""
    spec = case.study()
    observations = [
        TrainingObservation(
            batch,
            "reached" if math.isfinite(loss) else "diverged",
            loss if math.isfinite(loss) else 0.0,
            {**spec.search.fixed, "learning_rate": rate, **dict(point)},
        )
        for point, batch, rate, loss in swept
    ]
    evidence = Evidence(
        observations,
        tuned=tuned_settings_of_space(spec.search),
        question=spec.question,
        full_scale={name: float(size) for name, size in full_scale_sizes(spec)},
        carried=transferred_sizes(spec),
    )
    posterior = fit(evidence, rng=np.random.default_rng(0))
    best = forecast(posterior, spec.full_scale.global_batch_size).best
    assert best is not None
    return best.interval


def main() -> None:
    """Train, forecast and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in cases()])
    parser.add_argument("--train", action="store_true", help="train only, and forecast nothing")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    trainings = Trainings(arguments.folder / "trainings.json")
    print(
        "| case | trainings | forecast (90 %) | trained | held |\n|---|--:|---|--:|---|", flush=True
    )
    for case in cases():
        if arguments.only and case.name not in arguments.only:
            continue
        swept = list(sweep(case, trainings))
        largest = [each for each in swept if each[:2] == swept[-1][:2]]
        trained = truth(case, trainings, min(largest, key=lambda each: each[3])[2])
        if arguments.train:
            print(f"| {case.name} | {len(swept)} | | | |", flush=True)
            continue
        ends = told(case, swept)
        print(
            f"| {case.name} | {len(swept)} | {ends.median:.3f} ({ends.low:.3f} to {ends.high:.3f}) "
            f"| {trained:.3f} | {'yes' if ends.low <= trained <= ends.high else 'no'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
