"""Shapes for epochs to target over learning rate and warmup: averages of real runs, with an unknown stability edge.

Log epochs fall with the log rate, ever more slowly, up to the edge of stability; beyond the edge, training runs
diverge. A long warmup moves the edge upwards at a small cost. The first evaluations of a run show another shape: they
hardly separate slow rates, and show the edge late. Both shapes are averages over the training runs in
benchmarks/search_economy: ten workloads with SGD, Adam and layer-wise optimizers. The position of a workload's edge is
unknown: each position is a hypothesis that the workload's runs make more or less likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

SLOW, POWER = 0.066, 1.15
"""At u e-foldings of the rate below the edge, log epochs are log(1 + SLOW exp(-POWER u)) above their minimum."""

SLOPES = (0.0, 0.25)
"""The additional decrease in log epochs per e-folding of the rate over the whole range: two hypotheses, flat and
falling.
"""

STEEP, FROM, ROUND = 2.8, -0.3, 0.25
"""The rise in log epochs per e-folding beyond the edge, where the rise starts relative to the edge, and how gradually
it starts.
"""

RELIEF, RELIEF_WIDTH, WARMUP_COST = 0.75, 0.5, 0.25
"""The e-foldings by which a long warmup moves the edge, the share of the training run over which it does so, and the
cost in log epochs of a warmup over the whole run.
"""

MOST = 1.8
"""Upper bound on the log epochs of a training run; at this bound, the run counts as lost."""

SLOW_SHOWN, EDGE_SHOWN, EDGE_POWER, EARLY_SLOPE = 0.1, 0.45, 0.45, 0.08
"""Constants of an early look, after a share s of a training run. Slowness shows with 0.1 (1 + s) of its effect and the
rise beyond the edge with 0.45 s^0.45; a higher rate looks faster than it is, by 0.08 (1 - s) per e-folding.
"""

USUAL = (1.8, 1.4)
"""Prior mean of the edge's position above the middle of the searched rates, in e-foldings, and its standard
deviation.
"""

LOST_AT, LOST_OVER = 1.0, 0.5
"""Log epochs beyond the edge at which half of the training runs are lost, and the width over which nearly all become
so.
"""

STEP, INSIDE, BEYOND, FLAT = 0.25, 0.5, 1.5, (-3.0, 0.5)
"""The spacing of the edge positions, their margins inside the range and beyond it, and where the slopes end around the
edge.
"""


@dataclass(frozen=True)
class ResponseShapes:
    """Hypotheses about a workload: the log rate of the edge, the slope below it, and the prior probability, each
    (hypotheses,).
    """

    edges: Array
    slopes: Array
    weights: Array

    @classmethod
    def between(cls, low: float, high: float) -> ResponseShapes:
        """Return the hypotheses for log rates searched between ``low`` and ``high``."""
        places = np.arange(low + INSIDE, high + BEYOND + STEP / 2, STEP)
        edges, slopes = (each.ravel() for each in np.meshgrid(places, SLOPES, indexing="ij"))
        above, error = USUAL
        weights = np.exp(-0.5 * ((edges - 0.5 * (low + high) - above) / error) ** 2)
        return cls(edges, slopes, weights / weights.sum())

    def epochs(self, rates: Array, warmup: Array) -> Array:
        """Return the log epochs to target, up to an additive constant, of shape (hypotheses, places).

        ``rates`` (places,) are log rates; ``warmup`` (places,) is a share of the epochs of the fastest run.
        """
        slow, lost = self._parts(rates, warmup)
        return np.asarray(np.minimum(slow + lost, MOST) + WARMUP_COST * warmup)

    def shown(self, rates: Array, warmup: Array, share: Array) -> Array:
        """Return the expected estimate of log epochs after a ``share`` (places,) of a training run: (hypotheses,
        places).
        """
        slow, lost = self._parts(rates, warmup)
        told = SLOW_SHOWN * (1 + share) * slow + EDGE_SHOWN * share**EDGE_POWER * lost
        told = told - EARLY_SLOPE * (1 - share) * np.clip(self._above(rates), *FLAT)
        return np.asarray(np.minimum(told, MOST) + WARMUP_COST * np.minimum(warmup, 1.0))

    def lost(self, rates: Array, warmup: Array) -> Array:
        """Return the probability that a training run fails to converge: (hypotheses, places)."""
        _, lost = self._parts(rates, warmup)
        return np.asarray(0.5 + 0.5 * np.tanh((lost - LOST_AT) / LOST_OVER))

    def _above(self, rates: Array) -> Array:
        return np.asarray(rates - self.edges[:, None])

    def _parts(self, rates: Array, warmup: Array) -> tuple[Array, Array]:
        """Return the log epochs due to slowness below the edge, and those due to the rise beyond it."""
        above = self._above(rates)
        slow = np.log1p(SLOW * np.exp(-POWER * np.clip(above, -8.0, 3.0)))
        slow = slow - self.slopes[:, None] * np.clip(above, *FLAT)
        moved = RELIEF * -np.expm1(-warmup / RELIEF_WIDTH)
        beyond = np.clip((above - moved - FROM) / ROUND, -50.0, 50.0)
        return slow, np.asarray(STEEP * ROUND * np.logaddexp(0.0, beyond))
