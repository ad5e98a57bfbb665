"""Figures that step times depend on but no machine file gives: one set for all machines, each with a range.

Each interval has a median, and the ends of the 90 % interval as low and high; on each side of the median the figure is
log-normal. None of them is fitted to the scaling that ``benchmarks/published_efficiency.py`` predicts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.intervals import Interval

DRAWS = 128
BACKWARD_SHARE = 2 / 3
"""Back-propagation takes two matrix products for each one in the forward pass."""

CYCLE_SECONDS = 1e-3
"""Interval at which Horovod checks for ready gradients (its default since 0.21; 5 ms before)."""

RADIX = 8
"""Children of a rank in the tree of the control plane; Kurth et al. found 2 to 8 equally good."""

TAIL = 1.6448536269514722  # the normal quantile of 95 %


LINK_SHARE = Interval(0.7, 0.4, 0.9)
"""Share of a link's rated bandwidth that an all-reduce reaches: the upper end is NCCL on InfiniBand, the lower TCP."""

LATENCY_FACTOR = Interval(1.0, 0.4, 2.5)
"""Factor on the latency of a message: a third for NCCL's protocols for small messages, more in a busy network."""

SECONDS_PER_TENSOR = Interval(25e-6, 10e-6, 60e-6)
"""Time to launch the kernels of one gradient tensor, per micro batch: about five of 2 to 12 microseconds each."""

MESSAGE_SECONDS = Interval(0.2e-6, 0.07e-6, 0.6e-6)
"""Processor time for one rank's message on one tensor: some hundred instructions to unpack, look up and count."""

STEP_VARIATION = Interval(0.015, 0.005, 0.04)
"""Relative standard deviation of step times among equal ranks, due to clocks, temperature and the operating system."""

LOSS_PER_DOUBLING = Interval(0.008, 0.002, 0.035)
"""Share of the speed lost with each doubling of the nodes for reasons not modelled here: congestion, system noise,
other jobs. It is derived from eight families of MLPerf runs with one local batch and growing size (HPC v1.0, training
v0.6 to v2.0). They lose 0.4 to 4.9 % per doubling in total, median 1.4 %; the loss that the rest of this model explains
is subtracted. A ninth family, which loses 17 %, is left out."""

STORAGE_SHARE = Interval(0.4, 0.15, 0.8)
"""Share of the rated bandwidth that reading samples in random order reaches."""

CONTENTION = Interval(0.1, 0.03, 0.3)
"""Slowdown of the computation that overlaps with communication, as a share of the communication's time.

Computation and communication both need memory bandwidth and kernels.
"""

CORE_SPEED = Interval(0.85, 0.5, 1.5)
"""Speed of a core of the machine while all of them prepare samples, relative to the single core on which
``host_seconds_per_sample`` was measured; it depends on clocks, generations, shared caches and two threads per core."""


@dataclass(frozen=True)
class TimingAssumptions:
    """The uncertain figures; see the constants that are their defaults."""

    link_share: Interval = LINK_SHARE
    latency_factor: Interval = LATENCY_FACTOR
    seconds_per_tensor: Interval = SECONDS_PER_TENSOR
    message_seconds: Interval = MESSAGE_SECONDS
    step_variation: Interval = STEP_VARIATION
    loss_per_doubling: Interval = LOSS_PER_DOUBLING
    storage_share: Interval = STORAGE_SHARE
    contention: Interval = CONTENTION
    core_speed: Interval = CORE_SPEED


FIGURES = 1 + len(dataclasses.fields(TimingAssumptions))
"""Number of uncertain figures of a step: the assumptions, and the share of the peak from the machine file."""


@functools.lru_cache(maxsize=1)
def normal_draws() -> NDArray[np.float64]:
    """Return standard normal draws, shape (1 + DRAWS, FIGURES): row 0 is zero (medians), then a Latin hypercube."""
    rng, normal = np.random.default_rng(0), NormalDist()
    values = np.array([normal.inv_cdf((draw + 0.5) / DRAWS) for draw in range(DRAWS)])
    return np.vstack(
        [np.zeros(FIGURES), np.column_stack([rng.permutation(values) for _ in range(FIGURES)])]
    )


def assumption_values(figure: Interval, normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values of an uncertain figure at standard normal numbers: its ends at -1.64 and 1.64."""
    below, above = (
        math.log(figure.median / figure.low) / TAIL,
        math.log(figure.high / figure.median) / TAIL,
    )
    return figure.median * np.exp(np.where(normal < 0, below, above) * normal)
