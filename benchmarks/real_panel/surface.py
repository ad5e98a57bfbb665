"""The epochs over learning rate and warmup at a target batch, smoothed over all that was trained there.

A Gaussian process in log epochs over the log rate and the log of the warmup in updates (Rasmussen and Williams 2006,
equations 2.25 and 2.26), so that the optimum is no lucky training: it is the lowest point of the smoothed mean, not of
the trainings. Losses are smoothed apart from it, by a mean weighted by distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_panel.trainings import Training

Array: TypeAlias = NDArray[np.float64]

LENGTHS = np.array([0.9, 1.5])      # over which log epochs change, in log rate and log updates of warmup
HEIGHT, NOISE = 0.7, 0.13           # standard deviations of log epochs: over the surface, and between seeds
NEAR = np.array([0.35, 0.7])        # over which losses are averaged
SAFE = 0.1                          # share of lost trainings nearby up to which settings may be the optimum


class Surface:
    """What trainings at one batch say about any rate and warmup; ``updates_per_epoch`` at that batch."""

    def __init__(self, trainings: Sequence[Training], updates_per_epoch: float) -> None:
        self._updates_per_epoch = updates_per_epoch
        self._places = self._place([each.settings for each in trainings])
        self._lost = np.array([each.lost for each in trainings], dtype=float)
        held = self._lost == 0
        if not held.any():
            raise ValueError("a surface needs at least one training that reached the target, but got none of "
                             f"{len(trainings)}")
        self._reached = self._places[held]
        logs = np.log([each.epochs for each in trainings if not each.lost])
        self._mean = float(np.median(logs))
        covariance = _covariance(self._reached, self._reached) + NOISE**2 * np.eye(len(logs))
        self._weights = np.linalg.solve(covariance, logs - self._mean)

    def log_epochs(self, settings: Sequence[Mapping[str, float]]) -> Array:
        """Smoothed log epochs of trainings that reach the target, shape ``(settings,)``."""
        return self._log_epochs(self._place(settings))

    def lost(self, settings: Sequence[Mapping[str, float]]) -> Array:
        """The share of trainings nearby that were lost, shape ``(settings,)``."""
        return self._share_lost(self._place(settings))

    @property
    def optimum(self) -> float:
        """The fewest smoothed log epochs among the settings that were trained, where hardly any training was lost."""
        places = np.unique(self._reached, axis=0)
        found, risky = self._log_epochs(places), self._share_lost(places) > SAFE
        return float(found.min() if risky.all() else found[~risky].min())

    def _place(self, settings: Sequence[Mapping[str, float]]) -> Array:
        rates = np.array([each["learning_rate"] for each in settings])
        updates = np.array([each["warmup_epochs"] for each in settings]) * self._updates_per_epoch
        return np.log(np.stack([rates, np.maximum(updates, 1.0)], axis=1))

    def _log_epochs(self, places: Array) -> Array:
        return np.asarray(self._mean + _covariance(places, self._reached) @ self._weights)

    def _share_lost(self, places: Array) -> Array:
        weights = np.exp(-0.5 * _squares(places, self._places, NEAR)) + 1e-12
        return np.asarray(weights @ self._lost / weights.sum(axis=1))


def _covariance(first: Array, second: Array) -> Array:
    return np.asarray(HEIGHT**2 * np.exp(-0.5 * _squares(first, second, LENGTHS)))


def _squares(first: Array, second: Array, lengths: Array) -> Array:
    return np.asarray((((first[:, None] - second[None]) / lengths) ** 2).sum(axis=2))
