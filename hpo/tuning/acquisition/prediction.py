"""What each particle of a posterior says of trials not yet run, and of settings at the full-scale batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import Observation
from hpo.extrapolation.inference.posterior import Posterior
from hpo.extrapolation.inference.residual import across, kernel, log_student, student_cdf
from hpo.extrapolation.inference.trials import shown, trial_scale
from hpo.extrapolation.laws.configurations import (
    Configurations,
    Outlook,
    log_epochs,
    make_configurations,
    outlook,
)
from hpo.extrapolation.laws.setting_laws import MOMENTUM, RATE
from hpo.extrapolation.laws.warmup_law import WARMUP
from hpo.extrapolation.recommend import price, warmups_tried

Array: TypeAlias = NDArray[np.float64]
Settings: TypeAlias = Mapping[str, object]

LEAST = 1e-12  # probability of the impossible, as in the posterior's own likelihood


@dataclass(frozen=True)
class Prediction:
    """Of trials at one batch: log epochs to target, their scale (Student's t), and risk; each (particles, trials).

    ``shown`` (particles, 1) is the share of lost trainings that diverge.
    """

    log_epochs: Array
    scale: Array
    risk: Array
    shown: Array

    def at(self, columns: NDArray[np.intp] | Sequence[int]) -> Prediction:
        """The same of some of the trials, repeated or not."""
        return Prediction(
            self.log_epochs[:, columns], self.scale[:, columns], self.risk[:, columns], self.shown
        )

    def log_reached(self, log_epochs: Array) -> Array:
        """Log density of reaching the target at ``log_epochs``."""
        white = (log_epochs - self.log_epochs) / self.scale
        return np.asarray(np.log1p(-self.risk) + log_student(white) - np.log(self.scale))

    def log_missed(self, log_epochs: Array) -> Array:
        """Log probability of neither reaching the target within ``log_epochs`` nor diverging."""
        late = 1 - student_cdf((log_epochs - self.log_epochs) / self.scale)
        return np.asarray(
            np.log(np.maximum(self.risk * (1 - self.shown) + (1 - self.risk) * late, LEAST))
        )

    def log_diverged(self) -> Array:
        """Log probability of divergence."""
        return np.asarray(np.log(self.risk * self.shown))


def predict(
    posterior: Posterior, global_batch_size: int, settings: Sequence[Settings]
) -> Prediction:
    """What the particles say of one trial with each of the settings at this batch."""
    model, values, log_batch = posterior.model, posterior.values, float(np.log(global_batch_size))
    here = _configurations(posterior, global_batch_size, settings)
    seen = outlook(values, model.laws, model.warmup, here, posterior.rate_offset(log_batch))
    level, extra = _level(posterior, log_batch)
    needed = log_epochs(values, model.warmup, here, level[:, None] + seen.cost)
    scale = trial_scale(values, seen.cost)
    return Prediction(
        needed, np.sqrt(scale**2 + extra[:, None]), _risk(seen), shown(values)[:, None]
    )


def miss(
    posterior: Posterior, global_batch_size: int, settings: Sequence[Settings]
) -> tuple[Array, Array]:
    """Log factor on the epochs of the best at the full rate, and risk of a loss, at a batch: (particles, settings)."""
    model, values = posterior.model, posterior.values
    here = _configurations(posterior, global_batch_size, settings)
    offsets = posterior.rate_offset(float(here.log_batch[0]))
    seen = outlook(values, model.laws, model.warmup, here, offsets)
    level = log_best_epochs(posterior, global_batch_size)[:, None]
    return log_epochs(values, model.warmup, here, level + seen.cost) - level, _risk(seen)


def _configurations(
    posterior: Posterior, global_batch_size: int, settings: Sequence[Settings]
) -> Configurations:
    return make_configurations(
        np.array([np.log(global_batch_size)]),
        np.zeros(len(settings), dtype=np.intp),
        settings,
        posterior.model.laws,
        posterior.model.warmup,
    )


def _risk(seen: Outlook) -> Array:
    return np.clip(np.zeros_like(seen.cost) if seen.risk is None else seen.risk, 1e-3, 1 - 1e-3)


def lost(posterior: Posterior, global_batch_size: int, settings: Sequence[Settings]) -> Array:
    """Epochs over the fewest of settings at a batch, as :func:`price` counts them: (particles, settings)."""
    return np.exp(price(*miss(posterior, global_batch_size, settings)))


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
        if law.name == RATE and (offsets := posterior.rate_offset(float(log_batch[0]))) is not None:
            best = best + offsets[:, 0]
        told = law.value(best)
        momentum = np.asarray(told) if law.name == MOMENTUM else momentum
        for settings, value in zip(found, told, strict=True):
            settings[law.name] = float(value)
    if posterior.model.warmup is not None and posterior.model.warmup.tuned:
        for settings, warmup in zip(
            found, best_warmups(posterior, log_batch[0], found), strict=True
        ):
            settings[WARMUP] = float(warmup)
    return found


def best_warmups(posterior: Posterior, log_batch: float, settings: Sequence[Settings]) -> Array:
    """The epochs of warmup that each particle holds best, given its own other settings: (particles,)."""
    model, values, count = posterior.model, posterior.values, len(settings)
    assert model.warmup is not None
    level = log_best_epochs(posterior, round(float(np.exp(log_batch))))
    epochs = warmups_tried(model.warmup, log_batch, level)
    lost = np.empty((count, len(epochs)))
    offsets = posterior.rate_offset(log_batch)
    own = np.arange(count)
    for at, each in enumerate(epochs):
        here = make_configurations(
            np.array([log_batch]),
            np.zeros(count, dtype=np.intp),
            [{**one, WARMUP: each} for one in settings],
            model.laws,
            model.warmup,
        )
        seen = outlook(values, model.laws, model.warmup, here, offsets)
        needed = (
            log_epochs(values, model.warmup, here, level[:, None] + seen.cost)[own, own] - level
        )
        lost[:, at] = price(needed, None if seen.risk is None else seen.risk[own, own])
    return np.asarray(epochs[lost.argmin(axis=1)])


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
    return mean + posterior.residuals @ weight, left * np.exp(
        2 * posterior.values["log_recipe_scatter"]
    )
