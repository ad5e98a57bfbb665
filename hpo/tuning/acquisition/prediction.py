"""What each particle of a posterior says of trials not yet run, and of settings at the full-scale batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import Observation
from hpo.extrapolation.inference.posterior import Posterior
from hpo.extrapolation.inference.residual import across, kernel, log_student, student_cdf
from hpo.extrapolation.laws.rate_law import RateLaw, momenta
from hpo.extrapolation.laws.setting_laws import MOMENTUM, RATE, coordinates
from hpo.extrapolation.recommend import LOST

Array: TypeAlias = NDArray[np.float64]
Settings: TypeAlias = Mapping[str, object]

LEAST = 1e-12       # probability of the impossible, as in the posterior's own likelihood


@dataclass(frozen=True)
class Prediction:
    """Of trials at one batch: log epochs to target, their scale (Student's t), and risk; each (particles, trials)."""

    log_epochs: Array
    scale: Array
    risk: Array

    def at(self, columns: NDArray[np.intp] | Sequence[int]) -> Prediction:
        """The same of some of the trials, repeated or not."""
        return Prediction(self.log_epochs[:, columns], self.scale[:, columns], self.risk[:, columns])

    def log_reached(self, log_epochs: Array) -> Array:
        """Log density of reaching the target at ``log_epochs``."""
        white = (log_epochs - self.log_epochs) / self.scale
        return np.asarray(np.log1p(-self.risk) + log_student(white) - np.log(self.scale))

    def log_missed(self, log_epochs: Array) -> Array:
        """Log probability of neither reaching the target within ``log_epochs`` nor diverging."""
        late = 1 - student_cdf((log_epochs - self.log_epochs) / self.scale)
        return np.asarray(np.log1p(-self.risk) + np.log(np.maximum(late, LEAST)))

    def log_diverged(self) -> Array:
        """Log probability of divergence."""
        return np.asarray(np.log(self.risk))


def thinned(posterior: Posterior, count: int) -> Posterior:
    """The posterior by ``count`` of its particles, evenly taken."""
    total = len(posterior.residuals)
    if total <= count:
        return posterior
    taken = np.linspace(0, total - 1, count).astype(np.intp)
    return dataclasses.replace(posterior, values={name: value[taken] for name, value in posterior.values.items()},
                               residuals=posterior.residuals[taken])


def predict(posterior: Posterior, global_batch_size: int, settings: Sequence[Settings]) -> Prediction:
    """What the particles say of one trial with each of the settings at this batch."""
    log_batch = float(np.log(global_batch_size))
    cost, risk = miss(posterior, global_batch_size, settings)
    level, extra = _level(posterior, log_batch)
    values = posterior.values
    far_miss = np.exp(values["log_far_miss"])[:, None] if "log_far_miss" in values else 0.0
    variance = np.exp(2 * values["log_trial_scatter"])[:, None] + (far_miss * np.minimum(cost, 2.0)) ** 2
    return Prediction(level[:, None] + cost, np.sqrt(variance + extra[:, None]), risk)


def miss(posterior: Posterior, global_batch_size: int, settings: Sequence[Settings]) -> tuple[Array, Array]:
    """Log factor on the epochs, and risk of divergence, of settings at a batch: (particles, settings) each."""
    shape = len(posterior.residuals), len(settings)
    cost, risk = np.zeros(shape), np.zeros(shape)
    log_batches = np.full(len(settings), np.log(global_batch_size))
    for law in posterior.model.laws:
        seen = coordinates(law, settings)
        told = np.isfinite(seen)
        momentum = momenta(settings) if isinstance(law, RateLaw) and law.momentum is not None else None
        response = law.response(posterior.values, log_batches, momentum)
        cost += np.where(told, response.cost(np.where(told, seen, 0.0)), 0.0)
        diverges = response.risk(np.where(told, seen, -1e3))
        if diverges is not None:
            risk = np.maximum(risk, np.broadcast_to(diverges, shape))
    return cost, np.clip(risk, 1e-3, 1 - 1e-3)


def lost(posterior: Posterior, global_batch_size: int, settings: Sequence[Settings]) -> Array:
    """Epochs over the fewest of settings at a batch, a lost run counting LOST: (particles, settings)."""
    cost, risk = miss(posterior, global_batch_size, settings)
    factor = np.minimum(np.exp(np.minimum(cost, 10.0)), LOST)
    return np.asarray(factor + (LOST - factor) * risk)


def best_settings(posterior: Posterior, global_batch_size: int) -> list[dict[str, float]]:
    """What each particle holds to be the best settings at a batch, inside their legal bounds."""
    log_batch, values = np.array([np.log(global_batch_size)]), posterior.values
    found: list[dict[str, float]] = [{} for _ in range(len(posterior.residuals))]
    momentum = None
    for law in sorted(posterior.model.laws, key=lambda law: law.name != MOMENTUM):
        if law.name == RATE and momentum is not None:
            # each particle's best rate at its own best momentum
            best = np.diagonal(law.best(values, np.full(len(found), log_batch[0]), momentum))
        else:
            best = law.best(values, log_batch)[:, 0]
        told = law.value(best)
        momentum = np.asarray(told) if law.name == MOMENTUM else momentum
        for settings, value in zip(found, told, strict=True):
            settings[law.name] = float(value)
    return found


def log_likelihood(posterior: Posterior, observation: Observation) -> Array:
    """Log likelihood of one more trial: (particles,)."""
    prediction = predict(posterior, observation.global_batch_size, [observation.settings])
    epochs = np.log(max(observation.epochs, 1e-6))
    if observation.state == "diverged":
        return np.asarray(prediction.log_diverged()[:, 0])
    if observation.state == "reached":
        return np.asarray(prediction.log_reached(np.asarray(epochs))[:, 0])
    return np.asarray(prediction.log_missed(np.asarray(epochs))[:, 0])


def log_best_epochs(posterior: Posterior, global_batch_size: int) -> Array:
    """Log epochs to target with the best settings at a batch: (particles,)."""
    return _level(posterior, float(np.log(global_batch_size)))[0]


def _level(posterior: Posterior, log_batch: float) -> tuple[Array, Array]:
    """Log epochs of the best settings, and the variance of what is unknown of that batch: (particles,) each."""
    mean = posterior.model.mean(posterior.values, np.array([log_batch]))[:, 0]
    known = np.isclose(posterior.residual_log_batch, log_batch)
    if known.any():
        return mean + posterior.residuals[:, int(np.argmax(known))], np.zeros(len(mean))
    near = across(posterior.residual_log_batch, np.array([log_batch]))[:, 0]
    weight = np.linalg.solve(kernel(posterior.residual_log_batch), near)
    left = 1.0 - float(near @ weight)
    return mean + posterior.residuals @ weight, left * np.exp(2 * posterior.values["log_recipe_scatter"])
