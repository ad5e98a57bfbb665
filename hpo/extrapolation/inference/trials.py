"""Single trials: when they reached the target, that they did not, or that they diverged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import Observation
from hpo.extrapolation.inference.residual import kernel, log_student, student_cdf
from hpo.extrapolation.laws.rate_law import RateLaw, momenta
from hpo.extrapolation.laws.response import Response
from hpo.extrapolation.laws.setting_laws import SettingLaw, coordinates

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

FINE = 0.02          # evaluations closer than this in log epochs tell the epochs exactly
# the laws are only roughly right, so that many trials say less than as many independent witnesses: the coarsened
# posterior of Miller and Dunson 2019 (arXiv:1506.06101) raises their likelihood to 1 / (1 + trials / witnesses); that a
# training diverges depends on less than how long it takes
WITNESSES, WITNESSES_OF_DIVERGENCE = 50.0, 250.0
LEAST = 1e-12        # probability of the impossible: an outlier costs no more than this


@dataclass(frozen=True)
class Trials:
    """Trials as arrays, shape (trials,), ordered: exactly known, known to an interval, not reached.

    ``rung`` indexes ``rung_log_batch``; ``log_before`` is the log of the last evaluation that missed the
    target; ``cut`` holds where the second and the third group begin.
    """

    rung: NDArray[np.intp]
    rung_log_batch: Array
    log_epochs: Array
    log_before: Array
    cut: tuple[int, int]
    diverged: NDArray[np.bool_]
    settings: Sequence[Array]
    momentum: Array

    def __len__(self) -> int:
        return len(self.log_epochs)

    def residuals(self, values: Values) -> Array:
        """Residual of each rung in log epochs: (particles, rungs)."""
        white = values["rungs"].reshape(-1, len(self.rung_log_batch))
        root = np.linalg.cholesky(kernel(self.rung_log_batch))
        return np.asarray(np.exp(values["log_recipe_scatter"])[:, None] * (white @ root.T))

    def log_likelihood(self, values: Values, rung_mean: Array, laws: Sequence[SettingLaw]) -> Array:
        """Log likelihood (particles,) given the law's log epochs by rung, ``rung_mean`` (particles, rungs).

        log epochs = rung_mean + residual + cost of the settings' misses + scatter; a trial that ended
        before the target says that its epochs are longer; a diverged one that its learning rate is above
        the stable bound.
        """
        cost = np.zeros((len(rung_mean), len(self)))
        divergence = np.zeros(len(rung_mean))
        explained = False
        for law, seen in zip(laws, self.settings, strict=True):
            response = self._response(values, law)
            told = np.isfinite(seen)
            cost += np.where(told, response.cost(np.where(told, seen, 0.0)), 0.0)
            risk = response.risk(seen)
            if risk is not None:
                explained = True
                divergence += np.log(np.where(self.diverged, risk, 1 - risk))[:, told].sum(axis=1)
        far_miss = np.exp(values["log_far_miss"])[:, None] if "log_far_miss" in values else 0.0
        scale = np.sqrt(np.exp(2 * values["log_trial_scatter"])[:, None] + (far_miss * np.minimum(cost, 2.0)) ** 2)
        expected = (rung_mean + self.residuals(values))[:, self.rung] + cost
        late = (self.log_epochs - expected) / scale
        exact, coarse, missed = slice(0, self.cut[0]), slice(*self.cut), slice(self.cut[1], None)
        total = (log_student(late[:, exact]) - np.log(scale[:, exact])).sum(axis=1)
        if self.cut[1] > self.cut[0]:
            early = (self.log_before[coarse] - expected[:, coarse]) / scale[:, coarse]
            total += _log(student_cdf(late[:, coarse]) - student_cdf(early)).sum(axis=1)
        longer = _log(1 - student_cdf(late[:, missed]))
        if explained:
            # how long a diverged trial ran says nothing where its learning rate explains the divergence
            longer = np.where(self.diverged[missed], 0.0, longer)
        return np.asarray(divergence / (1 + len(self) / WITNESSES_OF_DIVERGENCE)
                          + (total + longer.sum(axis=1)) / (1 + len(self) / WITNESSES))

    def best_settings(self, laws: Sequence[SettingLaw]) -> list[tuple[SettingLaw, float]]:
        """The coordinates of the best trial at the largest rung where any reached its target."""
        reached = slice(0, self.cut[1])
        if not self.cut[1]:
            return []
        best = int(np.lexsort((self.log_epochs[reached], -self.rung[reached]))[0])
        return [(law, float(seen[best])) for law, seen in zip(laws, self.settings, strict=True)
                if np.isfinite(seen[best])]

    def _response(self, values: Values, law: SettingLaw) -> Response:
        if isinstance(law, RateLaw) and law.momentum is not None:
            # trials of one rung differ in momentum, and so in their best learning rate
            return law.response(values, self.rung_log_batch[self.rung], self.momentum)
        return law.response(values, self.rung_log_batch).at(self.rung)


def make_trials(observations: Sequence[Observation], laws: Sequence[SettingLaw]) -> Trials:
    """Trials from observations."""
    ordered = sorted(observations, key=_group)
    groups = [_group(item) for item in ordered]
    epochs = np.array([max(item.epochs, 1e-6) for item in ordered])
    before = np.maximum(epochs - np.array([item.resolution_epochs for item in ordered]), 1e-3 * epochs)
    rungs, rung = np.unique(np.log([float(item.global_batch_size) for item in ordered]), return_inverse=True)
    return Trials(np.asarray(rung, dtype=np.intp), rungs, np.log(epochs), np.log(before),
                  (groups.count(0), groups.count(0) + groups.count(1)),
                  np.array([item.state == "diverged" for item in ordered], dtype=bool),
                  [coordinates(law, [item.settings for item in ordered]) for law in laws],
                  momenta([item.settings for item in ordered]))


def _group(item: Observation) -> int:
    if item.state != "reached":
        return 2
    return int(item.resolution_epochs > FINE * item.epochs)


def _log(probability: Array) -> Array:
    return np.asarray(np.log(np.maximum(probability, LEAST)))
