"""Fits the step model to measured rows: equally likely particles of its parameters, and what they say elsewhere.

A configuration's log throughput is the formula's plus a residual: software and batch are tuned anew at every scale.
Part of the residual is shared by neighbouring configurations, so that it widens the interval the farther the
extrapolation goes (Kennedy and O'Hagan 2001, the discrepancy of a computer model). The constant factor, the throughput
of the reference row, is integrated out in closed form under a flat prior of its logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.sampler import standard_normal, temper
from hpo.extrapolation.laws.priors import Normal
from hpo.planning.throughput.priors import LOG2_NODE_SIZE, StepPriors
from hpo.planning.throughput.rows import Measurement
from hpo.planning.throughput.step_model import Points, Reference, StepTerms, log_throughput, step_terms

Array: TypeAlias = NDArray[np.float64]

PARTICLES = 1500
SHARED_VARIANCE = 12.0          # variance of the shared part of the residual, over that of a configuration's own
CORRELATION_LENGTH = np.log(64.0)   # in |log N/N'| + |log b/b'|
RUN_VARIANCE = 0.25             # variance between runs of one configuration, over the same


@dataclass(frozen=True)
class StepPosterior:
    """Particles of the parameters by name, shape (particles,), with the residuals of the measured rows.

    ``level`` is the log throughput of the reference's ideal computation, (particles,); ``residuals`` what is left of
    the rows, (particles, rows); ``gain`` the inverse of the residuals' correlation, (rows, rows).
    """

    rows: Sequence[Measurement]
    reference: Reference
    node_size: float | None
    values: dict[str, Array]
    level: Array
    residuals: Array
    gain: Array

    def terms(self, accelerators: float, global_batch_size: float) -> StepTerms:
        """The step's terms at one point, each (particles, 1)."""
        return step_terms(self.values, self._point(accelerators, global_batch_size), self.reference)

    def log_throughput(self, accelerators: float, global_batch_size: float) -> tuple[Array, Array]:
        """Mean and standard deviation of the log samples per second of a new configuration, (particles,) each."""
        point = self._point(accelerators, global_batch_size)
        formula = log_throughput(step_terms(self.values, point, self.reference), point)[:, 0]
        near = _shared(_coordinates(self.rows), np.log([[accelerators, global_batch_size / accelerators]]))[:, 0]
        weight, ones = self.gain @ near, self.gain.sum(axis=0)
        variance = (1.0 + SHARED_VARIANCE - near @ weight + (1.0 - weight.sum()) ** 2 / ones.sum())
        return (self.level + formula + self.residuals @ weight,
                np.exp(self.values["log_scatter"]) * np.sqrt(max(float(variance), 0.0)))

    def _point(self, accelerators: float, global_batch_size: float) -> Points:
        return Points(np.array([accelerators]), np.array([global_batch_size]),
                      np.array([np.nan if self.node_size is None else self.node_size]),
                      np.array([_least_node_size(self.rows)]))


def fit_steps(rows: Sequence[Measurement], node_size: float | None, priors: StepPriors, rng: np.random.Generator, *,
              particles: int = PARTICLES) -> StepPosterior:
    """The posterior given ``rows``, one per configuration.

    ``node_size`` is accelerators per node where a row does not tell its nodes; None where that is not known either.
    """
    smallest = min(rows, key=lambda row: (row.accelerators, -row.global_batch_size))
    reference = Reference(smallest.accelerators, smallest.local_batch_size)
    points = _points(rows, node_size)
    gain = _gain(rows)
    logs = np.log([row.samples_per_second for row in rows])
    names = [one.name for one in fields(StepPriors)] + ["log2_node_size"]
    beliefs: list[Normal] = [getattr(priors, name) for name in names[:-1]] + [LOG2_NODE_SIZE]
    mean, sd = np.array([one.mean for one in beliefs]), np.array([one.sd for one in beliefs])

    def split(whitened: Array) -> dict[str, Array]:
        return dict(zip(names, (mean + sd * whitened).T, strict=True))

    def left(values: dict[str, Array]) -> tuple[Array, Array]:
        gaps = logs - log_throughput(step_terms(values, points, reference), points)
        level = gaps @ gain.sum(axis=0) / gain.sum()
        return level, gaps - level[:, None]

    def log_posterior(whitened: Array) -> Array:
        values = split(whitened)
        _, residuals = left(values)
        squares = np.einsum("pi,ij,pj->p", residuals, gain, residuals)
        scatter = values["log_scatter"]
        return np.asarray(-0.5 * (whitened**2).sum(axis=1) - (len(rows) - 1) * scatter
                          - 0.5 * squares * np.exp(-2.0 * scatter))

    values = split(temper(standard_normal(len(names)), log_posterior, particles, rng).particles)
    level, residuals = left(values)
    return StepPosterior(rows, reference, _asked_node_size(rows, node_size), values, level, residuals, gain)


def _points(rows: Sequence[Measurement], node_size: float | None) -> Points:
    sizes = [row.node_size or node_size or np.nan for row in rows]
    return Points(np.array([row.accelerators for row in rows], dtype=float),
                  np.array([row.global_batch_size for row in rows], dtype=float),
                  np.array(sizes), np.ones(len(rows)))


def _asked_node_size(rows: Sequence[Measurement], node_size: float | None) -> float | None:
    # rows on one node each say what a node holds at least, not where it ends
    showing = [row for row in rows if row.shows_node_size]
    if node_size is not None or not showing:
        return node_size
    return max(showing, key=lambda row: row.accelerators).node_size


def _least_node_size(rows: Sequence[Measurement]) -> float:
    return float(max((row.accelerators for row in rows if row.nodes == 1), default=1))


def _coordinates(rows: Sequence[Measurement]) -> Array:
    return np.log([[row.accelerators, row.local_batch_size] for row in rows])


def _shared(here: Array, there: Array) -> Array:
    far = np.abs(here[:, None, :] - there[None, :, :]).sum(axis=2)
    return np.asarray(SHARED_VARIANCE * np.exp(-far / CORRELATION_LENGTH))


def _gain(rows: Sequence[Measurement]) -> Array:
    own = np.array([1.0 + RUN_VARIANCE / row.runs for row in rows])
    coordinates = _coordinates(rows)
    return np.asarray(np.linalg.inv(_shared(coordinates, coordinates) + np.diag(own)))
