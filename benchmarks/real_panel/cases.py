"""The cases of the panel with their search spaces and targets; fixed before any forecast was seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.image_subset import link_subset
from hpo.study.spec import StudySpec

TIMES = (4, 8)
"""The target batches, as multiples of the top rung."""

TRAIN_CLASS_SIZE, TEST_CLASS_SIZE = 256, 100
"""CIFAR-10 images per class."""

_SGD = {"optimizer": "sgd", "momentum": 0.9}
WORKLOADS = "benchmarks.real_panel.workloads"


@dataclass(frozen=True)
class Case:
    """One workload with one optimizer.

    ``search`` holds the fixed and searched settings besides the warmup. ``epochs`` is the budget of one run on the
    ladder, and ``epochs_beyond`` that of one at the target batches: a run that has not reached the target by then is
    lost. ``samplers`` maps each sampler to its number of sweeps, and ``seeds`` is the number of runs per
    recommendation. Brute force tries ``grid_rates`` learning rates from ``grid_from`` on, each ``grid_step`` times the
    previous, with ``grid_warmups`` warmups each; a case without ``grid_from`` is compared with the best of
    ``optimum_of``. A ``held_out`` case was not inspected while the laws were developed.
    """

    workload: str
    optimizer: str
    class_name: str
    data: Mapping[str, Any]
    metric: str
    target: float
    ladder: tuple[int, ...]
    rates: tuple[float, float]
    search: Mapping[str, Any]
    epochs: float = 40
    epochs_beyond: float = 80
    evaluations_per_epoch: int = 4
    trials: int = 48
    samplers: Mapping[str, int] = field(default_factory=lambda: {"tpe": 3})
    warmup_epochs: tuple[float, float] = (0.0, 5.0)
    seeds: int = 5
    grid_from: float | None = None
    grid_rates: int = 8
    grid_step: float = 1.6
    grid_warmups: int = 4
    optimum_of: str | None = None
    held_out: bool = False

    @property
    def name(self) -> str:
        """The name of the case: ``workload-optimizer``."""
        return f"{self.workload}-{self.optimizer}"

    @property
    def batches(self) -> tuple[int, ...]:
        """The target batches."""
        return tuple(times * self.ladder[-1] for times in TIMES)

    def specs(self) -> Iterator[StudySpec]:
        """Yield the sweeps. The study's name seeds the sampler, so that every sweep differs."""
        for sampler, count in self.samplers.items():
            for number in range(count):
                yield self.spec(sampler, number)

    def spec(self, sampler: str, number: int) -> StudySpec:
        """Return the study spec of one sweep."""
        return StudySpec.from_dict(
            {
                "name": f"{self.name}-{sampler}-{number}",
                "workload": f"{WORKLOADS}:{self.class_name}",
                "data": dict(self.data),
                "target": {"metric": self.metric, "at_least": self.target},
                "ladder": list(self.ladder),
                "search": {
                    "learning_rate": {"log_uniform": list(self.rates), "role": "scaled"},
                    "warmup_epochs": {"uniform": list(self.warmup_epochs), "role": "scaled"},
                    **self.search,
                },
                "budget": {
                    "trials": self.trials,
                    "epochs_per_trial": self.epochs,
                    "evaluations_per_epoch": self.evaluations_per_epoch,
                },
                "seeds": 2,
                "sampler": sampler,
            }
        )


def panel(images: Path | None, output: Path) -> list[Case]:
    """Return all cases, including CIFAR-10 if ``images`` is its folder; links to the used images go to ``output``."""
    found = [*_digits(), *_cells(), *_climate(), *_text()]
    return found if images is None else [*found, *_cifar(cifar_subset(images, output))]


def cifar_subset(images: Path, output: Path) -> Path:
    """Link 2,560 training and 1,000 test images of CIFAR-10 into a folder in ``output``, and return it."""
    return link_subset(images, output / "images", train=TRAIN_CLASS_SIZE, test=TEST_CLASS_SIZE)


def image_data(images: Path) -> dict[str, Any]:
    """Return the options of a workload that reads the images in a folder at 16x16 pixels, without augmentation."""
    return {
        "source": "image_folder",
        "path": str(images.absolute()),
        "image_size": 16,
        "augment": False,
    }


def _digits() -> Iterator[Case]:
    """Yield cases on scikit-learn's digits (1,437 to train, randomly shifted by a pixel): a network with batch norm."""
    common: dict[str, Any] = {
        "workload": "digits",
        "class_name": "Images",
        "data": {"source": "digits", "network": "normalized"},
        "metric": "top1",
        "target": 0.94,
        "ladder": (16, 32, 64, 128),
        "samplers": {"tpe": 5},
    }
    group = {"normalization_batch_size": 16}
    yield Case(
        **common, optimizer="sgd", rates=(0.01, 2.0), grid_from=0.256, search={**_SGD, **group}
    )
    yield Case(
        **common,
        optimizer="sgd_momentum",
        rates=(0.01, 2.0),
        optimum_of="digits-sgd",
        search={
            "optimizer": "sgd",
            "momentum": {"uniform": [0.5, 0.98], "role": "scaled"},
            **group,
        },
    )
    yield Case(
        **common,
        optimizer="lars",
        rates=(0.5, 50.0),
        grid_from=3.2,
        search={"optimizer": "lars", "momentum": 0.9, **group},
    )
    yield Case(
        **common,
        optimizer="adamw",
        rates=(0.001, 0.1),
        grid_from=0.01024,
        search={"optimizer": "adamw", **group},
    )


