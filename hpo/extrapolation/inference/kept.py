"""Predicts by linear regression whether runs with given settings at a batch size satisfy a study's constraints.

Every run that ended reports the constrained figures, whether or not it reached the target. Their means are

    memory              m(B) = a + b B                        a fixed part, and a part per sample of the batch
    seconds per sample  s(B) = a + b / B                      the fixed cost of an update, spread over its samples
    another metric      y    = a + b log B + sum_i (c_i x_i + d_i x_i^2)    x_i the tuned settings, in logs if so tuned

with independent normal errors. The coefficients have a weak normal prior on features scaled to a standard deviation of
1. The error variance has a scaled inverse chi-square prior: no figure is known to better than ``RELATIVE_ERROR``. The
prediction follows Student's t (Gelman et al., Bayesian Data Analysis, 3rd edition, section 14.2), wider farther from
the data; its degrees of freedom are the number of runs minus the number of coefficients that they determine, the trace
of the hat matrix.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import ScaledSetting
from hpo.extrapolation.inference.intervals import Interval
from trainers.job import MEMORY, PACE, Constraint, Question

Array: TypeAlias = NDArray[np.float64]

RELATIVE_ERROR = 0.01
# precision of a coefficient, for a feature of standard deviation 1, in units of the error
PRIOR_PRECISION = 1e-3
PRIOR_RUNS = 1.0  # weight of the prior on the error, in runs
LIKELY = 0.5
"""Settings that satisfy a constraint with less than this probability are not recommended."""
SURE = 0.9
"""A probability below this is reported as a doubt."""
_LEVEL = 0.95


@dataclass(frozen=True)
class ConstraintOutlook:
    """The prediction for a constraint with the recommended settings at a batch, fitted to ``trainings`` runs.

    ``expected`` is the 90 % interval of the figure of one run, and ``chance`` is the probability that it meets the
    bound.
    """

    constraint: Constraint
    expected: Interval
    chance: float
    trainings: int

    @property
    def likely(self) -> bool:
        """Whether the constraint is satisfied with at least even odds."""
        return self.chance >= LIKELY

    def __str__(self) -> str:
        ends = self.expected
        return (
            f"{self.constraint.name} is expected to be {ends.median:.3g} ({ends.low:.3g} to {ends.high:.3g}) and must "
            f"be {self.constraint.rule}, which has a probability of {self.chance:.0%}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as a plain dictionary."""
        return {
            "name": self.constraint.name,
            "at_most" if self.constraint.at_most else "at_least": self.constraint.bound,
            "expected": self.expected.to_dict(),
            "chance": self.chance,
            "trainings": self.trainings,
        }


