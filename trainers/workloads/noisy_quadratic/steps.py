"""Compute updates to target at constant settings, for thousands of settings at once, without computing every update.

The mean of (theta, v) is multiplied by M = [[1 - lr h, -lr m], [h, m]] in each update, so the second moments are
M^t (moments_0 - stationary) M^t' + stationary. By the Cayley-Hamilton theorem, every power of M is a M + b, with two
numbers per mode, and multiplying two powers costs a handful of multiplications.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainers.workloads.noisy_quadratic.dynamics import (
    Array,
    make_quadratic_update,
    stationary_quadratic_moments,
)
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem

MAX_STEPS = 2**40
"""The number of updates after which a run counts as never reaching its target."""

_STRIDES = 8  # strides per doubling: each is at most an eighth of the steps done
_SETTLED = 1e-12  # the remaining share of the start at which a run counts as stationary
_ELEMENTS = 2**15  # settings x modes processed at a time, so that the arrays fit in the cache

Power = tuple[Array, Array]
"""The coefficients a and b of M^t = a M + b, each ``(settings, modes)``."""


@dataclass(frozen=True)
class _Runs:
    """The loss terms at any step, as arrays ``(settings, modes)``; ``index`` and ``momentum`` are per setting."""

    index: NDArray[np.int64]
    trace: Array
    momentum: Array  # (settings, 1): the determinant of M
    keep: Array  # 1 - lr h, the corner of M
    push: Array  # -lr m, the other entry in the first row of M
    floor: Array  # half h times the stationary moments: of theta^2 ...
    offsets: tuple[
        Array, Array, Array
    ]  # ... and half h times (initial - stationary): theta^2, theta v, v^2

    def chosen(self, mask: NDArray[np.bool_]) -> _Runs:
        first, second, third = self.offsets
        return _Runs(
            self.index[mask],
            self.trace[mask],
            self.momentum[mask],
            self.keep[mask],
            self.push[mask],
            self.floor[mask],
            (first[mask], second[mask], third[mask]),
        )

    def times(self, one: Power, other: Power) -> Power:
        """Return the product of two powers, using M^2 = trace M - momentum."""
        (a, b), (c, d) = one, other
        ac = a * c
        return ac * self.trace + a * d + b * c, b * d - self.momentum * ac

    def loss(self, power: Power) -> Array:
        """Return the expected loss at M^t, ``(settings,)``."""
        a, b = power
        own, cross = a * self.keep + b, a * self.push
        first, second, third = self.offsets
        return np.asarray(
            self.floor.sum(-1)
            + (own * own * first + 2 * own * cross * second + cross * cross * third).sum(-1)
        )


def steps_to_target(
    problem: QuadraticProblem,
    target_loss: float,
    *,
    learning_rate: ArrayLike,
    global_batch_size: ArrayLike,
    momentum: ArrayLike = 0.0,
    preconditioning: float = 0.0,
    max_steps: int = MAX_STEPS,
) -> Array:
    """Return the fewest updates (at least 1) after which the expected loss is at most the target; inf if never.

    Settings are numbers or arrays that broadcast to ``(settings,)``, the shape of the result. The result is exact where
    the loss falls. While the loss may still oscillate (10 / (1 - m) updates), every update is checked. Later, when
    oscillations have decayed to e^-10, at least eight points per doubling are checked, with bisection between them.
    """
    rates, batches, momenta = np.broadcast_arrays(
        *(np.asarray(each, dtype=float) for each in (learning_rate, global_batch_size, momentum))
    )
    steps = np.full(rates.size, np.inf)
    order = np.argsort(momenta.ravel(), kind="stable")  # equal momenta oscillate equally long
    for chunk in np.array_split(order, math.ceil(order.size * problem.modes / _ELEMENTS)):
        with np.errstate(over="ignore", invalid="ignore"):
            _search(
                _runs(
                    problem,
                    rates.ravel()[chunk],
                    batches.ravel()[chunk],
                    momenta.ravel()[chunk],
                    preconditioning,
                    chunk,
                ),
                target_loss,
                max_steps,
                steps,
            )
    return steps.reshape(rates.shape)


def _runs(
    problem: QuadraticProblem,
    rates: Array,
    batches: Array,
    momenta: Array,
    preconditioning: float,
    index: NDArray[np.int64],
) -> _Runs:
    update = make_quadratic_update(
        problem.curvature,
        problem.noise,
        learning_rate=rates,
        global_batch_size=batches,
        momentum=momenta,
        preconditioning=preconditioning,
    )
    half, (squares, cross, velocities) = problem.curvature / 2, stationary_quadratic_moments(update)
    keep = 1 - update.learning_rate * update.curvature
    return _Runs(
        index=index,
        trace=keep + update.momentum,
        momentum=update.momentum,
        keep=keep,
        push=-update.learning_rate * update.momentum,
        floor=half * squares,
        offsets=(half * (problem.initial_squares - squares), -half * cross, -half * velocities),
    )


def _search(runs: _Runs, target: float, max_steps: int, result: Array) -> None:
    """Advance all settings together, with doubling strides; record each setting's steps when it reaches the target."""
    at: Power = (np.zeros_like(runs.trace), np.ones_like(runs.trace))
    powers: list[Power] = [(np.ones_like(runs.trace), np.zeros_like(runs.trace))]  # of M^(2^k)
    strides = max(_STRIDES, math.ceil(10 / (1 - float(runs.momentum.max()))))
    done = 0
    while done < max_steps:
        for _ in range(strides):
            ahead = runs.times(at, powers[-1])
            loss = runs.loss(ahead)
            arrived = loss <= target
            if arrived.any():
                mask = arrived
                result[runs.index[mask]] = done + _bisect(
                    runs.chosen(mask),
                    _chosen(at, mask),
                    [_chosen(power, mask) for power in powers],
                    target,
                )
            at, done = ahead, done + 2 ** (len(powers) - 1)
            going = ~arrived & np.isfinite(loss)
            if not going.all():
                runs, at, powers = (
                    runs.chosen(going),
                    _chosen(at, going),
                    [_chosen(each, going) for each in powers],
                )
        moving = np.maximum(np.abs(at[0]), np.abs(at[1])).max(-1, initial=0) > _SETTLED
        runs, at, powers = (
            runs.chosen(moving),
            _chosen(at, moving),
            [_chosen(each, moving) for each in powers],
        )
        if not runs.index.size:
            return
        powers.append(runs.times(powers[-1], powers[-1]))
        strides = _STRIDES


def _bisect(runs: _Runs, at: Power, powers: list[Power], target: float) -> Array:
    """Return the updates from ``at``, above the target, to the first step at or below it, within the last power."""
    passed = np.zeros(len(runs.index))
    for exponent in range(len(powers) - 2, -1, -1):
        ahead = runs.times(at, powers[exponent])
        above = runs.loss(ahead) > target
        at = (np.where(above[:, None], ahead[0], at[0]), np.where(above[:, None], ahead[1], at[1]))
        passed += above * 2.0**exponent
    return passed + 1


def _chosen(power: Power, mask: NDArray[np.bool_]) -> Power:
    return power[0][mask], power[1][mask]
