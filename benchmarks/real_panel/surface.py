"""Epochs as a function of learning rate and warmup at a target batch, smoothed over all runs there.

A Gaussian process models log epochs over the log rate and the log of the warmup in updates (Rasmussen and Williams
2006, equations 2.25 and 2.26), so that the optimum is not just a lucky run. Lost runs are smoothed separately, by a
distance-weighted mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_panel.trainings import Training

Array: TypeAlias = NDArray[np.float64]

LENGTHS = np.array([0.9, 1.5])  # length scales of log epochs, in log rate and log updates of warmup
HEIGHT, NOISE = 0.7, 0.13  # standard deviations of log epochs: over the surface and between seeds
NEAR = np.array([0.35, 0.7])  # length scales over which lost runs are averaged
SAFE = 0.1  # largest share of lost runs nearby for settings to be the optimum


class Surface:
    """The estimate for any rate and warmup from runs at one batch size, with its ``updates_per_epoch``."""

    def __init__(self, trainings: Sequence[Training], updates_per_epoch: float) -> None:
        self._updates_per_epoch = updates_per_epoch
        self._places = self._place([each.settings for each in trainings])
        self._lost = np.array([each.lost for each in trainings], dtype=float)
        held = self._lost == 0
        if not held.any():
            raise ValueError(
                "a surface needs at least one run that reached the target, but got none of "
                f"{len(trainings)}"
            )
        self._reached = self._places[held]
        logs = np.log([each.epochs for each in trainings if not each.lost])
        self._settings = [each.settings for each in trainings if not each.lost]
        self._mean = float(np.median(logs))
        covariance = _covariance(self._reached, self._reached) + NOISE**2 * np.eye(len(logs))
        self._weights = np.linalg.solve(covariance, logs - self._mean)

    def log_epochs(self, settings: Sequence[Mapping[str, float]]) -> Array:
        """Return smoothed log epochs of runs that reach the target, shape ``(settings,)``."""
        places = self._place(settings)
        return np.asarray(self._mean + _covariance(places, self._reached) @ self._weights)

    def lost(self, settings: Sequence[Mapping[str, float]]) -> Array:
        """Return the share of nearby runs that were lost, shape ``(settings,)``."""
        weights = np.exp(-0.5 * _squares(self._place(settings), self._places, NEAR)) + 1e-12
        return np.asarray(weights @ self._lost / weights.sum(axis=1))

    @property
    def best(self) -> dict[str, float]:
        """The trained settings with the fewest smoothed epochs among those with hardly any lost runs nearby."""
        risky = self.lost(self._settings) > SAFE
        logs = self.log_epochs(self._settings)
        return dict(
            self._settings[int(np.argmin(logs if risky.all() else np.where(risky, np.inf, logs)))]
        )

    def _place(self, settings: Sequence[Mapping[str, float]]) -> Array:
        rates = np.array([each["learning_rate"] for each in settings])
        updates = np.array([each["warmup_epochs"] for each in settings]) * self._updates_per_epoch
        return np.log(np.stack([rates, np.maximum(updates, 1.0)], axis=1))


def log_optimum(trainings: Sequence[Training], updates_per_epoch: float) -> float | None:
    """Return the log of the fewest epochs: settings chosen on half of the seeds, evaluated on the other.

    Both halves take either part, and the results are averaged. The lowest of many noisy values is biased low; the other
    seeds' value at the chosen settings is not. With runs of only one half, the result is their own lowest smoothed
    value; it is None if no run reached the target.
    """
    halves = [[each for each in trainings if each.seed % 2 == half] for half in (0, 1)]
    surfaces = [
        Surface(half, updates_per_epoch) for half in halves if any(not each.lost for each in half)
    ]
    if not surfaces:
        return None
    return float(
        np.mean(
            [
                surface.log_epochs([other.best])[0]
                for surface, other in zip(surfaces, reversed(surfaces), strict=True)
            ]
        )
    )


def _covariance(first: Array, second: Array) -> Array:
    return np.asarray(HEIGHT**2 * np.exp(-0.5 * _squares(first, second, LENGTHS)))


def _squares(first: Array, second: Array, lengths: Array) -> Array:
    return np.asarray((((first[:, None] - second[None]) / lengths) ** 2).sum(axis=2))
