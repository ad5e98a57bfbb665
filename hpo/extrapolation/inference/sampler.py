"""Tempered sequential Monte Carlo: particles move from a start distribution to the posterior, in small steps.

Del Moral, Doucet and Jasra 2006, "Sequential Monte Carlo samplers": the targets are start^(1-t) posterior^t, where t is
raised so that the effective sample size halves at each stage; then particles are resampled and moved by random-walk
Metropolis steps shaped by their own covariance. Everything is vectorised over particles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
LogDensity: TypeAlias = Callable[[Array], Array]

MAX_STAGES = 60
MOVES = 6
TARGET_ACCEPTANCE = 0.25


@dataclass(frozen=True)
class StudentStart:
    """A multivariate Student's t (normal if ``df`` is inf) to start from; root @ root.T is its scale matrix."""

    mean: Array
    root: Array
    df: float = np.inf

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Draw ``count`` particles, shape (count, dimension)."""
        normal = rng.standard_normal((count, len(self.mean)))
        if np.isfinite(self.df):
            normal *= np.sqrt(self.df / rng.chisquare(self.df, count))[:, None]
        return np.asarray(self.mean + normal @ self.root.T)

    def log_density(self, points: Array) -> Array:
        """Return the log density up to a constant, shape (count,)."""
        white = np.linalg.solve(self.root, (points - self.mean).T)
        square = (white**2).sum(axis=0)
        if not np.isfinite(self.df):
            return np.asarray(-0.5 * square)
        return np.asarray(-0.5 * (self.df + len(self.mean)) * np.log1p(square / self.df))

    @property
    def log_normalizer(self) -> float:
        """The constant that :meth:`log_density` omits, relative to that of a standard normal."""
        size = len(self.mean)
        spread = -float(np.linalg.slogdet(self.root)[1])
        if not np.isfinite(self.df):
            return spread
        return (
            spread
            + math.lgamma((self.df + size) / 2)
            - math.lgamma(self.df / 2)
            - size / 2 * math.log(self.df / 2)
        )


@dataclass(frozen=True)
class ParticleSample:
    """Equally weighted particles, shape (count, dimension), and how far the sampler got.

    ``temperature`` is 1 for the posterior; below 1, the sampler stopped early and the particles are wider than the
    posterior. ``log_evidence`` is the log marginal likelihood, up to a constant that all models of the same evidence
    share.
    """

    particles: Array
    temperature: float
    acceptance: float
    log_evidence: float = -math.inf


def standard_normal_start(dimension: int) -> StudentStart:
    """Return the prior in whitened coordinates."""
    return StudentStart(np.zeros(dimension), np.eye(dimension))


def start_near_mode(
    log_posterior: LogDensity,
    dimension: int,
    widen: float = 1.5,
    *,
    guesses: Array | None = None,
    searches: int = 1,
) -> StudentStart:
    """Return a wide Student's t at the mode, scaled by the curvature there; never wider than ``widen`` times the prior.

    The mode is the highest that ``searches`` searches find, starting at the best of ``guesses`` (guesses, dimension),
    by default at the prior's mean. With many trials this start is cheaper than the prior; the tempering corrects its
    shape.
    """
    from scipy.optimize import minimize  # its import takes half a second; a table does not need it

    def value_and_slope(point: Array) -> tuple[float, Array]:
        steps = np.vstack(
            [np.zeros(dimension), 1e-4 * np.eye(dimension), -1e-4 * np.eye(dimension)]
        )
        values = log_posterior(point + steps)
        return float(-values[0]), np.asarray(
            -(values[1 : dimension + 1] - values[dimension + 1 :]) / 2e-4
        )

    firsts = (
        np.zeros((1, dimension))
        if guesses is None
        else guesses[np.argsort(-_finite(log_posterior(guesses)))[:searches]]
    )
    found = [
        minimize(
            value_and_slope,
            np.clip(first, -5.0, 5.0),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-5.0, 5.0)] * dimension,
            options={"maxiter": 80},
        )
        for first in firsts
    ]
    mode = np.asarray(min(found, key=lambda each: float(each.fun)).x)
    hessian = np.empty((dimension, dimension))
    for row in range(dimension):
        step = np.zeros(dimension)
        step[row] = 0.02
        hessian[row] = (value_and_slope(mode + step)[1] - value_and_slope(mode - step)[1]) / 0.04
    if not np.isfinite(hessian).all():
        return standard_normal_start(dimension)
    precision, axes = np.linalg.eigh((hessian + hessian.T) / 2)
    # the prior alone has precision 1: a lower one is a numerical error, or a ridge where the prior dominates
    return StudentStart(mode, axes * (widen / np.sqrt(np.maximum(precision, 1.0))), df=5.0)


def sample_by_tempering(
    start: StudentStart,
    log_posterior: LogDensity,
    count: int,
    rng: np.random.Generator,
    *,
    moves: int = MOVES,
) -> ParticleSample:
    """Return ``count`` particles of the posterior.

    ``log_posterior`` maps particles (count, dimension) to (count,): the log likelihood plus the standard normal log
    prior up to its constant.
    """
    points = start.draw(count, rng)
    from_start, to_posterior = start.log_density(points), _finite(log_posterior(points))
    temperature, scale, accepted, evidence = 0.0, 1.0, 1.0, -start.log_normalizer
    for _ in range(MAX_STAGES):
        if temperature >= 1.0:
            break
        gain = to_posterior - from_start
        raised = _next_temperature(gain, temperature)
        weight = np.exp((raised - temperature) * (gain - gain.max()))
        evidence += float((raised - temperature) * gain.max() + np.log(weight.mean()))
        chosen = _systematic(weight, rng)
        points, from_start, to_posterior = points[chosen], from_start[chosen], to_posterior[chosen]
        temperature = raised
        root = _root_of_covariance(points)
        for _ in range(moves if temperature < 1 else 2 * moves):
            proposal = points + scale * rng.standard_normal(points.shape) @ root.T
            new_start, new_posterior = start.log_density(proposal), _finite(log_posterior(proposal))
            ratio = (1 - temperature) * (new_start - from_start) + temperature * (
                new_posterior - to_posterior
            )
            take = np.log(rng.random(count)) < ratio
            points = np.where(take[:, None], proposal, points)
            from_start = np.where(take, new_start, from_start)
            to_posterior = np.where(take, new_posterior, to_posterior)
            accepted = float(take.mean())
            scale *= float(np.exp(accepted - TARGET_ACCEPTANCE))
    return ParticleSample(
        points, temperature, accepted, evidence if temperature >= 1 else -math.inf
    )


def _finite(values: Array) -> Array:
    # a point so far out that it overflows gets no weight; this is not a failure
    return np.where(np.isfinite(values), values, -1e12)


def _next_temperature(gain: Array, temperature: float) -> float:
    def effective_share(step: float) -> float:
        weight = np.exp(step * (gain - gain.max()))
        return float(weight.sum() ** 2 / (weight**2).sum() / len(weight))

    low, high = 0.0, 1.0 - temperature
    if effective_share(high) >= 0.5:
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if effective_share(middle) >= 0.5 else (low, middle)
    return temperature + max(low, 1e-9)


def _systematic(weight: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    positions = (rng.random() + np.arange(len(weight))) / len(weight)
    cumulative = np.cumsum(weight / weight.sum())
    return np.minimum(np.searchsorted(cumulative, positions), len(weight) - 1)


def _root_of_covariance(points: Array) -> Array:
    dimension = points.shape[1]
    covariance = np.atleast_2d(np.cov(points.T)) + 1e-8 * np.eye(dimension)
    return np.asarray(2.38 / np.sqrt(dimension) * np.linalg.cholesky(covariance))
