"""Trials at the full-scale batch itself, few and late: they correct what the laws got wrong there.

The next trial is that with the most expected improvement on the laws as :mod:`hpo.extrapolation.discrepancy` corrects
them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

LEAST_STEP = (
    0.05  # from every trial before: nearer settings differ by less than two trainings scatter
)


def apart(coordinates: Array, tried: Array) -> NDArray[np.bool_]:
    """Which candidates are far enough from every trial to tell something new: (candidates,)."""
    away = ((coordinates[:, None, :] - tried[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(away.min(axis=1) >= LEAST_STEP**2)
