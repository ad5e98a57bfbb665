"""Tempered sequential Monte Carlo: particles move from the prior to the posterior, in small steps.

Del Moral, Doucet and Jasra 2006, "Sequential Monte Carlo samplers": the targets are prior x likelihood^t, where t is
raised so that the effective sample size halves at each stage. Dau and Chopin 2022, "Waste-free sequential Monte Carlo"
(arXiv:2011.02328): at each stage a few particles are resampled, each of them starts a chain of random-walk Metropolis
steps, and every state of these chains is a particle of the next stage. The chains must be long: many short ones with as
many steps in total do not arrive at the posterior of 50 unknowns, and their particles are too narrow or too wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
LogLikelihood: TypeAlias = Callable[[Array], Array]

MAX_STAGES = 60
MOST_CHAINS, LEAST_STEPS = 128, 50
STEPS_PER_PARTICLE = 6  # evaluations of the density at each stage, per particle of the result
TARGET_ACCEPTANCE, ADAPTATION = 0.25, 0.5


@dataclass(frozen=True)
class ParticleSample:
    """Equally weighted particles, shape (count, dimension), and how far the sampler got.

    ``temperature`` is 1 for the posterior; below 1, the sampler stopped early and the particles are wider than the
    posterior. ``log_evidence`` is the log marginal likelihood, up to a constant that all models of the same evidence
    share.
    """

    particles: Array
    temperature: float
    log_evidence: float = -math.inf


def sample_by_tempering(
    log_likelihood: LogLikelihood, dimension: int, count: int, rng: np.random.Generator
) -> ParticleSample:
    """Return ``count`` particles of the posterior in whitened coordinates, whose prior is standard normal.

    ``log_likelihood`` maps particles (particles, dimension) to (particles,). Where it overflows, a particle gets no
    weight.
    """
    steps = max(LEAST_STEPS, -(-STEPS_PER_PARTICLE * count // MOST_CHAINS))
    chains = max(2, -(-STEPS_PER_PARTICLE * count // steps))
    points = rng.standard_normal((chains * steps, dimension))
    fit = np.concatenate([_finite(log_likelihood(some)) for some in np.split(points, steps)])
    walk, temperature, evidence = _RandomWalk(log_likelihood), 0.0, 0.0
    for _ in range(MAX_STAGES):
        raised = _next_temperature(fit, temperature)
        weight = np.exp((raised - temperature) * (fit - fit.max()))
        evidence += float((raised - temperature) * fit.max() + np.log(weight.mean()))
        temperature = raised
        root, chosen = _root_of_covariance(points, weight), _systematic(weight, chains, rng)
        length = 2 * steps if temperature >= 1 else steps
        points, fit = walk.run(points[chosen], fit[chosen], temperature, root, length, rng)
        if temperature >= 1:
            break
    kept = rng.permutation(len(points))[:count]
    return ParticleSample(points[kept], temperature, evidence if temperature >= 1 else -math.inf)


@dataclass
class _RandomWalk:
    """Metropolis chains with normal steps, whose ``scale`` is adapted from step to step."""

    log_likelihood: LogLikelihood
    scale: float = 1.0

    def run(
        self,
        points: Array,
        fit: Array,
        temperature: float,
        root: Array,
        steps: int,
        rng: np.random.Generator,
    ) -> tuple[Array, Array]:
        """Return all states of the chains that start at ``points``, and their log likelihoods."""
        chain, fits = [points], [fit]
        for _ in range(steps - 1):
            proposal = points + self.scale * rng.standard_normal(points.shape) @ root.T
            new = _finite(self.log_likelihood(proposal))
            prior = -0.5 * (proposal**2 - points**2).sum(axis=1)
            take = np.log(rng.random(len(points))) < temperature * (new - fit) + prior
            points, fit = np.where(take[:, None], proposal, points), np.where(take, new, fit)
            chain.append(points)
            fits.append(fit)
            self.scale *= math.exp(ADAPTATION * (float(take.mean()) - TARGET_ACCEPTANCE))
        return np.concatenate(chain), np.concatenate(fits)


def _finite(log_likelihood: Array) -> Array:
    # a particle so far out that its likelihood overflows gets no weight; this is not a failure
    return np.where(np.isfinite(log_likelihood), log_likelihood, -1e12)


def _next_temperature(log_likelihood: Array, temperature: float) -> float:
    """Return the temperature at which half of the states still count, at most 1."""

    def effective_share(step: float) -> float:
        weight = np.exp(step * (log_likelihood - log_likelihood.max()))
        return float(weight.sum() ** 2 / (weight**2).sum() / len(weight))

    low, high = 0.0, 1.0 - temperature
    if effective_share(high) >= 0.5:
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if effective_share(middle) >= 0.5 else (low, middle)
    return temperature + max(low, 1e-9)


def _systematic(weight: Array, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    positions = (rng.random() + np.arange(count)) / count
    cumulative = np.cumsum(weight / weight.sum())
    return np.minimum(np.searchsorted(cumulative, positions), len(weight) - 1)


def _root_of_covariance(points: Array, weight: Array) -> Array:
    """Return the root of the weighted covariance, scaled for random-walk steps (Roberts, Gelman and Gilks 1997)."""
    dimension = points.shape[1]
    share = weight / weight.sum()
    away = points - share @ points
    covariance = (share[:, None] * away).T @ away + 1e-8 * np.eye(dimension)
    return np.asarray(2.38 / np.sqrt(dimension) * np.linalg.cholesky(covariance))
