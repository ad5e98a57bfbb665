"""Linear scaling, the alternative to the step model: samples per second per accelerator as a driftless random walk.

log(samples/s/N) = level + g(log N, log b) + scatter, where g is a Brownian motion in the logarithms of the accelerators
N and the local batch b: its increments have mean 0 and a variance proportional to |change of log N| and |change of log
b|. With a flat prior on the level, the expectation beyond the largest scale is linear scaling from there, smoothed by
the scatter. This is ordinary kriging (Cressie 1993, section 3.2). The model covers neither batch effects nor the
network, so it is robust where the step model is wrong about them. The marginal likelihood of the rows decides its
weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.planning.throughput.priors import WalkPriors
from hpo.planning.throughput.rows import Measurement

Array: TypeAlias = NDArray[np.float64]

DISTANT = (
    1e3  # the variance at the origin, large compared with all increments; the level absorbs it
)


def log_evidence(rows: Sequence[Measurement], walk: WalkPriors) -> float:
    """Return the log marginal likelihood of log samples per second, without constants from the flat level and 2 pi.

    It is comparable with :attr:`hpo.planning.throughput.posterior.StepPosterior.log_evidence` for the same rows.
    """
    gain, gaps, _ = _fit(rows, walk)
    return float(
        0.5 * np.linalg.slogdet(gain)[1] - 0.5 * np.log(gain.sum()) - 0.5 * gaps @ gain @ gaps
    )


def log_throughput(
    rows: Sequence[Measurement], walk: WalkPriors, accelerators: float, global_batch_size: float
) -> tuple[float, float]:
    """Return the mean and standard deviation of the log samples per second of a new configuration."""
    gain, gaps, level = _fit(rows, walk)
    asked = np.log([[accelerators, global_batch_size / accelerators]])
    near = _covariance(_coordinates(rows), asked, walk)[:, 0]
    weight = gain @ near
    variance = (
        DISTANT
        + math.exp(2.0 * walk.log_scatter)
        - near @ weight
        + (1.0 - weight.sum()) ** 2 / gain.sum()
    )
    return float(level + gaps @ weight + math.log(accelerators)), math.sqrt(
        max(float(variance), 0.0)
    )


def _fit(rows: Sequence[Measurement], walk: WalkPriors) -> tuple[Array, Array, float]:
    here = _coordinates(rows)
    covariance = _covariance(here, here, walk) + math.exp(2.0 * walk.log_scatter) * np.eye(
        len(rows)
    )
    gain = np.asarray(np.linalg.inv(covariance), dtype=float)
    logs: Array = np.log([row.samples_per_second / row.accelerators for row in rows])
    level = float(gain.sum(axis=0) @ logs / gain.sum())
    return gain, np.asarray(logs - level), level


def _covariance(here: Array, there: Array, walk: WalkPriors) -> Array:
    """Return DISTANT minus half the variance of the increment; with an unknown level, only increments matter."""
    rates = np.exp(2.0 * np.array([walk.log_accelerators, walk.log_local_batch]))
    return np.asarray(DISTANT - 0.5 * np.abs(here[:, None, :] - there[None, :, :]) @ rates)


def _coordinates(rows: Sequence[Measurement]) -> Array:
    return np.log([[row.accelerators, row.local_batch_size] for row in rows])
