"""The exact optimum: best constant learning rate, fewest epochs to target at any batch size, critical batch size.

The search over the exact number of updates is deterministic, so that forecasts up to a full machine's batch size can be
scored. Two limits bracket the optimum (McCandlish et al., arXiv:1812.06162): the fewest samples, as B -> 0, and the
fewest updates, as B -> infinity. Their ratio is the critical batch size of E = E_min (1 + B / B_crit).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trainers.errors import JobError
from trainers.workloads.noisy_quadratic.dynamics import Array, stability_limit
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem
from trainers.workloads.noisy_quadratic.steps import steps_to_target

_RATES = 1024  # learning rates in the first search: with momentum, there are several minima
_LOOKS = 4  # each further search divides the previous bracket ...
_FEWER_RATES = 128  # ... by this many
_LOOKS_AT_MOMENTA = 2
_LAGS = np.geomspace(1, 0.01, 24)
"""Values of 1 - momentum in the search: at small batch sizes all momenta do equally well, and high ones are slow."""


@dataclass(frozen=True)
class QuadraticOptimum:
    """The settings that reach the target in the fewest updates; a tie is resolved to the middle learning rate."""

    global_batch_size: float
    learning_rate: float
    momentum: float
    steps: float
    epochs: float


def epochs_to_target(
    problem: QuadraticProblem,
    target_loss: float,
    *,
    learning_rate: ArrayLike,
    global_batch_size: ArrayLike,
    momentum: ArrayLike = 0.0,
    preconditioning: float = 0.0,
) -> Array:
    """Return the epochs until the expected loss first reaches the target at constant settings; inf if it never does."""
    steps = steps_to_target(
        problem,
        target_loss,
        learning_rate=learning_rate,
        global_batch_size=global_batch_size,
        momentum=momentum,
        preconditioning=preconditioning,
    )
    return np.asarray(steps * np.asarray(global_batch_size, dtype=float) / problem.train_samples)


def quadratic_optimum(
    problem: QuadraticProblem,
    target_loss: float,
    global_batch_size: float,
    *,
    momentum: float | None = 0.0,
    preconditioning: float = 0.0,
) -> QuadraticOptimum:
    """Return the best learning rate at this momentum (None: also the best momentum up to 0.99) and the fewest epochs.

    If ``global_batch_size`` is inf, there is no noise, and the epochs are infinite. Raises
    :class:`~trainers.errors.JobError` for a target that cannot be reached.
    """
    _check_target(problem, target_loss)
    if momentum is None:
        momentum = _best_momentum(problem, target_loss, global_batch_size, preconditioning)
    low, high = _range(
        problem, target_loss, global_batch_size, np.asarray(momentum), preconditioning
    )
    for look in range(_LOOKS):
        rates = np.geomspace(low, high, _FEWER_RATES if look else _RATES)
        steps = steps_to_target(
            problem,
            target_loss,
            learning_rate=rates,
            global_batch_size=global_batch_size,
            momentum=momentum,
            preconditioning=preconditioning,
        )
        first = int(np.argmin(steps))
        last = first
        while last + 1 < len(rates) and steps[last + 1] == steps[first]:
            last += 1
        low, high = rates[max(0, first - 1)], rates[min(len(rates) - 1, last + 1)]
    fewest = float(steps[first])
    return QuadraticOptimum(
        global_batch_size=global_batch_size,
        learning_rate=float(math.sqrt(rates[first] * rates[last])),
        momentum=momentum,
        steps=fewest,
        epochs=fewest * global_batch_size / problem.train_samples,
    )


def fewest_samples(
    problem: QuadraticProblem, target_loss: float, *, preconditioning: float = 0.0
) -> float:
    """Return the samples to target as the batch size goes to 0, at the best learning rate, for any momentum.

    In this limit SGD follows a differential equation in time tau = steps lr / (1-m), with temperature
    eta = lr / ((1-m) B): L(tau, eta) = L_0(tau) + eta N(tau), and the samples are tau / eta. The target fixes eta for
    each tau, which leaves tau N(tau) / (target - L_0(tau)) to be minimized.
    """
    _check_target(problem, target_loss)
    return _small_batch_limit(problem, target_loss, preconditioning)[0]


def fewest_steps(
    problem: QuadraticProblem,
    target_loss: float,
    *,
    momentum: float | None = 0.0,
    preconditioning: float = 0.0,
) -> float:
    """Return the updates to target as the batch size goes to infinity, at the best learning rate (and momentum)."""
    return quadratic_optimum(
        problem, target_loss, math.inf, momentum=momentum, preconditioning=preconditioning
    ).steps


def critical_batch_size(
    problem: QuadraticProblem,
    target_loss: float,
    *,
    momentum: float | None = 0.0,
    preconditioning: float = 0.0,
) -> float:
    """Return the critical batch size: fewest samples over fewest updates, where perfect and no scaling meet."""
    return fewest_samples(problem, target_loss, preconditioning=preconditioning) / fewest_steps(
        problem, target_loss, momentum=momentum, preconditioning=preconditioning
    )


def _small_batch_limit(
    problem: QuadraticProblem, target: float, preconditioning: float
) -> tuple[float, float]:
    """Return the fewest samples to target, and the temperature eta that achieves them."""
    h, noise = problem.curvature, problem.noise * problem.curvature**-preconditioning / 4
    speed = h ** (1 - preconditioning)
    if not noise.any():
        return 0.0, math.inf
    taus = np.geomspace(1e-4 / speed.max(), 1e4 / speed.min(), 512)
    for _ in range(_LOOKS):
        decay = np.exp(-2 * np.outer(taus, speed))
        room = np.maximum(target - decay @ (h * problem.initial_squares / 2), 0)
        with np.errstate(divide="ignore"):
            samples = taus * ((1 - decay) @ noise) / room
        best = int(np.argmin(samples))
        taus = (
            np.geomspace(taus[max(0, best - 1)], taus[min(len(taus) - 1, best + 1)], 512)
            if best
            else taus
        )
    return float(samples.min()), float((taus / samples)[np.argmin(samples)])


def _range(
    problem: QuadraticProblem,
    target: float,
    batch: float,
    momenta: Array,
    preconditioning: float,
) -> tuple[Array, Array]:
    """Return a bracket for the best learning rate, around the small-batch limit's and below the stability limit."""
    limit = stability_limit(problem.curvature, momentum=momenta, preconditioning=preconditioning)
    small = (1 - momenta) * batch * _small_batch_limit(problem, target, preconditioning)[1]
    return np.minimum(limit, small) / 32, np.minimum(limit * (1 - 1e-9), 8 * small)


def _best_momentum(
    problem: QuadraticProblem, target: float, batch: float, preconditioning: float
) -> float:
    """Return the momentum up to 0.99 that needs the fewest updates, with each momentum at its best learning rate."""
    lags = _LAGS
    for _ in range(_LOOKS_AT_MOMENTA):
        low, high = _range(problem, target, batch, 1 - lags, preconditioning)
        rates = np.geomspace(low, high, _FEWER_RATES)
        steps = steps_to_target(
            problem,
            target,
            learning_rate=rates,
            global_batch_size=batch,
            momentum=np.broadcast_to(1 - lags, rates.shape),
            preconditioning=preconditioning,
        )
        best = int(np.argmin(steps.min(0)))  # the lowest momentum in a tie
        chosen = float(1 - lags[best])
        lags = np.geomspace(lags[max(0, best - 1)], lags[min(len(lags) - 1, best + 1)], len(lags))
    return chosen


def _check_target(problem: QuadraticProblem, target_loss: float) -> None:
    if not 0 < target_loss < problem.initial_loss:
        raise JobError(
            "target_loss must be above 0, which no run reaches, and below the initial loss "
            f"{problem.initial_loss:.4g}, but got {target_loss!r}"
        )
