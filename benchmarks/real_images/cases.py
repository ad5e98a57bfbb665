"""The two cases: images, target, ladder, target batch and brute-force grid there; fixed before any forecast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.image_subset import link_subset
from hpo.study.spec import StudySpec

BEYOND = 8
"""The target batch over the top rung."""

SAMPLERS = ("forecast", "tpe")
CLASS_SIZE = 500
"""CIFAR-10 training images of each class."""


@dataclass(frozen=True)
class Case:
    """Images with a ladder, and the brute force at ``BEYOND`` times its top rung.

    ``rates`` is the searched range of learning rates, ``grid`` those tried at the target batch: each with ``seeds``
    seeds, those within a factor of 1.75 of the best and the recommended ones with ``more_seeds``. ``warmup_epochs`` is
    fixed, so that only the rate is tuned. ``epochs`` is the budget of one training.
    """

    name: str
    data: dict[str, Any]
    target: float
    ladder: tuple[int, ...]
    normalization_batch_size: int
    rates: tuple[float, float]
    grid: tuple[float, ...]
    warmup_epochs: float
    trials: int
    epochs: float
    sweeps: int
    seeds: int
    more_seeds: int

    @property
    def batch(self) -> int:
        """The target batch."""
        return BEYOND * self.ladder[-1]

    def specs(self, samplers: Sequence[str] = SAMPLERS) -> Iterator[StudySpec]:
        """Yield the sweeps, ``sweeps`` for each sampler. The study's name seeds the sampler."""
        for sampler in samplers:
            for number in range(self.sweeps):
                yield self._spec(sampler, number)

    def _spec(self, sampler: str, number: int) -> StudySpec:
        return StudySpec.from_dict(
            {
                "name": f"{self.name}-{sampler}-{number}",
                "workload": "resnet",
                "data": self.data,
                "target": {"metric": "top1", "at_least": self.target},
                "ladder": list(self.ladder),
                "full_scale": {"global_batch_size": self.batch},
                "search": {
                    "optimizer": "sgd",
                    "momentum": 0.9,
                    "warmup_epochs": self.warmup_epochs,
                    "normalization_batch_size": self.normalization_batch_size,
                    "learning_rate": {"log_uniform": list(self.rates), "role": "scaled"},
                },
                "budget": {"trials": self.trials, "epochs_per_trial": self.epochs},
                "seeds": 2,
                "sampler": sampler,
            }
        )


def digits() -> Case:
    """Return the case of scikit-learn's digits, 1,437 to train: 8 to 64, then 512."""
    return Case(
        "digits",
        {"source": "digits"},
        target=0.96,
        ladder=(8, 16, 32, 64),
        normalization_batch_size=8,
        rates=(0.01, 3.0),
        grid=_grid(0.01, 3.0),
        warmup_epochs=1.0,
        trials=48,
        epochs=40,
        sweeps=3,
        seeds=3,
        more_seeds=10,
    )


def cifar10(images: Path, output: Path) -> Case:
    """Return the case of 500 CIFAR-10 images per class, at 16x16: 16 to 64, then 512. ``output`` gets links to them."""
    subset = link_subset(images, output / "cifar10", train=CLASS_SIZE, test=None)
    data = {
        "source": "image_folder",
        "path": str(subset.absolute()),
        "image_size": 16,
        "model": "resnet8",
        "width": 8,
    }
    return Case(
        "cifar10",
        data,
        target=0.42,
        ladder=(16, 32, 64),
        normalization_batch_size=16,
        rates=(0.005, 3.0),
        grid=_grid(0.1, 3.0),
        warmup_epochs=1.0,
        trials=30,
        epochs=32,
        sweeps=1,
        seeds=3,
        more_seeds=5,
    )


def _grid(low: float, high: float) -> tuple[float, ...]:
    count = round(np.log(high / low) / np.log(1.3)) + 1
    return tuple(float(f"{rate:.4g}") for rate in np.geomspace(low, high, count))
