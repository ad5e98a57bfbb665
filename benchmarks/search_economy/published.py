"""Landscapes of published random-search runs: AlexNet on ImageNet, DeBERTa on MultiNLI (opda, CC BY-SA 4.0).

Only published settings can be trained: a search gets the nearest run that it has not had yet, and a second seed gives
the same curve.

AlexNet: six settings at batches of 128 to 1,024. They are the peak learning rate, the epochs of linear warmup to it,
the epochs after which it has decayed to zero (linearly; the run ends there), momentum, weight decay and label
smoothing. The loss is the loss on the training samples, as no other is published.

DeBERTa, fine-tuned with AdamW: four settings, the peak learning rate, the epochs of warmup, the epochs after which it
has decayed to zero, and dropout. Batch sizes range from 16 to 64, and those in the same third of the range count as
one. The loss is the share of wrong answers, as no other is published.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_panel.trainings import LOST_EPOCHS
from benchmarks.search_economy.protocol import Curve, Range, Settings

ALEXNET = {
    "learning_rate": Range(5e-3, 50.0, log=True),
    "warmup_epochs": Range(0.0, 100.0, log=False),
    "decay_epochs": Range(20.0, 100.0, log=False),
    "momentum": Range(0.7, 1.0, log=False),
    "weight_decay": Range(1e-6, 1e-3, log=True),
    "label_smoothing": Range(0.0, 0.5, log=False),
}
"""The randomly drawn settings and their ranges."""

DEBERTA = {
    "learning_rate": Range(1e-6, 1e-3, log=True),
    "warmup_epochs": Range(0.0, 0.6, log=False),
    "decay_epochs": Range(1.0, 4.0, log=False),
    "dropout": Range(0.0, 0.3, log=False),
}
DEBERTA_SAMPLES = 392_702
DEBERTA_BATCHES = {32: range(16, 33), 48: range(33, 49), 64: range(49, 65)}
"""The batch sizes that count as one, by nominal batch size."""

FEW = 3
"""Number of fastest runs whose geometric mean is the optimum, as the single fastest of many is biased low."""

Pool = Mapping[tuple[float, ...], Curve]
"""The curves of one batch, by their settings in the order of the ranges."""


class PublishedLandscape:
    """The runs of ``pools``, by batch size; the largest is the target. A lost run counts as ``lost_epochs``."""

    def __init__(
        self,
        name: str,
        target: float,
        pools: Mapping[int, Pool],
        ranges: Mapping[str, Range],
        *,
        train_samples: int,
        fixed: Mapping[str, object],
        lost_epochs: float,
    ) -> None:
        self.name, self.target, self.ranges = name, target, ranges
        self.train_samples, self.fixed = train_samples, fixed
        self._held, self._lost_epochs = pools, lost_epochs
        *ladder, self.target_batch = sorted(pools)
        self.ladder = tuple(ladder)
        reached = sorted(
            curve.epochs[-1]
            for curve in pools[self.target_batch].values()
            if curve.state == "reached"
        )
        if len(reached) < FEW:
            raise ValueError(
                f"at least {FEW} trainings at batch {self.target_batch} must reach the target, but "
                f"{len(reached)} reach {target}; choose a lower target"
            )
        self.optimum = math.exp(float(np.mean(np.log(reached[:FEW]))))

    def candidates(self, global_batch_size: int) -> Sequence[Settings]:
        """Return the settings that were trained at a batch."""
        return [dict(zip(self.ranges, key, strict=True)) for key in self._held[global_batch_size]]

    def most_epochs(self, global_batch_size: int) -> float:
        """Return the epochs of the longest published run."""
        return max(curve.epochs[-1] for curve in self._held[global_batch_size].values())

    def nearest(
        self, global_batch_size: int, settings: Settings, besides: Sequence[Settings] = ()
    ) -> dict[str, float]:
        """Return the nearest run in the unit cube of the ranges, excluding ``besides`` while there are others."""
        keys = list(self._held[global_batch_size])
        tried = {self._key(each) for each in besides}
        left = [key for key in keys if key not in tried] or keys
        there = np.array([self._place(dict(zip(self.ranges, key, strict=True))) for key in left])
        away = ((there - self._place(settings)) ** 2).sum(axis=1)
        return dict(zip(self.ranges, left[int(np.argmin(away))], strict=True))

    def train(self, global_batch_size: int, settings: Settings, seed: int) -> Curve:  # noqa: ARG002
        """Return the published curve, whatever the seed."""
        return self._held[global_batch_size][self._key(settings)]

    def regret(self, settings: Settings) -> float:
        """Return the regret of the run itself, as there is only one run with these settings."""
        curve = self._held[self.target_batch][self._key(settings)]
        epochs = curve.epochs[-1] if curve.state == "reached" else self._lost_epochs
        return math.log(epochs / self.optimum)

    def lost(self, settings: Settings) -> float:
        """Return 1 if the run with these settings was lost, else 0."""
        return float(self._held[self.target_batch][self._key(settings)].state != "reached")

    def _key(self, settings: Settings) -> tuple[float, ...]:
        return tuple(float(settings[name]) for name in self.ranges)

    def _place(self, settings: Settings) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the position in the unit cube of the ranges."""
        return np.array(
            [
                math.log(settings[name] / each.low) / math.log(each.high / each.low)
                if each.log
                else (settings[name] - each.low) / (each.high - each.low)
                for name, each in self.ranges.items()
            ]
        )


