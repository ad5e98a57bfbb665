"""A run on a simulated machine: the true time of a plan, step by step, with stragglers and failures.

Each update waits for the slowest of all ranks, whose times scatter; nodes fail at random times, and the run returns
to its last checkpoint. A plan's predicted time comes from formulas for both (:mod:`hpo.planning.timing.step_time`,
:mod:`hpo.planning.timing.failures`); here nothing is averaged, so that the two can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from hpo.planning.timing.failures import NodeFailures


@dataclass(frozen=True)
class SimulatedRun:
    """``seconds`` from the start to the last update; node ``failures`` meanwhile; ``lost_updates`` done twice."""

    seconds: float
    failures: int
    lost_updates: int


def slowest_of(
    ranks: int, coefficient_of_variation: float, updates: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw, of shape (updates,), the slowest of ``ranks`` normal times with mean 1 and this standard deviation.

    It uses inversion: the largest of N has the distribution function F^N. No time is below 0.
    """
    upper = -np.expm1(np.log(rng.random(updates)) / ranks)
    return np.maximum(1 - coefficient_of_variation * ndtri(upper), 0.0)


def simulate(
    updates: int,
    *,
    rank_seconds: float,
    other_seconds: float,
    ranks: int,
    nodes: int,
    coefficient_of_variation: float,
    failures: NodeFailures,
    rng: np.random.Generator,
    updates_between_checkpoints: int | None = None,
) -> SimulatedRun:
    """Run ``updates`` steps on ``nodes`` nodes.

    ``rank_seconds`` is the time of each rank's own work (its samples), which scatters; ``other_seconds`` that of the
    joint work once the slowest has finished (the exposed all-reduce). A checkpoint is written after every
    ``updates_between_checkpoints``, by default the best interval of ``failures``.
    """
    interval = failures.checkpoint_interval(nodes) / (rank_seconds + other_seconds)
    stretch = updates_between_checkpoints or (
        updates if interval > updates else max(1, round(interval))
    )
    durations = (
        rank_seconds * slowest_of(ranks, coefficient_of_variation, updates, rng) + other_seconds
    )
    durations[stretch - 1 :: stretch] += (
        failures.checkpoint_seconds if math.isfinite(interval) else 0.0
    )
    ends = np.cumsum(durations)
    between = failures.seconds_between(nodes)
    if math.isinf(between):
        return SimulatedRun(float(ends[-1]), 0, 0)
    clock, done, failed, lost = 0.0, 0, 0, 0
    while True:
        start = ends[done - 1] if done else 0.0
        alive = rng.exponential(between)
        if start + alive >= ends[-1]:
            return SimulatedRun(clock + float(ends[-1] - start), failed, lost)
        reached = int(np.searchsorted(ends, start + alive))
        clock += alive + _restart(between, failures.restart_seconds, rng)
        failed += 1
        lost += reached - reached // stretch * stretch
        done = reached // stretch * stretch


def _restart(between: float, seconds: float, rng: np.random.Generator) -> float:
    """Return the seconds until the run trains again: a restart that is interrupted by a failure starts over."""
    total = 0.0
    while True:
        alive = rng.exponential(between)
        if alive >= seconds:
            return total + seconds
        total += alive
