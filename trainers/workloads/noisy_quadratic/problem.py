"""The noisy quadratic model of Zhang et al. (arXiv:1907.04164, section 3).

    loss = 1/2 sum_i h_i theta_i^2,     gradient of mode i = h_i theta_i + noise of variance c_i / B

with curvatures h_i = i^-exponent and per-sample noise c_i = noise_scale * h_i, as in the paper. This is the noise of a
model close to its optimum, where the gradient covariance is proportional to the Hessian. The noise enters only as
noise_scale / B, so the critical batch size is proportional to ``noise_scale``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.errors import DataError
from trainers.workloads.workload import check_options

Array = NDArray[np.float64]
MOST_MODES, MOST_SAMPLES = 10**7, 10**12


@dataclass(frozen=True, kw_only=True)
class QuadraticProblem:
    """A noisy quadratic; values out of range raise :class:`~trainers.errors.DataError`.

    ``modes``: number of eigenvalues. ``curvature_exponent``: how fast they decay. ``noise_scale``: variance of one
    sample's gradient divided by the curvature. ``initial_square``: theta_i^2 at the start, for every mode.
    ``train_samples``: samples in an epoch.
    """

    modes: int = 100
    curvature_exponent: float = 1.0
    noise_scale: float = 100.0
    initial_square: float = 1.0
    train_samples: int = 4096

    def __post_init__(self) -> None:
        _check_count("modes", self.modes, MOST_MODES)
        _check_count("train_samples", self.train_samples, MOST_SAMPLES)
        check_quadratic_number("curvature_exponent", self.curvature_exponent)
        check_quadratic_number("noise_scale", self.noise_scale)
        check_quadratic_number("initial_square", self.initial_square, above_zero=True)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> QuadraticProblem:
        """Create the problem from a study's ``data`` section; raises :class:`~trainers.errors.DataError` if invalid."""
        check_options(data, quadratic_option_names())
        return cls(**data)

    def to_data(self) -> dict[str, Any]:
        """Return the ``data`` section that :meth:`from_data` reads back."""
        return dataclasses.asdict(self)

    @cached_property
    def curvature(self) -> Array:
        """The curvatures h, shape ``(modes,)``, in decreasing order from 1."""
        return np.arange(1, self.modes + 1, dtype=float) ** -self.curvature_exponent

    @cached_property
    def noise(self) -> Array:
        """The gradient variances c of a single sample, shape ``(modes,)``."""
        return self.noise_scale * self.curvature

    @cached_property
    def initial_squares(self) -> Array:
        """The values of theta^2 before the first update, shape ``(modes,)``."""
        return np.full(self.modes, float(self.initial_square))

    @property
    def initial_loss(self) -> float:
        """The loss before the first update."""
        return float(self.loss(self.initial_squares))

    def loss(self, squares: Array) -> Array:
        """Return the loss, shape ``(...)``, at the (expected) theta^2, shape ``(..., modes)``."""
        return np.asarray(0.5 * (squares @ self.curvature))


def quadratic_option_names() -> tuple[str, ...]:
    """Return the data options that define a problem."""
    return tuple(field.name for field in dataclasses.fields(QuadraticProblem))


def check_quadratic_number(
    name: str, value: Any, *, above_zero: bool = False, at_most: float = math.inf
) -> None:
    """Raise :class:`~trainers.errors.DataError` unless ``value`` is a finite number of at least (or above) 0."""
    is_number = (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    )
    if not is_number or value < 0 or (above_zero and value == 0) or value > at_most:
        rule = "a number above 0" if above_zero else "a number of at least 0"
        raise DataError(
            f"{name} must be {rule}{'' if math.isinf(at_most) else f' and at most {at_most:g}'}, "
            f"but got {value!r}"
        )


def _check_count(name: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(f"{name} must be a whole number of at least 1, but got {value!r}")
    if value > most:
        raise DataError(f"{name} must be at most {most:,}, but got more")
