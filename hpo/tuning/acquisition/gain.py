"""By how much a training is expected to lower the regret at the full-scale batch.

The regret left is what using the settings with the least expected loss is expected to lose, over what each particle
holds best: 0 when all agree on what to use, whatever else they disagree on. Outcomes of a training are simulated from
the particles, and particles reweighted by each of them: the knowledge gradient of Frazier, Powell and Dayanik 2008.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.residual import log_student
from hpo.tuning.acquisition.foretelling import doubt
from hpo.tuning.acquisition.prediction import Prediction

Array: TypeAlias = NDArray[np.float64]

OUTCOMES = 24  # simulated outcomes of a training
LEAST_SCALE = 0.05  # particles are few: two that differ by less are not told apart


def regret_left(weights: Array, regret: Array) -> Array:
    """Expected regret of the best choice (columns of ``regret``) under weights (..., particles) that sum to 1."""
    return np.asarray((weights @ regret).min(axis=-1))


def simulate(
    prediction: Prediction, weights: Array, log_limit: float, rng: np.random.Generator
) -> Array:
    """Weights of the particles (trainings, outcomes, particles) after simulated outcomes of each training.

    One that has not reached the target by ``log_limit`` is stopped there, and its curve foretells when it would have.
    """
    particles, trials = prediction.risk.shape
    places = (np.arange(OUTCOMES) + rng.random()) / OUTCOMES
    order = np.argsort(prediction.log_epochs.mean(axis=1))
    truth = order[np.minimum(np.searchsorted(np.cumsum(weights[order]), places), particles - 1)]
    noise = rng.permutation(_student_quantiles(OUTCOMES))
    scale = np.maximum(prediction.scale, LEAST_SCALE)
    likely = Prediction(prediction.log_epochs, scale, prediction.risk, prediction.shown)
    outcome = likely.log_epochs[truth] + scale[truth] * noise[:, None]  # (outcomes, trainings)
    lost = rng.permutation(places)[:, None] < likely.risk[truth]
    shown = rng.permutation(places)[:, None] < likely.shown[truth]
    looks = np.broadcast_to(rng.permutation(places)[:, None], lost.shape)
    found = np.empty((trials, OUTCOMES, particles))
    for index in range(OUTCOMES):
        share = np.exp(np.minimum(log_limit - outcome[index], 0.0))
        told = np.where(share < 1, doubt(share), 0.0)
        blurred = np.hypot(scale, told)
        reached = (
            np.log1p(-likely.risk * share)
            + log_student((outcome[index] - likely.log_epochs) / blurred)
            - np.log(blurred)
        )
        gone = np.where(
            shown[index], likely.log_diverged(), likely.log_missed(np.asarray(log_limit))
        )
        # one that is lost looks like the others at first
        seen_lost = lost[index] & (looks[index] < share)
        found[:, index] = np.where(seen_lost, gone, reached).T
    found += np.log(np.maximum(weights, 1e-300))
    found = np.exp(found - found.max(axis=2, keepdims=True))
    return np.asarray(found / found.sum(axis=2, keepdims=True))


def expected_regret(
    prediction: Prediction,
    weights: Array,
    regret: Array,
    log_limit: float,
    rng: np.random.Generator,
) -> Array:
    """Expected regret left after one training: (trainings,)."""
    after = simulate(prediction, weights, log_limit, rng)
    return np.asarray(regret_left(after, regret).mean(axis=1))


def expected_epochs(
    prediction: Prediction, weights: Array, log_limit: float, diverged_epochs: float
) -> Array:
    """Epochs that a training is expected to take before it reaches the target, diverges or is stopped: (trainings,)."""
    trained = np.exp(np.minimum(prediction.log_epochs, log_limit))
    gone = prediction.risk * prediction.shown
    return np.asarray(
        weights @ (gone * np.minimum(diverged_epochs, trained) + (1 - gone) * trained)
    )


def _student_quantiles(count: int) -> Array:
    """Evenly likely values of Student's t with 3 degrees of freedom: (count,)."""
    from scipy.special import stdtrit  # scipy.stats takes three times as long to import

    return np.asarray(stdtrit(3, (np.arange(count) + 0.5) / count))
