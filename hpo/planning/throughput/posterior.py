"""Fits the step model to measured rows: equally likely particles of its parameters, and their predictions.

A configuration's log throughput is the value of the formula plus a residual, as software and batch are retuned at every
scale. Neighbouring configurations share part of the residual, so the interval widens with the distance of the
extrapolation (the model discrepancy of Kennedy and O'Hagan 2001). The constant factor, the throughput of the reference
row, is integrated out in closed form under a flat prior on its logarithm.

Rows under one name can come from different systems, for example with another chassis or other links. One row may
therefore have a normally distributed offset. The posterior sums in closed form over which row has it, if any (Box and
Tiao 1968, Biometrika 55: a normal likelihood contaminated by one of larger variance, with at most one bad row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.sampler import sample_by_tempering
from hpo.extrapolation.laws.priors import NormalPrior
from hpo.planning.throughput.priors import LOG2_NODE_SIZE, LOG2_POD_SIZE, POD_SHARE, StepPriors
from hpo.planning.throughput.rows import Measurement
from hpo.planning.throughput.step_model import (
    ReferenceRow,
    StepTerms,
    ThroughputPoints,
    log_throughput,
    step_terms,
)

Array: TypeAlias = NDArray[np.float64]

PARTICLES = 1500
SHARED_VARIANCE = (
    12.0  # variance of the shared part of the residual, relative to that of its independent part
)
CORRELATION_LENGTH = np.log(64.0)  # in |log N/N'| + |log b/b'|
RUN_VARIANCE = 0.25  # variance between runs of one configuration, relative to the independent part
ONE_NODE_SPREAD = 1.3  # widens the prior on the network between nodes if no row uses it
ODD_ODDS = 0.25  # prior odds that a given row, rather than none, is from an odd system
ODD_SD = 0.1  # standard deviation of the offset of an odd system, in log samples per second


@dataclass(frozen=True)
class StepPosterior:
    """Particles of the parameters by name, each of shape (particles,), with the residuals of the measured rows.

    ``level``, of shape (particles,), is the log throughput of the reference's ideal computation. ``residuals``, of
    shape (particles, rows), holds the residuals of the rows, and ``gain``, of shape (rows, rows), is the inverse of
    their correlation. ``odd`` is the index of the row from an odd system, or the number of rows if there is none.
    ``offset`` and ``offset_variance``, each of shape (particles,), are the mean and variance of that row's offset in
    log throughput. ``log_evidence`` is the log marginal likelihood of the rows' log samples per second, without
    constants from the flat level and 2 pi.
    """

    rows: Sequence[Measurement]
    reference: ReferenceRow
    node_size: float | None
    values: dict[str, Array]
    level: Array
    residuals: Array
    gain: Array
    odd: NDArray[np.intp]
    offset: Array
    offset_variance: Array
    log_evidence: float

    def terms(self, accelerators: float, global_batch_size: float) -> StepTerms:
        """Return the terms of the step at one point, each of shape (particles, 1)."""
        return step_terms(self.values, self._point(accelerators, global_batch_size), self.reference)

    def log_throughput(self, accelerators: float, global_batch_size: float) -> tuple[Array, Array]:
        """Return the mean and standard deviation of log samples per second at a new point, both (particles,) arrays."""
        point = self._point(accelerators, global_batch_size)
        formula = log_throughput(step_terms(self.values, point, self.reference), point)[:, 0]
        near = _shared(
            _coordinates(self.rows), np.log([[accelerators, global_batch_size / accelerators]])
        )[:, 0]
        weight, ones = self.gain @ near, self.gain.sum(axis=0)
        variance = 1.0 + SHARED_VARIANCE - near @ weight + (1.0 - weight.sum()) ** 2 / ones.sum()
        leverage = np.append(weight + (1.0 - weight.sum()) * ones / ones.sum(), 0.0)[self.odd]
        scatter = np.exp(2.0 * self.values["log_scatter"]) * max(float(variance), 0.0)
        return (
            self.level + formula + self.residuals @ weight - leverage * self.offset,
            np.sqrt(scatter + leverage**2 * self.offset_variance),
        )

    def odd_row(self) -> tuple[Measurement, float, float] | None:
        """Return the row most likely from an odd system, its probability, and its ratio to the others' prediction.

        Return None if there is no such row, or if there are at most two rows, so that it is unclear which one is odd.
        """
        if len(self.rows) < 3:
            return None
        counts = np.bincount(self.odd, minlength=len(self.rows) + 1)[:-1]
        place = int(counts.argmax())
        if counts[place] == 0:
            return None
        return (
            self.rows[place],
            float(counts[place] / len(self.odd)),
            float(np.exp(np.mean(self.offset[self.odd == place]))),
        )

    def _point(self, accelerators: float, global_batch_size: float) -> ThroughputPoints:
        return ThroughputPoints(
            np.array([accelerators]),
            np.array([global_batch_size]),
            np.array([np.nan if self.node_size is None else self.node_size]),
            np.array([_least_node_size(self.rows)]),
        )


def fit_steps(
    rows: Sequence[Measurement],
    node_size: float | None,
    priors: StepPriors,
    rng: np.random.Generator,
    *,
    particles: int = PARTICLES,
) -> StepPosterior:
    """Return the posterior given ``rows``, one per configuration.

    ``node_size`` is the number of accelerators per node for rows that do not give their nodes; None if unknown.
    """
    smallest = min(rows, key=lambda row: (row.accelerators, -row.global_batch_size))
    reference = ReferenceRow(smallest.accelerators, smallest.local_batch_size)
    points = _points(rows, node_size)
    gain = _gain(rows)
    logs = np.log([row.samples_per_second for row in rows])
    names = [one.name for one in fields(StepPriors)] + ["log2_node_size"]
    beliefs: list[NormalPrior] = [getattr(priors, name) for name in names[:-1]] + [LOG2_NODE_SIZE]
    mean, sd = np.array([one.mean for one in beliefs]), np.array([one.sd for one in beliefs])
    if all(within_one_node(row, node_size) for row in rows):
        sd[names.index("log_inter")] *= ONE_NODE_SPREAD

    def split(whitened: Array) -> dict[str, Array]:
        values = dict(zip(names, (mean + sd * whitened).T, strict=True))
        values["log2_node_size"] = _log2_node_sizes(
            whitened[:, -1], np.log2(_least_node_size(rows))
        )
        return values

    def left(values: dict[str, Array]) -> tuple[Array, Array]:
        gaps = logs - log_throughput(step_terms(values, points, reference), points)
        level = gaps @ gain.sum(axis=0) / gain.sum()
        return level, gaps - level[:, None]

    precision = (
        gain - np.outer(gain.sum(axis=0), gain.sum(axis=0)) / gain.sum()
    )  # precision of the rows, with the level integrated out

    def log_likelihood(whitened: Array) -> Array:
        values = split(whitened)
        _, residuals = left(values)
        scatter = values["log_scatter"]
        squares = np.einsum("pi,ij,pj->p", residuals, gain, residuals) * np.exp(-2.0 * scatter)
        log_odds, _, _ = _odd_systems(residuals, precision, scatter)
        return np.asarray(
            -(len(rows) - 1) * scatter - 0.5 * squares + np.logaddexp.reduce(log_odds, axis=1)
        )

    sample = sample_by_tempering(log_likelihood, len(names), particles, rng)
    values = split(sample.particles)
    level, residuals = left(values)
    log_odds, offsets, variances = _odd_systems(residuals, precision, values["log_scatter"])
    chances = np.exp(log_odds - np.logaddexp.reduce(log_odds, axis=1)[:, None])
    odd = (
        (chances.cumsum(axis=1) < rng.random(len(chances))[:, None]).sum(axis=1).clip(max=len(rows))
    )
    chosen = np.arange(len(odd)), odd
    evidence = (
        sample.log_evidence
        + 0.5 * np.linalg.slogdet(gain)[1]
        - 0.5 * np.log(gain.sum())
        - np.log1p(len(rows) * ODD_ODDS)
    )
    return StepPosterior(
        rows,
        reference,
        _asked_node_size(rows, node_size),
        values,
        level,
        residuals,
        gain,
        odd,
        offsets[chosen],
        variances[chosen],
        float(evidence),
    )


def _odd_systems(
    residuals: Array, precision: Array, log_scatter: Array
) -> tuple[Array, Array, Array]:
    """Return the log odds that each row is the odd one (0 for none), then its offset and the offset's variance.

    All have shape (particles, rows + 1); the residuals have shape (particles, rows). An offset of variance ODD_SD^2 on
    row i is a rank-one change of the rows' covariance (Sherman and Morrison 1950). ``precision`` is the inverse of the
    covariance in units of the scatter.
    """
    inverse = np.exp(-2.0 * log_scatter)[:, None]
    pull, curvature = residuals @ precision * inverse, np.diag(precision) * inverse
    variance = 1.0 / (1.0 / ODD_SD**2 + curvature)
    log_odds = np.log(ODD_ODDS) + 0.5 * pull**2 * variance + 0.5 * np.log(variance / ODD_SD**2)
    none = np.zeros((len(residuals), 1))
    return (
        np.hstack([log_odds, none]),
        np.hstack([pull * variance, none]),
        np.hstack([variance, none]),
    )


def _log2_node_sizes(whitened: Array, least: float) -> Array:
    """Map standard normal numbers to node sizes of at least 2^``least`` accelerators: a mixture of nodes and pods."""
    from scipy.special import ndtr

    grid = np.linspace(max(least, 0.0), 20.0, 401)
    node, pod = (
        ndtr((belief.mean - grid) / belief.sd) for belief in (LOG2_NODE_SIZE, LOG2_POD_SIZE)
    )
    beyond = (1.0 - POD_SHARE) * node + POD_SHARE * pod
    return np.asarray(np.interp(ndtr(whitened), 1.0 - beyond / beyond[0], grid))


def within_one_node(row: Measurement, node_size: float | None) -> bool:
    """Return whether a row is known to lie within one node; ``node_size`` is the default for a row without one."""
    if row.nodes is not None:
        return row.nodes == 1
    size = row.node_size or node_size
    return row.accelerators <= size if size else row.accelerators == 1


def _points(rows: Sequence[Measurement], node_size: float | None) -> ThroughputPoints:
    sizes = [row.node_size or node_size or np.nan for row in rows]
    return ThroughputPoints(
        np.array([row.accelerators for row in rows], dtype=float),
        np.array([row.global_batch_size for row in rows], dtype=float),
        np.array(sizes),
        np.ones(len(rows)),
    )


def _asked_node_size(rows: Sequence[Measurement], node_size: float | None) -> float | None:
    # rows on a single node only give a lower bound on the node size
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
