"""A landscape of published trainings: AlexNet on ImageNet by random search (opda, CC BY-SA 4.0).

Six settings at batches of 128 to 1,024. Only what was trained can be trained again: a search gets the nearest training
that it has not had, and a second seed shows the same curve. Settings are the learning rate at its peak, the epochs of
linear warmup to it, the epochs after which it has decayed to nothing (linearly; the training ends there), momentum,
weight decay and label smoothing. The loss is that of the training samples: no other is published.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_panel.trainings import LOST_EPOCHS
from benchmarks.search_economy.protocol import Curve, Range, Settings

RANGES = {
    "learning_rate": Range(5e-3, 50.0, log=True),
    "warmup_epochs": Range(0.0, 100.0, log=False),
    "decay_epochs": Range(20.0, 100.0, log=False),
    "momentum": Range(0.7, 1.0, log=False),
    "weight_decay": Range(1e-6, 1e-3, log=True),
    "label_smoothing": Range(0.0, 0.5, log=False),
}
"""What was drawn at random, and between which ends."""

FEW = 3
"""The optimum is the geometric mean of so many quickest trainings: the quickest of many is luck."""


class AlexNetLandscape:
    """The published trainings, to a top-1 accuracy of ``target``; the largest batch is the target's."""

    train_samples = 1_281_167
    ranges: Mapping[str, Range] = RANGES
    fixed: Mapping[str, object] = {"optimizer": "sgd", "decay": "polynomial"}

    def __init__(self, file: Path, target: float = 0.4) -> None:
        self.name = f"alexnet-{target:g}"
        self.target = target
        self._held: dict[int, dict[tuple[float, ...], Curve]] = {}
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                training = json.loads(line)
                batch = int(training["batch_size"])
                self._held.setdefault(batch, {})[_key(settings_of(training))] = _curve(
                    training, target
                )
        *ladder, self.target_batch = sorted(self._held)
        self.ladder = tuple(ladder)
        reached = sorted(
            curve.epochs[-1]
            for curve in self._held[self.target_batch].values()
            if curve.state == "reached"
        )
        if len(reached) < FEW:
            raise ValueError(
                f"at least {FEW} trainings at batch {self.target_batch} must reach the target, but "
                f"{len(reached)} reach a top-1 accuracy of {target}; choose a lower target"
            )
        self.optimum = math.exp(float(np.mean(np.log(reached[:FEW]))))

    def candidates(self, global_batch_size: int) -> Sequence[Settings]:
        """The settings that were trained at a batch."""
        return [dict(zip(RANGES, key, strict=True)) for key in self._held[global_batch_size]]

    def most_epochs(self, global_batch_size: int) -> float:
        """The longest training that was drawn."""
        return max(curve.epochs[-1] for curve in self._held[global_batch_size].values())

    def nearest(
        self, global_batch_size: int, settings: Settings, besides: Sequence[Settings] = ()
    ) -> dict[str, float]:
        """The training nearest in the unit cube of the ranges, none of ``besides`` while there are others."""
        keys = list(self._held[global_batch_size])
        tried = {_key(each) for each in besides}
        left = [key for key in keys if key not in tried] or keys
        there = np.array([_place(dict(zip(RANGES, key, strict=True))) for key in left])
        away = ((there - _place(settings)) ** 2).sum(axis=1)
        return dict(zip(RANGES, left[int(np.argmin(away))], strict=True))

    def train(self, global_batch_size: int, settings: Settings, seed: int) -> Curve:  # noqa: ARG002
        """The published curve, whatever the seed."""
        return self._held[global_batch_size][_key(settings)]

    def regret(self, settings: Settings) -> float:
        """By the training itself: there is one of each settings."""
        curve = self._held[self.target_batch][_key(settings)]
        epochs = curve.epochs[-1] if curve.state == "reached" else LOST_EPOCHS
        return math.log(epochs / self.optimum)

    def lost(self, settings: Settings) -> float:
        """0 or 1."""
        return float(self._held[self.target_batch][_key(settings)].state != "reached")


def settings_of(training: Mapping[str, Any]) -> dict[str, float]:
    """The settings of a line of the published file, by the names of TrainingSettings."""
    return {
        "learning_rate": float(training["lr"]),
        "warmup_epochs": float(training["lr_peak_epoch"]),
        "decay_epochs": float(training["epochs"]),
        "momentum": float(training["momentum"]),
        "weight_decay": float(training["weight_decay"]),
        "label_smoothing": float(training["label_smoothing"]),
    }


def _curve(training: Mapping[str, Any], target: float) -> Curve:
    """Up to the epoch that reaches the target; one whose loss was no number has diverged."""
    points = training["learning_curve"]
    if not points:
        return Curve((1.0,), (0.0,), (1e30,), "diverged")
    top1 = [float(point["top_1"]) for point in points]
    reached = next((at for at, value in enumerate(top1, start=1) if value >= target), None)
    count = reached or len(top1)
    state = "reached" if reached else "diverged" if training["nan_train_loss"] else "censored"
    return Curve(
        tuple(float(at) for at in range(1, count + 1)),
        tuple(top1[:count]),
        tuple(float(point["train_loss"]) for point in points[:count]),
        state,
    )


def _key(settings: Settings) -> tuple[float, ...]:
    return tuple(float(settings[name]) for name in RANGES)


def _place(settings: Settings) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """In the unit cube of the ranges."""
    return np.array(
        [
            math.log(settings[name] / each.low) / math.log(each.high / each.low)
            if each.log
            else (settings[name] - each.low) / (each.high - each.low)
            for name, each in RANGES.items()
        ]
    )