def _cifar(images: Path) -> Iterator[Case]:
    """Yield cases on 2,560 CIFAR-10 images of 16x16 pixels, with batch norm and without it (plain, dense)."""
    common: dict[str, Any] = {
        "class_name": "Images",
        "metric": "top1",
        "evaluations_per_epoch": 2,
        "ladder": (16, 32, 64, 128),
    }
    data = image_data(images)
    plain = {
        **common,
        "workload": "plain",
        "data": {**data, "network": "plain"},
        "target": 0.36,
        "samplers": {"tpe": 1},
    }
    yield Case(**plain, optimizer="sgd", rates=(0.002, 0.5), grid_from=0.048, search=_SGD)
    yield Case(
        **plain,
        optimizer="adamw",
        rates=(3e-4, 0.03),
        grid_from=0.00256,
        search={"optimizer": "adamw"},
    )
    dense = {
        **plain,
        "workload": "dense",
        "data": {**data, "network": "dense"},
        "samplers": {"tpe": 3, "forecast": 1},
    }
    yield Case(**dense, optimizer="sgd", rates=(0.002, 0.5), grid_from=0.05, search=_SGD)
    yield Case(
        **dense,
        optimizer="adamw",
        rates=(3e-4, 0.03),
        grid_from=0.003,
        search={"optimizer": "adamw"},
    )
    yield Case(
        **dense,
        optimizer="lars",
        rates=(0.02, 5.0),
        grid_from=0.1,
        held_out=True,
        search={"optimizer": "lars", "momentum": 0.9, "trust_coefficient": 0.02},
    )
    yield from _of_today(dense, (3e-4, 0.03))
    normalized = {
        **common,
        "workload": "cifar",
        "data": {**data, "network": "normalized"},
        "target": 0.38,
    }
    group = {"normalization_batch_size": 16}
    yield Case(
        **normalized, optimizer="sgd", rates=(0.005, 1.0), grid_from=0.08, search={**_SGD, **group}
    )
    yield Case(
        **normalized,
        optimizer="adamw",
        rates=(0.001, 0.1),
        grid_from=0.004,
        held_out=True,
        search={"optimizer": "adamw", **group},
    )


def _cells() -> Iterator[Case]:
    """Yield cases on the project's example of a custom workload: a perceptron trained on 427 tumours."""
    common: dict[str, Any] = {
        "workload": "cells",
        "class_name": "Cells",
        "data": {},
        "metric": "accuracy",
        "target": 0.98,
        "ladder": (4, 8, 16),
        "evaluations_per_epoch": 8,
        "warmup_epochs": (0.0, 2.0),
        "samplers": {"tpe": 5},
        "held_out": True,
    }
    group = {"normalization_batch_size": 1}  # there is no batch norm
    yield Case(
        **common, optimizer="sgd", rates=(0.001, 1.0), grid_from=0.131072, search={**_SGD, **group}
    )
    yield Case(
        **common,
        optimizer="adamw",
        rates=(0.001, 0.3),
        grid_from=0.005,
        search={"optimizer": "adamw", **group},
    )


def _climate() -> Iterator[Case]:
    """Yield the case on generated climate fields with a small DeepLabv3+: a smaller examples/climate.yaml."""
    yield Case(
        workload="climate",
        optimizer="adam",
        class_name="Climate",
        metric="iou",
        target=0.62,
        ladder=(4, 8, 16),
        data={
            "source": "generated",
            "samples": 128,
            "evaluation_samples": 32,
            "height": 24,
            "width": 36,
            "model": "deeplabv3plus_small",
            "prior_bias": True,
        },
        rates=(0.001, 0.03),
        warmup_epochs=(0.0, 2.0),
        trials=18,
        evaluations_per_epoch=2,
        samplers={"tpe": 2},
        seeds=3,
        held_out=True,
        search={
            "optimizer": "adam",
            "class_weighting": "inverse_eighth_root",
            "normalization_batch_size": 4,
        },
    )


def _text() -> Iterator[Case]:
    """Yield cases on next-character prediction in English text, 2,048 windows of 16: a transformer with layer norm."""
    common: dict[str, Any] = {
        "workload": "text",
        "class_name": "Text",
        "data": {"samples": 2048},
        "metric": "accuracy",
        "target": 0.34,
        "ladder": (16, 32, 64, 128),
        "evaluations_per_epoch": 2,
        "samplers": {"tpe": 2},
        "held_out": True,
    }
    group = {"normalization_batch_size": 1}  # there is no batch norm
    yield Case(
        **common, optimizer="adamw", rates=(3e-4, 0.1), search={"optimizer": "adamw", **group}
    )
    yield Case(**common, optimizer="lamb", rates=(1e-3, 0.3), search={"optimizer": "lamb", **group})
    yield from _of_today(common, (3e-4, 0.1), group)


def _of_today(
    common: Mapping[str, Any],
    adamw_rates: tuple[float, float],
    fixed: Mapping[str, Any] | None = None,
) -> Iterator[Case]:
    """Yield cases with Muon, its rate scaled to match AdamW's, and Schedule-Free AdamW with rates 3 times as high."""
    low, high = adamw_rates
    for optimizer, rates in (("muon", (low, high)), ("schedule_free_adamw", (3 * low, 3 * high))):
        yield Case(
            **{**common, "samplers": {"tpe": 2}, "held_out": True},
            optimizer=optimizer,
            rates=rates,
            search={"optimizer": optimizer, **(fixed or {})},
        )
