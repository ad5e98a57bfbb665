"""The cost of suboptimal settings: a factor on the epochs, and, for the learning rate, the risk of divergence.

The arrays of a response have shape (particles, places), where a place is a batch size (and a momentum), or (particles,
1) if all places agree; coordinates have shape (places,) or (particles, places).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.intp]

LOST_BY_CHANCE = 0.005
MOST = 50.0  # the largest cost, in log epochs


@dataclass(frozen=True)
class SettingResponse:
    """The response of any setting: quadratic near the best value, in units of the spread, and flatter far from it.

    The law of such a setting is too uncertain to penalize distant values fully.
    """

    best: Array
    curvature: Array
    unit: float

    def at(self, index: Index) -> SettingResponse:
        """Return the response at the places selected by ``index``, in which a place may occur more than once."""
        return SettingResponse(self.best[:, index], self.curvature, self.unit)

    def cost(self, coordinate: Array, lowered: Array | None = None) -> Array:  # noqa: ARG002
        """Return the logarithm of the factor on the epochs: (particles, places).

        ``lowered`` is how much a short warmup lowers the log of the learning rate that a run tolerates.
        """
        miss = (coordinate - self.best) / self.unit
        return np.asarray(self.curvature * 4 * np.log1p(miss**2 / 4))

    def risk(self, coordinate: Array, lowered: Array | None = None) -> Array | None:  # noqa: ARG002
        """Return the probability (particles, places) that a run is lost; None if this setting cannot cause it."""
        return None


@dataclass(frozen=True)
class BoundedResponse(SettingResponse):
    """The response of a learning rate: beyond ``limit`` (particles, places), runs diverge.

    A small ``width`` means a sharp limit.
    """

    limit: Array
    width: Array

    def risk(self, coordinate: Array, lowered: Array | None = None) -> Array:
        """Return the probability that a run is lost: (particles, places)."""
        limit = self.limit if lowered is None else self.limit - lowered
        steep = 1 / (1 + np.exp(np.clip((limit - coordinate) / self.width, -50, 50)))
        return np.asarray(LOST_BY_CHANCE + (1 - 2 * LOST_BY_CHANCE) * steep)


@dataclass(frozen=True)
class RateResponse(BoundedResponse):
    """The response of a learning rate with a wall above the best value.

    Below the best rate, progress is proportional to the rate, so the cost tends to |deviation|. Above it, the cost is
    quadratic at first, followed by a wall where noise keeps the run from its target; beyond ``limit``, the run
    diverges. Arrays are as in :class:`SettingResponse`. ``below`` is the distance below the best rate over which the
    response is rounded before it becomes a straight line; ``wall`` and ``width`` (of the divergence) are also distances
    in log rate. Both sides shrink by ``room`` where a ceiling, not noise, limits the best rate.
    """

    below: Array
    above: Array
    wall: Array
    room: Array

    def at(self, index: Index) -> RateResponse:
        """Return the response at the places selected by ``index``, in which a place may occur more than once."""
        return RateResponse(
            self.best[:, index],
            self.curvature,
            self.unit,
            self.limit[:, index],
            self.width,
            self.below,
            self.above,
            self.wall,
            self.room[:, index],
        )

    def cost(self, coordinate: Array, lowered: Array | None = None) -> Array:
        """Return the logarithm of the factor on the epochs: (particles, places)."""
        miss = coordinate - self.best
        below = self.below * self.room
        slow = np.sqrt(below**2 + np.minimum(miss, 0) ** 2) - below
        above = miss if lowered is None else miss + lowered
        far = np.minimum(np.maximum(above, 0) / self.room, 10.0) ** 2
        fast = far / (2 * self.above) * (1 + (far / self.wall**2) ** 2)
        return np.asarray(slow + np.minimum(fast, MOST))
