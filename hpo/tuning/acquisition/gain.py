"""How much a trial is expected to narrow down the best settings at the full-scale batch.

Uncertainty is the expected regret of acting on a guess: epochs lost where settings that are best to one particle are
used and another is the truth, averaged over pairs of particles. It is 0 when all agree on what to use, whatever
else they disagree on, and every outcome of a trial that tells particles apart lowers it on average. (The one-step
knowledge gradient, Frazier, Powell and Dayanik 2008, asks for the loss of the single best decision instead; that is
flat wherever one trial cannot change the decision. Entropy search, Hennig and Schuler 2012, counts bits, whether or not
they matter to the loss.) Outcomes are simulated from the particles, and particles reweighted by each of them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.tuning.acquisition.prediction import Prediction

Array: TypeAlias = NDArray[np.float64]

OUTCOMES = 24  # simulated outcomes of a trial
EPOCHS_WEIGHT = (
    0.05  # what the variance of the log epochs at full scale counts beside the settings' regret
)
LEAST_SCALE = 0.05  # particles are few: two that differ by less are not told apart


def pairwise_regret(loss: Array, log_epochs: Array) -> Array:
    """Loss of using particle j's best settings if particle i is the truth: (particles, particles), of each the excess.

    ``loss`` is that of settings (columns) by truth (rows), ``log_epochs`` (particles,) those at the full-scale batch.
    """
    excess = loss - np.diagonal(loss)[:, None]
    spread = 0.5 * (log_epochs[:, None] - log_epochs[None, :]) ** 2
    return np.asarray((excess + excess.T) / 2 + EPOCHS_WEIGHT * np.minimum(spread, 1.0))


def uncertainty(weights: Array, regret: Array) -> Array:
    """Expected pairwise regret under weights (..., particles) that sum to 1."""
    return np.asarray(np.einsum("...i,...i->...", weights @ regret, weights))


def simulate(
    prediction: Prediction, weights: Array, log_limit: float, rng: np.random.Generator
) -> Array:
    """Weights of the particles (trials, outcomes, particles) after simulated outcomes of each trial.

    A trial that has not reached the target by ``log_limit`` is stopped there.
    """
    particles, trials = prediction.risk.shape
    places = (np.arange(OUTCOMES) + rng.random()) / OUTCOMES
    order = np.argsort(prediction.log_epochs.mean(axis=1))
    truth = order[np.minimum(np.searchsorted(np.cumsum(weights[order]), places), particles - 1)]
    noise = rng.permutation(_student_quantiles(OUTCOMES))
    scale = np.maximum(prediction.scale, LEAST_SCALE)
    likely = Prediction(prediction.log_epochs, scale, prediction.risk, prediction.shown)
    outcome = likely.log_epochs[truth] + scale[truth] * noise[:, None]  # (outcomes, trials)
    diverged = rng.permutation(places)[:, None] < likely.risk[truth]
    missed = likely.log_missed(np.asarray(log_limit))  # (particles, trials)
    found = np.empty((trials, OUTCOMES, particles))
    for index in range(OUTCOMES):
        reached = likely.log_reached(outcome[index][None, :])
        log_weight = np.where(outcome[index] > log_limit, missed, reached)
        log_weight = np.where(diverged[index], likely.log_diverged(), log_weight)
        found[:, index] = log_weight.T
    found += np.log(np.maximum(weights, 1e-300))
    found = np.exp(found - found.max(axis=2, keepdims=True))
    return np.asarray(found / found.sum(axis=2, keepdims=True))


def expected_uncertainty(
    prediction: Prediction,
    weights: Array,
    regret: Array,
    log_limit: float,
    rng: np.random.Generator,
) -> Array:
    """Expected uncertainty after one trial: (trials,)."""
    return np.asarray(
        uncertainty(simulate(prediction, weights, log_limit, rng), regret).mean(axis=1)
    )


def expected_epochs(
    prediction: Prediction, weights: Array, log_limit: float, diverged_epochs: float
) -> Array:
    """Epochs that a trial is expected to train before it reaches the target, diverges or is stopped: (trials,)."""
    trained = np.exp(np.minimum(prediction.log_epochs, log_limit))
    return np.asarray(
        weights
        @ (prediction.risk * np.minimum(diverged_epochs, trained) + (1 - prediction.risk) * trained)
    )


def _student_quantiles(count: int) -> Array:
    """Evenly likely values of Student's t with 3 degrees of freedom: (count,)."""
    from scipy.special import stdtrit  # scipy.stats takes three times as long to import

    return np.asarray(stdtrit(3, (np.arange(count) + 0.5) / count))
