"""The expected dynamics of SGD on a quadratic with noisy gradients, as a closed recursion for each mode.

A mode with curvature h has the gradient g = h theta + noise of variance n. PyTorch's update, with heavy-ball or
Nesterov momentum (Sutskever et al., 2013), is

    v <- m v + g,    theta <- theta - lr d,    d = v (heavy ball)  or  g + m v (Nesterov)

The second moments E[theta^2], E[theta v], E[v^2] form a closed system, because the noise is independent of theta and v
(Zhang et al., arXiv:1907.04164, appendix; here for PyTorch's form). Preconditioning by curvature, the paper's model of
adaptive methods and of the effect of LARS between layers, gives mode i the rate lr h_i^-p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class QuadraticUpdate:
    """One update of every mode; shapes broadcast to ``(settings, modes)``, or ``(modes,)`` for one configuration.

    ``learning_rate`` is the rate of each mode, and ``noise`` is its gradient variance at the global batch size.
    """

    learning_rate: Array
    momentum: Array
    curvature: Array
    noise: Array
    nesterov: bool = False


def make_quadratic_update(
    curvature: Array,
    noise: Array,
    *,
    learning_rate: ArrayLike,
    global_batch_size: ArrayLike,
    momentum: ArrayLike = 0.0,
    preconditioning: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> QuadraticUpdate:
    """Return the update with these settings, which are numbers or arrays ``(settings,)``.

    ``curvature`` and per-sample ``noise`` are ``(modes,)``. Weight decay adds to the curvature in the gradient but not
    in the loss, so theta = 0 stays the optimum.
    """
    rate, momentum, batch = (
        np.asarray(value, dtype=float)[..., None]
        for value in (learning_rate, momentum, global_batch_size)
    )
    return QuadraticUpdate(
        learning_rate=rate * curvature**-preconditioning,
        momentum=momentum,
        curvature=curvature + weight_decay,
        noise=noise / batch,
        nesterov=nesterov,
    )


def initial_quadratic_moments(initial_squares: Array) -> Array:
    """Return the moments before the first update, where v = 0, with shape ``(3, ..., modes)``."""
    return np.stack(
        [initial_squares, np.zeros_like(initial_squares), np.zeros_like(initial_squares)]
    )


def next_quadratic_moments(moments: Array, update: QuadraticUpdate) -> Array:
    """Return the moments (E[theta^2], E[theta v], E[v^2]), shape ``(3, ..., modes)``, one update later.

    The step is d = p v + q g with p = m, q = 1 for heavy ball and p = m^2, q = 1 + m for Nesterov.
    """
    squares, cross, velocities = moments
    lr, m, h = update.learning_rate, update.momentum, update.curvature
    p, q = (m * m, 1 + m) if update.nesterov else (m, np.ones_like(m))
    theta_g, v_g, g_g = h * squares, h * cross, h * h * squares + update.noise
    theta_d = p * cross + q * theta_g
    d_d = p * p * velocities + 2 * p * q * v_g + q * q * g_g
    v_d = m * p * velocities + (m * q + p) * v_g + q * g_g  # of the new v
    return np.stack(
        [
            squares - 2 * lr * theta_d + lr * lr * d_d,
            m * cross + theta_g - lr * v_d,
            m * m * velocities + 2 * m * v_g + g_g,
        ]
    )


def stationary_quadratic_moments(update: QuadraticUpdate) -> Array:
    """Return the moments that a heavy-ball update leaves unchanged, shape ``(3, ..., modes)``.

    E[v^2] = 2 n / ((1-m) (2(1+m) - lr h)),  E[theta^2] = lr (1+m) / (2 h) E[v^2],  E[theta v] = -lr/2 E[v^2]:
    they are the fixed point of :func:`next_quadratic_moments`, which is repelling beyond the stability limit.
    """
    _check_heavy_ball(update)
    lr, m, h = update.learning_rate, update.momentum, update.curvature
    with np.errstate(divide="ignore", invalid="ignore"):
        velocities = 2 * update.noise / ((1 - m) * (2 * (1 + m) - lr * h))
        return np.stack([lr * (1 + m) / (2 * h) * velocities, -lr / 2 * velocities, velocities])


def squares_without_momentum(
    update: QuadraticUpdate, initial_squares: Array, steps: ArrayLike
) -> Array:
    """Return E[theta^2], ``(..., modes)``, after ``steps`` updates at a constant learning rate and momentum 0.

    E[theta_t^2] = s + (1 - lr h)^2t (theta_0^2 - s),   s = lr n / (h (2 - lr h))      (arXiv:1907.04164, eq. 3)
    """
    if np.any(update.momentum != 0):
        raise ValueError(
            f"momentum must be 0 for this closed form, but got {np.max(update.momentum):g}; "
            "next_quadratic_moments() and steps_to_target() support any momentum"
        )
    steps = np.asarray(steps)[..., None]
    floor = stationary_quadratic_moments(update)[0]
    return np.asarray(
        floor
        + (1 - update.learning_rate * update.curvature) ** (2 * steps) * (initial_squares - floor)
    )


def stability_limit(
    curvature: Array,
    *,
    momentum: ArrayLike = 0.0,
    preconditioning: float = 0.0,
    nesterov: bool = False,
) -> Array:
    """Return the learning rate above which the moments grow without bound, in the shape of ``momentum``.

    In the first mode to become unstable, the limit is lr h < 2 (1+m) for heavy ball (Polyak, 1964) and
    lr h < 2 (1+m) / (1+2m) for Nesterov; with preconditioning, h^(1-p) replaces h. Additive noise does not change it.
    """
    m = np.asarray(momentum, dtype=float)
    return np.asarray(
        2 * (1 + m) / ((1 + 2 * m) if nesterov else 1) / np.max(curvature ** (1 - preconditioning))
    )


def many_steps(update: QuadraticUpdate, steps: int) -> Array:
    """Return ``steps`` updates of one configuration as one affine map, ``(modes, 5, 5)``, for :func:`apply_affine_map`.

    The map acts on (E[theta^2], E[theta v], E[v^2], 1, S), where S sums E[theta^2] before each update.
    """
    modes = np.broadcast(update.learning_rate, update.curvature).size
    unit = np.eye(5)[:, :, None] * np.ones(modes)  # unit[i]: the i-th basis vector, for every mode
    constant = next_quadratic_moments(np.zeros((3, modes)), update)
    once = np.zeros((modes, 5, 5))
    for column in range(3):
        once[:, :3, column] = (next_quadratic_moments(unit[column, :3], update) - constant).T
    once[:, :3, 3] = constant.T
    once[:, 3, 3] = once[:, 4, 4] = once[:, 4, 0] = 1
    return np.linalg.matrix_power(once, steps)


def apply_affine_map(map_: Array, moments: Array) -> tuple[Array, Array]:
    """Return the moments ``(3, modes)`` after a map, and the sum ``(modes,)`` of E[theta^2] before each update."""
    extended = np.concatenate([moments, np.ones_like(moments[:1]), np.zeros_like(moments[:1])])
    after = np.einsum("mij,jm->im", map_, extended)
    return after[:3], after[4]


def _check_heavy_ball(update: QuadraticUpdate) -> None:
    if update.nesterov:
        raise ValueError(
            "nesterov must be false for the closed form; next_quadratic_moments() supports both"
        )