def alexnet(file: Path, batch: int = 1024, target: float = 0.4) -> PublishedLandscape:
    """Return AlexNet's runs up to a batch size, trained to a top-1 accuracy of ``target``."""
    pools: dict[int, dict[tuple[float, ...], Curve]] = {}
    for training in _lines(file):
        if int(training["batch_size"]) <= batch:
            key = tuple(alexnet_settings(training).values())
            pools.setdefault(int(training["batch_size"]), {})[key] = _alexnet_curve(
                training, target
            )
    return PublishedLandscape(
        f"alexnet-{batch}",
        target,
        pools,
        ALEXNET,
        train_samples=1_281_167,
        fixed={"optimizer": "sgd", "decay": "polynomial"},
        lost_epochs=LOST_EPOCHS,
    )


def deberta(file: Path, batch: int = 64, target: float = 0.87) -> PublishedLandscape:
    """Return DeBERTa's runs in a third of the batch sizes, to an accuracy of ``target``; lost runs count as 3x4."""
    pool = {
        tuple(deberta_settings(training).values()): _deberta_curve(training, target)
        for training in _lines(file)
        if training["train_batch_size"] in DEBERTA_BATCHES[batch]
    }
    return PublishedLandscape(
        f"deberta-{batch}",
        target,
        {batch: pool},
        DEBERTA,
        train_samples=DEBERTA_SAMPLES,
        fixed={"optimizer": "adamw", "decay": "polynomial"},
        lost_epochs=3 * DEBERTA["decay_epochs"].high,
    )


def alexnet_settings(training: Mapping[str, Any]) -> dict[str, float]:
    """Return the settings of a line of the published file, by the names of TrainingSettings."""
    return {
        "learning_rate": float(training["lr"]),
        "warmup_epochs": float(training["lr_peak_epoch"]),
        "decay_epochs": float(training["epochs"]),
        "momentum": float(training["momentum"]),
        "weight_decay": float(training["weight_decay"]),
        "label_smoothing": float(training["label_smoothing"]),
    }


def deberta_settings(training: Mapping[str, Any]) -> dict[str, float]:
    """Return the settings of a line of the published file; its warmup is in updates."""
    return {
        "learning_rate": float(training["learning_rate"]),
        "warmup_epochs": training["warmup_steps"] * training["train_batch_size"] / DEBERTA_SAMPLES,
        "decay_epochs": float(training["num_train_epochs"]),
        "dropout": float(training["cls_drop_out"]),
    }


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _alexnet_curve(training: Mapping[str, Any], target: float) -> Curve:
    """Return the curve up to the epoch that reaches the target; the run has diverged if its loss is NaN."""
    points = training["learning_curve"]
    if not points:
        return Curve((1.0,), (0.0,), (1e30,), "diverged")
    top1 = [float(point["top_1"]) for point in points]
    loss = [float(point["train_loss"]) for point in points]
    epochs = [float(at + 1) for at in range(len(points))]
    return _until(epochs, top1, loss, target, "diverged" if training["nan_train_loss"] else "")


def _deberta_curve(training: Mapping[str, Any], target: float) -> Curve:
    """Return the accuracy on the matched part of the evaluation, every thousand updates."""
    points = training["learning_curves"]["matched"]
    epochs = [step * training["train_batch_size"] / DEBERTA_SAMPLES for step, _ in points]
    accuracy = [float(value) for _, value in points]
    return _until(epochs, accuracy, [1 - value for value in accuracy], target)


def _until(
    epochs: Sequence[float],
    metric: Sequence[float],
    loss: Sequence[float],
    target: float,
    otherwise: str = "",
) -> Curve:
    reached = next((at for at, value in enumerate(metric, start=1) if value >= target), None)
    count = reached or len(metric)
    state = "reached" if reached else otherwise or "censored"
    return Curve(tuple(epochs[:count]), tuple(metric[:count]), tuple(loss[:count]), state)