@dataclass(frozen=True)
class FigureFit:
    """The posterior of one figure's regression.

    ``mean`` (features,) holds the expected coefficients; their covariance is ``covariance`` (features, features) times
    the error variance. ``scale`` is the error variance, with ``freedom`` degrees of freedom. The features are
    ``(x - centre) / spread``, after a constant 1.
    """

    constraint: Constraint
    tuned: tuple[ScaledSetting, ...]
    trainings: int
    centre: Array
    spread: Array
    mean: Array
    covariance: Array
    scale: float
    freedom: float

    def told(self, log_batch: float, settings: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return the location and scale of Student's t for one run at each place: (places,) each."""
        raw = _features(self.constraint.name, self.tuned, log_batch, settings)
        rows = np.column_stack([np.ones(len(raw)), (raw - self.centre) / self.spread])
        spread = np.einsum("pi,ij,pj->p", rows, self.covariance, rows)
        return rows @ self.mean, np.sqrt(self.scale * (1.0 + spread))

    def chance(self, log_batch: float, settings: Mapping[str, Array]) -> Array:
        """Return the probability that a run meets the bound: (places,)."""
        location, scale = self.told(log_batch, settings)
        beyond = (self.constraint.bound - location) / scale
        return _student(self.freedom, beyond if self.constraint.at_most else -beyond)

    def outlook(self, log_batch: float, settings: Mapping[str, Array]) -> ConstraintOutlook:
        """Return the prediction at one place, as an interval and a probability."""
        (location,), (scale,) = self.told(log_batch, settings)
        half = float(scale) * _quantile(self.freedom)
        low = location - half
        if self.constraint.name in (MEMORY, PACE):
            low = max(low, 0.0)
        (chance,) = self.chance(log_batch, settings)
        return ConstraintOutlook(
            self.constraint,
            Interval(float(location), float(low), float(location + half)),
            float(chance),
            self.trainings,
        )


class KeptConstraints:
    """The regression fits of a study's constraints; a constraint that no trial reports is left out."""

    def __init__(self, fits: Sequence[FigureFit]) -> None:
        self.fits = tuple(fits)

    def chance(self, log_batch: float, settings: Mapping[str, Array]) -> Array:
        """Return the probability that all constraints are satisfied, assuming independence: (places,)."""
        chances = [fit.chance(log_batch, settings) for fit in self.fits]
        return np.asarray(functools.reduce(np.multiply, chances, np.ones(1)))

    def outlooks(
        self, log_batch: float, settings: Mapping[str, float]
    ) -> tuple[ConstraintOutlook, ...]:
        """Return the prediction for each constraint with the settings to use at a batch."""
        columns = {name: np.array([value]) for name, value in settings.items()}
        return tuple(fit.outlook(log_batch, columns) for fit in self.fits)

    def mendable(self, log_batch: float, settings: Mapping[str, Array]) -> Array:
        """Return how far the probability of violating a constraint exceeds the lowest one at any place: (places,)."""
        broken = 1.0 - self.chance(log_batch, settings)
        least = float(broken.min())
        return np.asarray((broken - least) / max(1.0 - least, 1e-9))


def fit_constraints(
    trials: Sequence[Any], question: Question, tuned: Sequence[ScaledSetting]
) -> KeptConstraints:
    """Fit every constraint to the ``trials`` (:class:`storage.records.Trial`) that ended and report its figure."""
    fits = []
    for constraint in question.constraints:
        seen = [(each, value) for each in trials if (value := _told(constraint, each)) is not None]
        if seen:
            fits.append(_fit(constraint, tuple(tuned), [t for t, _ in seen], [v for _, v in seen]))
    return KeptConstraints(fits)


def _told(constraint: Constraint, trial: Any) -> float | None:
    """Return the figure of an ended trial; a diverged trial has memory and pace, but not a metric."""
    if not trial.state.finished or (
        trial.state == "diverged" and constraint.name not in (MEMORY, PACE)
    ):
        return None
    return constraint.value(trial)


def _fit(
    constraint: Constraint,
    tuned: tuple[ScaledSetting, ...],
    trials: Sequence[Any],
    values: Sequence[float],
) -> FigureFit:
    if constraint.name in (MEMORY, PACE):
        tuned = ()
    tuned = tuple(
        each
        for each in tuned
        if all(isinstance(trial.settings.get(each.name), int | float) for trial in trials)
    )
    raw = np.concatenate(
        [
            _features(
                constraint.name,
                tuned,
                math.log(trial.global_batch_size),
                {each.name: np.array([float(trial.settings[each.name])]) for each in tuned},
            )
            for trial in trials
        ]
    )
    y = np.asarray(values, dtype=float)
    centre, spread = raw.mean(axis=0), raw.std(axis=0)
    spread = np.where(
        spread > 1e-12 * (np.abs(centre) + 1e-300), spread, np.maximum(np.abs(centre), 1.0)
    )
    rows = np.column_stack([np.ones(len(raw)), (raw - centre) / spread])
    unit = max(float(np.abs(y).max()), 1e-300)
    least = (RELATIVE_ERROR * unit) ** 2
    prior = np.diag([1e-9, *[PRIOR_PRECISION] * raw.shape[1]])
    precision = prior + rows.T @ rows
    covariance = np.linalg.inv(precision)
    mean = covariance @ rows.T @ y
    left = float(np.sum((y - rows @ mean) ** 2) + mean @ prior @ mean)
    fitted = float(np.einsum("pi,ij,pj->", rows, covariance, rows))
    freedom = PRIOR_RUNS + max(len(y) - fitted, 0.0)
    scale = (PRIOR_RUNS * least + left) / freedom
    return FigureFit(
        constraint, tuned, len(y), centre, spread, mean, covariance, max(scale, least), freedom
    )


def _features(
    name: str,
    tuned: Sequence[ScaledSetting],
    log_batch: float,
    settings: Mapping[str, Array],
) -> Array:
    """Return the features of a figure's regression, without the constant: (places, features)."""
    if name == MEMORY:
        return np.array([[math.exp(log_batch)]])
    if name == PACE:
        return np.array([[math.exp(-log_batch)]])
    columns = []
    for each in tuned:
        value = np.asarray(settings[each.name], dtype=float)
        at = np.log(np.maximum(value, 1e-300)) if each.scale == "log" else value
        middle = _middle(each)
        columns += [at - middle, (at - middle) ** 2]
    places = max((len(each) for each in columns), default=1)
    every = [np.full(places, log_batch), *(np.broadcast_to(each, (places,)) for each in columns)]
    return np.column_stack(every)


def _middle(setting: ScaledSetting) -> float:
    """Return the midpoint of the search range, where the quadratic term is zero."""
    low, high = setting.low, setting.high
    if low is None or high is None:
        return 0.0
    if setting.scale == "log":
        return 0.5 * (math.log(low) + math.log(high))
    return 0.5 * (low + high)


def _student(freedom: float, at: Array) -> Array:
    from scipy.special import stdtr

    return np.asarray(stdtr(freedom, at))


def _quantile(freedom: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, _LEVEL))
