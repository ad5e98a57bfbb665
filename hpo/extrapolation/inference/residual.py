"""What the law does not explain: residuals of configurations, and the scatter of single runs."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

SHARED = 0.5  # share of the residual's variance that neighbouring rungs have in common
LENGTH = 1.0  # in log batch: rungs a factor of e apart share exp(-1) times as much


def residual_correlation(places: Array) -> Array:
    """Return the correlation of the residuals of configurations at ``places``; each also has an independent part.

    ``places`` holds log batches, (configurations,), or log batches and log scales, (configurations, directions).
    """
    return residual_cross_correlation(places, places) + (1 - SHARED) * np.eye(len(places))


def residual_cross_correlation(places: Array, new: Array) -> Array:
    """Return the correlation of the residuals at ``places`` (rows) with those of ``new`` configurations (columns)."""
    one, other = places.reshape(len(places), -1), new.reshape(len(new), -1)
    distance = np.abs(one[:, None, :] - other[None, :, :]).sum(axis=2)
    return np.asarray(SHARED * np.exp(-distance / LENGTH))


def log_student(white: Array) -> Array:
    """Return the log density of Student's t with 3 degrees of freedom."""
    return np.asarray(-2 * np.log1p(white**2 / 3) - 1.0008888496)


def student_cdf(white: Array) -> Array:
    """Return the distribution function of Student's t with 3 degrees of freedom, in closed form."""
    scaled = white / np.sqrt(3)
    return np.asarray(0.5 + (scaled / (1 + scaled**2) + np.arctan(scaled)) / np.pi)
