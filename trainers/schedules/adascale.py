"""AdaScale SGD (Johnson et al., arXiv:2007.05105): the rate rises by as much as the larger batch is worth.

With base batch b0 and batch B = k b0 the gain of an update is

    r = (tr(Sigma) / b0 + |G|^2) / (tr(Sigma) / B + |G|^2),     between 1 and k,

the update's rate is r times the schedule's at tau, and tau, the scale-invariant steps (those of a training at
b0), grows by r. The schedule's epochs are tau b0 / N, so warmup and decay stretch where the gain is below k.
|G|^2 and tr(Sigma) come from the gradients of the k chunks of b0 samples (``noise_scale``) and are averaged with
smoothing max(1 - k / 1000, 0) per update. Published code (fairscale, adaptdl) bounds each estimate from below
before averaging, which adds a bias; here the averages are bounded when they are used.

Gain, tau and rate are computed on the device, where the norms are, and the number of updates does not depend on them:
the host queues one update after another and reads the last rate at an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainers.distributed.sampling import BatchLayout
from trainers.errors import JobError


class AdaScale:
    """The gain and the scale-invariant steps of one training: scalars of float64 that stay on its ``device``.

    ``averages`` are those of |G|^2 and tr(Sigma), shape ``(2,)``. They begin at 0, which cancels in the gain.
    """

    def __init__(
        self,
        base_batch_size: int,
        global_batch_size: int,
        train_samples: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if base_batch_size > global_batch_size:
            raise JobError(
                f"adascale_batch_size must be at most global_batch_size, but got {base_batch_size} and "
                f"{global_batch_size}; lower the first, or leave it out at small batches"
            )
        self.base_batch_size, self.global_batch_size = base_batch_size, global_batch_size
        self.epochs_per_step = base_batch_size / train_samples
        self.smoothing = max(1 - global_batch_size / base_batch_size / 1000, 0.0)
        self.averages = torch.zeros(2, dtype=torch.float64, device=device)
        self.gain = torch.ones((), dtype=torch.float64, device=device)
        self.scale_invariant_steps = torch.zeros((), dtype=torch.float64, device=device)

    @property
    def epochs(self) -> Tensor:
        """Where the schedule stands."""
        return self.scale_invariant_steps * self.epochs_per_step

    def add(self, norms: Tensor, chunk_samples: float, global_batch_size: int) -> None:
        """Take the measurement of the update that comes next in, unless it is not finite.

        ``norms`` are the squared norms of SquaredNorms, of the chunks and of the batch, shape ``(2,)``.
        """
        of_chunks, of_batch = norms.unbind()
        small, large = chunk_samples, global_batch_size
        squared = (large * of_batch - small * of_chunks) / (large - small)
        variance = (of_chunks - of_batch) / (1 / small - 1 / large)
        found = self.averages.lerp(torch.stack([squared, variance]), 1 - self.smoothing)
        self.averages = torch.where(found.isfinite().all(), found, self.averages)
        self._set_gain()

    def advance(self, left_out: Tensor | None = None) -> None:
        """Count an update at the present gain, unless it was ``left_out`` (a scalar of bool)."""
        done = self.gain if left_out is None else torch.where(left_out, 0.0, self.gain)
        self.scale_invariant_steps = self.scale_invariant_steps + done

    def _set_gain(self) -> None:
        squared, variance = self.averages.unbind()
        squared = squared.clamp(min=0.0)
        small, large = self.base_batch_size, self.global_batch_size
        gain = (variance / small + squared) / (variance / large + squared)
        self.gain = torch.where(variance > 0, gain, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """The averages and tau, as plain numbers."""
        names = ("squared_gradient", "covariance_trace")
        return {
            "statistics": dict(zip(names, self.averages.tolist(), strict=True)),
            "scale_invariant_steps": float(self.scale_invariant_steps),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        saved = state["statistics"]
        self.averages = self.averages.new_tensor(
            [saved["squared_gradient"], saved["covariance_trace"]]
        )
        self._set_gain()
        self.scale_invariant_steps = self.averages.new_tensor(state["scale_invariant_steps"])


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
