"""AdaScale SGD (Johnson et al., arXiv:2007.05105): the rate rises by as much as the larger batch is worth.

With base batch b0 and batch B = k b0 the gain of an update is

    r = (tr(Sigma) / b0 + |G|^2) / (tr(Sigma) / B + |G|^2),     between 1 and k,

the update's rate is r times the schedule's at tau, and tau, the scale-invariant steps (those of a training at
b0), grows by r. The schedule's epochs are tau b0 / N, so warmup and decay stretch where the gain is below k.
|G|^2 and tr(Sigma) come from the gradients of the k chunks of b0 samples (``noise_scale``) and are averaged with
smoothing max(1 - k / 1000, 0) per update. Published code (fairscale, adaptdl) bounds each estimate from below
before averaging, which adds a bias; here the averages are bounded when they are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainers.distributed.sampling import BatchLayout
from trainers.errors import JobError
from trainers.schedules.noise_scale import GradientStatistics, SquaredNorms


class AdaScale:
    """The gain and the scale-invariant steps of one training."""

    def __init__(self, base_batch_size: int, global_batch_size: int, train_samples: int) -> None:
        if base_batch_size > global_batch_size:
            raise JobError(
                f"adascale_batch_size must be at most global_batch_size, but got {base_batch_size} and "
                f"{global_batch_size}; lower the first, or leave it out at small batches"
            )
        self.base_batch_size, self.global_batch_size = base_batch_size, global_batch_size
        self.epochs_per_step = base_batch_size / train_samples
        self.statistics = GradientStatistics(
            max(1 - global_batch_size / base_batch_size / 1000, 0.0)
        )
        self.scale_invariant_steps = 0.0

    @property
    def epochs(self) -> float:
        """Where the schedule stands."""
        return self.scale_invariant_steps * self.epochs_per_step

    @property
    def gain(self) -> float:
        """r of the next update."""
        variance, squared = (
            self.statistics.covariance_trace,
            max(self.statistics.squared_gradient, 0.0),
        )
        if not variance > 0:
            return 1.0
        return (variance / self.base_batch_size + squared) / (
            variance / self.global_batch_size + squared
        )

    def add(self, measured: SquaredNorms) -> None:
        """Take the measurement of the update in that comes next."""
        self.statistics.add(measured)

    def advance(self) -> None:
        """Count an update that was done at the present gain."""
        self.scale_invariant_steps += self.gain

    def state_dict(self) -> dict[str, Any]:
        """The averages and tau, as plain numbers."""
        return {
            "statistics": self.statistics.state_dict(),
            "scale_invariant_steps": self.scale_invariant_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.statistics.load_state_dict(state["statistics"])
        self.scale_invariant_steps = state["scale_invariant_steps"]


def adascale_layout(layout: BatchLayout, base_batch_size: int, group_size: int) -> BatchLayout:
    """The layout with chunks of ``base_batch_size`` samples, or of the largest part of it that fits a worker.

    Where the base batch divides the local batch the gain does not depend on the number of workers. Raises
    :class:`JobError` where a chunk would cut a normalization group of ``group_size`` samples.
    """
    chunk = math.gcd(base_batch_size, layout.local_batch_size)
    if chunk % group_size:
        raise JobError(
            f"adascale_batch_size must be whole normalization groups, but got {base_batch_size} and "
            f"normalization_batch_size {group_size}; choose a multiple of {group_size}"
        )
    return layout.in_chunks(chunk)
