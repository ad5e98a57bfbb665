"""Log epochs to target over settings: a shape plus a Gaussian process, and the expected gain of one more training run.

The mean is the shape of real runs (:mod:`hpo.tuning.generation.shapes`), averaged over the positions of its edge with
posterior weights; the process models the error of that mean. An early look at a run has an error that runs with
neighbouring settings share: settings that look fast at first may diverge later, and then so do their neighbours. Many
short looks therefore show where to look further, and only longer runs show which settings hold up. The expected
decrease in the surface's lowest mean due to one run is its knowledge gradient (Frazier, Powell and Dayanik, INFORMS J.
Computing 21, 2009), here divided by its cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.tuning.generation.shapes import ResponseShapes

Array: TypeAlias = NDArray[np.float64]

LEVEL_SD = 2.0  # standard deviation of the log epochs at a batch size
# the error shared by looks at neighbouring settings, the factor on its length scale, and its exponent in the remaining
# share
EARLY_ERROR, EARLY_LENGTH, EARLY_POWER = 0.35, 1.6, 1.5
# standard deviation between seeds at the end of a training run, and the amount added for a short look
SEED_SD, LOOK_SD = 0.13, 0.1
LEAST_RAMP = 0.05  # a run counts with at least this share of its rate, however early in its warmup
OTHER_BATCH = 2.0  # correlation length of surfaces, in e-foldings of the batch size
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


@dataclass(frozen=True)
class SettingPlaces:
    """Settings as points of the surface.

    ``coordinates`` (places, settings) are in units over which log epochs change by about their amplitude. ``rates``
    (places,) is the log rate, 0 if no rate is tuned; ``warmup`` (places,) is a share of the epochs of the fastest run;
    ``log_batch`` is (places,).
    """

    coordinates: Array
    rates: Array
    warmup: Array
    log_batch: Array

    def __len__(self) -> int:
        return len(self.rates)

    def __getitem__(self, which: slice | Sequence[int] | Array) -> SettingPlaces:
        return SettingPlaces(
            self.coordinates[which], self.rates[which], self.warmup[which], self.log_batch[which]
        )


@dataclass(frozen=True)
class TrainingEstimates:
    """Estimates of the log epochs to target, as ``told`` after a ``share`` of each training run, all (trainings,).

    ``own_error`` is the standard deviation of the independent error. If a run has ``ended``, ``told`` is its actual log
    epochs, otherwise an early estimate. ``ramp`` is the log of the share of the full rate that the warmup has reached.
    """

    places: SettingPlaces
    told: Array
    share: Array
    own_error: Array
    ended: Array
    ramp: Array


class EpochsSurface:
    """The Gaussian process conditioned on training runs; its mean is one of ``shapes``, with an error of ``amplitude``
    in log epochs.
    """

    def __init__(self, shapes: ResponseShapes, amplitude: float, seen: TrainingEstimates) -> None:
        self._shapes, self._amplitude, self._places = shapes, amplitude, seen.places
        self._early = np.where(seen.ended, 0.0, _early(seen.share))
        covariance = (
            self._covariance(seen.places, seen.places)
            + _early_covariance(seen.places, seen.places) * np.outer(self._early, self._early)
            + np.diag(seen.own_error**2 + 1e-8)
        )
        self._root = np.linalg.cholesky(covariance)
        expected = self._expected(seen.places, seen.share, seen.ended, seen.ramp)
        self._white = np.linalg.solve(self._root, (seen.told - expected).T)
        likely = np.log(shapes.weights) - 0.5 * (self._white**2).sum(axis=0)
        likely = np.exp(likely - likely.max())
        self.weights = likely / likely.sum()
        """The posterior probability of each shape, (hypotheses,)."""

    def log_epochs(self, places: SettingPlaces) -> tuple[Array, Array]:
        """Return the mean (places,) and covariance (places, places) of the log epochs to target."""
        across = self._across(places)
        mean, apart = self._mixed(self._each(places, across))
        between = (apart * self.weights[:, None]).T @ apart
        return mean, self._covariance(places, places) - across.T @ across + between

    def lost(self, places: SettingPlaces) -> Array:
        """Return the probability that a training run fails to converge, according to the shapes: (places,)."""
        return np.asarray(self.weights @ self._shapes.lost(places.rates, places.warmup))

    def after(
        self, places: SettingPlaces, looks: SettingPlaces, share: float, own_error: float
    ) -> Array:
        """Return how the means at ``places`` (rows) change with one more training run of each of ``looks`` (columns).

        The result is in log epochs, for one standard deviation of the run's predicted result.
        """
        whole = np.full(len(looks), share >= 1)
        ramp = ramp_of(looks.warmup, share)
        early = 0.0 if share >= 1 else float(_early(np.array(share)))
        shared_errors = _early_covariance(looks, self._places) * early * self._early
        across = np.linalg.solve(
            self._root, (self._covariance(looks, self._places) + shared_errors).T
        )
        expected = self._expected(looks, np.full(len(looks), share), whole, ramp)
        _, told = self._mixed(expected + (across.T @ self._white).T)
        own = np.diag(self._covariance(looks, looks)) + (early * EARLY_ERROR) ** 2 + own_error**2
        variance = own - (across**2).sum(axis=0) + self.weights @ told**2
        here = self._across(places)
        _, apart = self._mixed(self._each(places, here))
        shared = self._covariance(places, looks) - here.T @ across
        shared = shared + (apart * self.weights[:, None]).T @ told
        return np.asarray(shared / np.sqrt(np.maximum(variance, 1e-8)))

    def _expected(self, places: SettingPlaces, share: Array, ended: Array, ramp: Array) -> Array:
        """Return the expected estimates from training runs under each hypothesis: (hypotheses, trainings)."""
        whole = self._shapes.epochs(places.rates, places.warmup)
        shown = self._shapes.shown(places.rates + ramp, places.warmup, share)
        return np.where(ended, whole, shown)

    def _each(self, places: SettingPlaces, across: Array) -> Array:
        """Return the mean under each hypothesis: (hypotheses, places)."""
        return np.asarray(
            self._shapes.epochs(places.rates, places.warmup) + (across.T @ self._white).T
        )

    def _mixed(self, each: Array) -> tuple[Array, Array]:
        """Return the mean over the hypotheses, and each hypothesis's deviation from it."""
        mean = self.weights @ each
        return mean, each - mean

    def _across(self, places: SettingPlaces) -> Array:
        return np.asarray(np.linalg.solve(self._root, self._covariance(self._places, places)))

    def _covariance(self, one: SettingPlaces, other: SettingPlaces) -> Array:
        away = np.abs(one.log_batch[:, None] - other.log_batch) / OTHER_BATCH
        alike = self._amplitude**2 * _matern(_distance(one, other))
        return np.asarray(alike * np.exp(-away) + LEVEL_SD**2 * (away == 0))


