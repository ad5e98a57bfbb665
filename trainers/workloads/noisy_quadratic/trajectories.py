"""The trajectory of the weights, either in expectation or sampled as in one training run."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from trainers.workloads.noisy_quadratic.dynamics import (
    Array,
    QuadraticUpdate,
    apply_affine_map,
    initial_quadratic_moments,
    many_steps,
    next_quadratic_moments,
)

_WORTH_A_MAP = 4
"""The number of updates at one rate from which an affine map, reused for many evaluations, beats single updates."""


class QuadraticTrajectory(Protocol):
    """The weights of one training run; ``state`` is their complete state, ``(rows, modes)``."""

    state: Array

    @property
    def squares(self) -> Array:
        """The (expected) theta^2, shape ``(modes,)``."""

    def move(self, update: QuadraticUpdate, steps: int, first_step: int) -> Array:
        """Do ``steps`` updates; return the sum ``(modes,)`` of ``squares`` before each update."""


class ExpectedWeights:
    """The expected second moments, which do not depend on the seed."""

    def __init__(self, initial_squares: Array) -> None:
        self.state = initial_quadratic_moments(initial_squares)
        self._map: tuple[tuple[float, float, int], Array] | None = None

    @property
    def squares(self) -> Array:
        """The expectation E[theta^2], shape ``(modes,)``."""
        squares: Array = self.state[0]
        return squares

    def move(self, update: QuadraticUpdate, steps: int, first_step: int) -> Array:  # noqa: ARG002 - nothing is drawn
        """Do ``steps`` updates, by an affine map if there are many, otherwise one by one."""
        if steps >= _WORTH_A_MAP:
            state, total = apply_affine_map(self._many(update, steps), self.state)
            self.state = np.ascontiguousarray(
                state
            )  # the layout of a restored checkpoint, on which sums depend
            return total
        total = np.zeros_like(self.squares)
        for _ in range(steps):
            total += self.squares
            self.state = next_quadratic_moments(self.state, update)
        return total

    def _many(self, update: QuadraticUpdate, steps: int) -> Array:
        # the map is reused between evaluations: within a run, only the rate and the batch size may change
        key = (float(update.learning_rate.flat[0]), float(update.noise.flat[0]), steps)
        if self._map is None or self._map[0] != key:
            self._map = (key, many_steps(update, steps))
        return self._map[1]


class SampledWeights:
    """Sampled theta and v, starting from theta = sqrt(initial_squares), with normal noise drawn for each update.

    The draws are a function of the seed and the first update of each move, so that a resumed run repeats them.
    """

    def __init__(self, initial_squares: Array, seed: int) -> None:
        self.state = np.stack([np.sqrt(initial_squares), np.zeros_like(initial_squares)])
        self._seed = seed

    @property
    def squares(self) -> Array:
        """The sampled theta^2, shape ``(modes,)``."""
        squares: Array = self.state[0] ** 2
        return squares

    def move(self, update: QuadraticUpdate, steps: int, first_step: int) -> Array:
        """Do ``steps`` updates with fresh noise."""
        rng = np.random.default_rng((self._seed, first_step))
        deviation, (theta, velocity) = np.sqrt(update.noise), self.state
        total: Array = np.zeros_like(theta)
        for _ in range(steps):
            total += theta * theta
            gradient = update.curvature * theta + deviation * rng.standard_normal(theta.shape)
            velocity = update.momentum * velocity + gradient
            direction = gradient + update.momentum * velocity if update.nesterov else velocity
            theta = theta - update.learning_rate * direction
        self.state = np.stack([theta, velocity])
        return total
