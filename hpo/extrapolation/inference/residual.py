"""What the law leaves over: residuals of configurations, and the scatter of single trainings."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

SHARED = 0.5  # share of the residual's variance that neighbouring rungs have in common
LENGTH = 1.0  # in log batch: rungs a factor of e apart have exp(-1) of that in common


def kernel(log_batch: Array) -> Array:
    """Correlation of the residuals of configurations at ``log_batch``; each also has a part of its own."""
    return across(log_batch, log_batch) + (1 - SHARED) * np.eye(len(log_batch))


def across(log_batch: Array, new_log_batch: Array) -> Array:
    """Correlation of the residuals at ``log_batch`` (rows) with those of new configurations (columns)."""
    return np.asarray(
        SHARED * np.exp(-np.abs(log_batch[:, None] - new_log_batch[None, :]) / LENGTH)
    )


def log_student(white: Array) -> Array:
    """Log density of Student's t with 3 degrees of freedom."""
    return np.asarray(-2 * np.log1p(white**2 / 3) - 1.0008888496)


def student_cdf(white: Array) -> Array:
    """Distribution function of Student's t with 3 degrees of freedom, in closed form."""
    scaled = white / np.sqrt(3)
    return np.asarray(0.5 + (scaled / (1 + scaled**2) + np.arctan(scaled)) / np.pi)