def expected_fall(mean: Array, moved: Array) -> Array:
    """Return the expected decrease in the lowest mean due to one more training run: (trainings,).

    ``moved`` (places, trainings) is how far the means change with that run, per standard deviation.
    """
    lowest = (mean[:, None, None] + moved[:, :, None] * NODES).min(axis=0)
    return np.asarray(mean.min() - lowest @ WEIGHTS)


def own_error(share: Array | float) -> Array:
    """Return the independent error of the estimate from one training run after a ``share`` of it."""
    return np.asarray(SEED_SD + LOOK_SD * (1 - np.asarray(share)))


def ramp_of(warmup: Array, share: Array | float) -> Array:
    """Return the log of the share of its full rate that a training run has reached after a ``share`` of it, in a linear
    warmup.
    """
    return np.log(np.clip(np.asarray(share) / np.maximum(warmup, 1e-6), LEAST_RAMP, 1.0))


def _early(share: Array) -> Array:
    return np.asarray((1 - np.clip(share, 0.0, 1.0)) ** EARLY_POWER)


def _early_covariance(one: SettingPlaces, other: SettingPlaces) -> Array:
    same = one.log_batch[:, None] == other.log_batch
    alike = EARLY_ERROR**2 * _matern(_distance(one, other) / EARLY_LENGTH)
    return np.asarray(alike * same)


def _distance(one: SettingPlaces, other: SettingPlaces) -> Array:
    apart = one.coordinates[:, None, :] - other.coordinates[None, :, :]
    return np.asarray(np.sqrt((apart**2).sum(axis=-1)))


def _matern(distance: Array) -> Array:
    """Return the Matérn correlation with smoothness 5/2."""
    scaled = np.sqrt(5) * distance
    return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))
