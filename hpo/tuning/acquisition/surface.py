"""Log epochs to target over settings, as a Gaussian process; and what one more training would tell of its lowest place.

A training that was looked at early tells the surface with an error that trainings of neighbouring settings share: what
is quick at first may be lost later, and what is next to it then is so too. So many short looks say where to look
further, and only longer trainings which of them lasts. By how much a training is expected to lower the surface's lowest
mean is the knowledge gradient (Frazier, Powell and Dayanik, INFORMS J. Computing 21, 2009), here over what it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

# standard deviations of log epochs: of the surface, of its slope over the log rate, of the level of a batch
AMPLITUDE, SLOPE_SD, LEVEL_SD = 0.8, 0.3, 2.0
# what is believed of the slope: a rate higher by a factor e takes a quarter fewer epochs, until it is too high
SLOPE = -0.3
# the error that looks at neighbouring settings share, over how much longer lengths, and how it ends with the way
EARLY_ERROR, EARLY_LENGTH, EARLY_POWER = 0.35, 1.6, 1.5
# what one training is off by at its end (its seed), and what a look adds
SEED_SD, LOOK_SD = 0.13, 0.1
OTHER_BATCH = 2.0  # e-foldings of the batch size over which surfaces stay alike
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


@dataclass(frozen=True)
class Places:
    """Settings as places: ``coordinates`` (places, settings) in units over which log epochs change by about their
    amplitude; ``rates`` (places,) is the log rate from the middle of its range, 0 where none is tuned;
    ``log_batch`` (places,).
    """

    coordinates: Array
    rates: Array
    log_batch: Array

    def __len__(self) -> int:
        return len(self.rates)

    def __getitem__(self, which: slice | Sequence[int] | Array) -> Places:
        return Places(self.coordinates[which], self.rates[which], self.log_batch[which])

    def with_more(self, other: Places) -> Places:
        """These, then the others."""
        return Places(
            np.vstack([self.coordinates, other.coordinates]),
            np.concatenate([self.rates, other.rates]),
            np.concatenate([self.log_batch, other.log_batch]),
        )


class EpochsSurface:
    """The process given trainings: log epochs ``told`` at ``places``, each after a ``share`` of its way.

    ``mean`` is the expected log epochs before any training but for the slope, at places of the same kind.
    """

    def __init__(
        self, places: Places, told: Array, share: Array, own_error: Array, expected: Array
    ) -> None:
        self._places, self._early = places, _early(share)
        covariance = (
            _covariance(places, places)
            + _early_covariance(places, places) * np.outer(self._early, self._early)
            + np.diag(own_error**2 + 1e-8)
        )
        self._root = np.linalg.cholesky(covariance)
        left = told - expected - SLOPE * places.rates
        self._white = np.linalg.solve(self._root, left)

    def log_epochs(self, places: Places, expected: Array) -> tuple[Array, Array]:
        """Mean (places,) and covariance (places, places) of the log epochs to target."""
        across = self._across(places)
        mean = expected + SLOPE * places.rates + across.T @ self._white
        return mean, _covariance(places, places) - across.T @ across

    def after(self, places: Places, looks: Places, share: float, own_error: float) -> Array:
        """How the means at ``places`` (rows) move with one more training of each of ``looks`` (columns).

        In log epochs for one standard deviation of what it may tell.
        """
        early = float(_early(np.array(share)))
        towards = _covariance(looks, self._places) + early * _early_covariance(
            looks, self._places
        ) * (self._early)
        across = np.linalg.solve(self._root, towards.T)
        own = np.diag(_covariance(looks, looks)) + (early * EARLY_ERROR) ** 2 + own_error**2
        variance = own - (across**2).sum(axis=0)
        shared = _covariance(places, looks) - self._across(places).T @ across
        return np.asarray(shared / np.sqrt(np.maximum(variance, 1e-8)))

    def _across(self, places: Places) -> Array:
        return np.asarray(np.linalg.solve(self._root, _covariance(self._places, places)))


def expected_fall(mean: Array, moved: Array) -> Array:
    """By how much the lowest of the means is expected to fall with one more training: (trainings,).

    ``moved`` (places, trainings) says how they move with it, for one standard deviation.
    """
    lowest = (mean[:, None, None] + moved[:, :, None] * NODES).min(axis=0)
    return np.asarray(mean.min() - lowest @ WEIGHTS)


def own_error(share: Array | float) -> Array:
    """The error of one training that no other shares, after a share of its way."""
    return np.asarray(SEED_SD + LOOK_SD * (1 - np.asarray(share)))


def _early(share: Array) -> Array:
    return np.asarray((1 - np.clip(share, 0.0, 1.0)) ** EARLY_POWER)


def _covariance(one: Places, other: Places) -> Array:
    away = np.abs(one.log_batch[:, None] - other.log_batch) / OTHER_BATCH
    alike = AMPLITUDE**2 * _matern(_distance(one, other))
    slopes = SLOPE_SD**2 * one.rates[:, None] * other.rates
    return np.asarray((alike + slopes) * np.exp(-away) + LEVEL_SD**2 * (away == 0))


def _early_covariance(one: Places, other: Places) -> Array:
    same = one.log_batch[:, None] == other.log_batch
    return np.asarray(EARLY_ERROR**2 * _matern(_distance(one, other) / EARLY_LENGTH) * same)


def _distance(one: Places, other: Places) -> Array:
    apart = one.coordinates[:, None, :] - other.coordinates[None, :, :]
    return np.asarray(np.sqrt((apart**2).sum(axis=-1)))


def _matern(distance: Array) -> Array:
    """Matern's correlation with smoothness 5/2."""
    scaled = np.sqrt(5) * distance
    return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))
