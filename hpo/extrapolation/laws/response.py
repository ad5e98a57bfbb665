"""What settings off the best ones cost: a factor on the epochs, and for the learning rate the risk of divergence.

Shapes: the arrays of a response are (particles, places), a place being a batch (and a momentum), or (particles, 1)
where all places agree; coordinates are (places,) or (particles, places).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.intp]

LOST_BY_CHANCE = 0.005
MOST = 50.0  # log epochs: nothing is dearer


@dataclass(frozen=True)
class Response:
    """Any setting: quadratic near the best, in units of the spread, and ever less beyond.

    The law of such a setting is too vague for its far values to be held against it.
    """

    best: Array
    curvature: Array
    unit: float

    def at(self, index: Index) -> Response:
        """The response at some of the places, repeated or not."""
        return Response(self.best[:, index], self.curvature, self.unit)

    def cost(self, coordinate: Array, lowered: Array | None = None) -> Array:  # noqa: ARG002
        """Logarithm of the factor on the epochs: (particles, places).

        ``lowered`` is by how much a short warmup lowers the learning rate that a training bears, in its logarithm.
        """
        miss = (coordinate - self.best) / self.unit
        return np.asarray(self.curvature * 4 * np.log1p(miss**2 / 4))

    def risk(self, coordinate: Array, lowered: Array | None = None) -> Array | None:  # noqa: ARG002
        """Probability that a training is lost: (particles, places); None for a setting that loses none."""
        return None


@dataclass(frozen=True)
class Bounded(Response):
    """A learning rate: beyond ``limit`` (particles, places) trainings diverge, as surely as ``width`` is small."""

    limit: Array
    width: Array

    def risk(self, coordinate: Array, lowered: Array | None = None) -> Array:
        """Probability that a training is lost: (particles, places)."""
        limit = self.limit if lowered is None else self.limit - lowered
        steep = 1 / (1 + np.exp(np.clip((limit - coordinate) / self.width, -50, 50)))
        return np.asarray(LOST_BY_CHANCE + (1 - 2 * LOST_BY_CHANCE) * steep)


@dataclass(frozen=True)
class RateResponse(Bounded):
    """The learning rate. Below the best one progress is proportional to the rate, so the cost tends to |miss|.

    Above it is quadratic at first, with a wall where noise keeps the training from its target,and beyond ``limit``
    the training diverges. Arrays as in :class:`Response`; ``below`` is how far below the best rate the response is
    round before it is a straight line, ``wall`` and ``width`` (of the divergence) are distances in log rate too. Both
    sides shrink by ``room`` where a ceiling, and not noise, sets the best rate.
    """

    below: Array
    above: Array
    wall: Array
    room: Array

    def at(self, index: Index) -> RateResponse:
        """The response at some of the places, repeated or not."""
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
        """Logarithm of the factor on the epochs: (particles, places)."""
        miss = coordinate - self.best
        below = self.below * self.room
        slow = np.sqrt(below**2 + np.minimum(miss, 0) ** 2) - below
        above = miss if lowered is None else miss + lowered
        far = np.minimum(np.maximum(above, 0) / self.room, 10.0) ** 2
        fast = far / (2 * self.above) * (1 + (far / self.wall**2) ** 2)
        return np.asarray(slow + np.minimum(fast, MOST))
