"""What no machine file says and a step time depends on: one set of figures for every machine, each with its range.

Each interval is median, low and high, the last two the ends of 90 %; on each side of the median the figure is
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
"""The back-propagation is two matrix products for each one of the forward pass."""

CYCLE_SECONDS = 1e-3
"""How often Horovod looks for gradients that are ready (its default since 0.21; 5 ms before)."""

RADIX = 8
"""Children of a rank in the tree of the control plane; Kurth et al. found 2 to 8 equally good."""

TAIL = 1.6448536269514722  # the normal quantile of 95 %


LINK_SHARE = Interval(0.7, 0.4, 0.9)
"""Of a link's rated bandwidth that an all-reduce reaches: NCCL on InfiniBand the upper end, TCP the lower one."""

LATENCY_FACTOR = Interval(1.0, 0.4, 2.5)
"""On the latency of a message: NCCL's protocols for small messages take a third, a busy network longer."""

SECONDS_PER_TENSOR = Interval(25e-6, 10e-6, 60e-6)
"""Of launching the kernels of one gradient tensor, once per micro batch: about five of 2 to 12 microseconds each."""

MESSAGE_SECONDS = Interval(0.2e-6, 0.07e-6, 0.6e-6)
"""Of a processor for one rank's word on one tensor: some hundred instructions to unpack, look up and count."""

STEP_VARIATION = Interval(0.015, 0.005, 0.04)
"""Standard deviation of the step times of equal ranks over their mean: clocks, temperature, the operating system."""

LOSS_PER_DOUBLING = Interval(0.008, 0.002, 0.035)
"""Share of the speed that is lost with each doubling of the nodes for reasons that nothing here describes: congestion,
noise of the system, other jobs. From eight families of MLPerf runs of one local batch and growing size (HPC v1.0,
training v0.6 to v2.0), which lose 0.4 to 4.9 % a doubling in all, median 1.4 %, less what the rest of this model says
of them; a ninth, which loses 17 %, is left out."""

STORAGE_SHARE = Interval(0.4, 0.15, 0.8)
"""Of the rated bandwidth that reading samples in random order reaches."""

CONTENTION = Interval(0.1, 0.03, 0.3)
"""Slowdown of the computation that hides communication, as a share of the communication's time.

Both need memory bandwidth and kernels.
"""

CORE_SPEED = Interval(0.85, 0.5, 1.5)
"""Of a core of the machine while all of them prepare samples, over the one that ``host_seconds_per_sample`` was
measured on while it worked alone: clocks, generations, shared caches, two threads to a core."""


@dataclass(frozen=True)
class Assumptions:
    """The uncertain figures, each with the meaning of the constant that is its default."""

    link_share: Interval = LINK_SHARE
    latency_factor: Interval = LATENCY_FACTOR
    seconds_per_tensor: Interval = SECONDS_PER_TENSOR
    message_seconds: Interval = MESSAGE_SECONDS
    step_variation: Interval = STEP_VARIATION
    loss_per_doubling: Interval = LOSS_PER_DOUBLING
    storage_share: Interval = STORAGE_SHARE
    contention: Interval = CONTENTION
    core_speed: Interval = CORE_SPEED


FIGURES = 1 + len(dataclasses.fields(Assumptions))
"""Uncertain figures of a step: these, and the share of the peak that the machine file gives."""


@functools.lru_cache(maxsize=1)
def normal_draws() -> NDArray[np.float64]:
    """Standard normal numbers, (1 + DRAWS, FIGURES): row 0 is zero, the medians; then a Latin hypercube."""
    rng, normal = np.random.default_rng(0), NormalDist()
    values = np.array([normal.inv_cdf((draw + 0.5) / DRAWS) for draw in range(DRAWS)])
    return np.vstack(
        [np.zeros(FIGURES), np.column_stack([rng.permutation(values) for _ in range(FIGURES)])]
    )


def spread(figure: Interval, normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of an uncertain figure at standard normal numbers: its ends at -1.64 and 1.64."""
    below, above = (
        math.log(figure.median / figure.low) / TAIL,
        math.log(figure.high / figure.median) / TAIL,
    )
    return figure.median * np.exp(np.where(normal < 0, below, above) * normal)
