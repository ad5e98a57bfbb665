"""AdaScale SGD (Johnson et al., arXiv:2007.05105), which multiplies the learning rate by the gain of the larger batch.

With base batch size b0 and batch size B = k b0, the gain of an update is

    r = (tr(Sigma) / b0 + |G|^2) / (tr(Sigma) / B + |G|^2),     between 1 and k.

The update's rate is r times the schedule's rate at tau, where tau is the number of scale-invariant steps (steps of a
run at b0), which grows by r. The schedule's epochs are tau b0 / N, so warmup and decay stretch when the gain is below
k. |G|^2 and tr(Sigma) come from the gradients of the k chunks of b0 samples (``noise_scale``) and are averaged with
smoothing max(1 - k / 1000, 0) per update. Published code (fairscale, adaptdl) bounds each estimate from below before
averaging, which adds a bias; here the averages are bounded when they are used.

Gain, tau and rate are computed where the norms are. With an accelerator they stay on the device, and the number of
updates does not depend on them: the host queues updates and reads only the last rate at an evaluation. On the CPU they
are plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainers.distributed.sampling import BatchLayout
from trainers.errors import JobError
from trainers.schedules.arithmetic import NUMBERS, Arithmetic
from trainers.schedules.device_arithmetic import ON_DEVICE


class AdaScale:
    """The gain and the scale-invariant steps of one training run, in the ``arithmetic`` of its device.

    The attributes ``gain``, ``scale_invariant_steps`` and the averages ``squared_gradient`` (|G|^2) and
    ``covariance_trace`` (tr(Sigma)) are plain numbers on the CPU, and elsewhere float64 scalars that stay on the
    device. The averages start at 0; the resulting bias cancels in the gain.
    """

    gain: float | Tensor
    scale_invariant_steps: float | Tensor
    squared_gradient: float | Tensor
    covariance_trace: float | Tensor

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
                f"{global_batch_size}; lower the first, or leave it out for small batches"
            )
        self.base_batch_size, self.global_batch_size = base_batch_size, global_batch_size
        self.epochs_per_step = base_batch_size / train_samples
        self.smoothing = max(1 - global_batch_size / base_batch_size / 1000, 0.0)
        self.device = torch.device(device)
        self.arithmetic: Arithmetic[Any] = NUMBERS if self.device.type == "cpu" else ON_DEVICE
        self._set(0.0, 0.0, 0.0)

    @property
    def epochs(self) -> float | Tensor:
        """The progress at which the schedule is evaluated."""
        return self.scale_invariant_steps * self.epochs_per_step

    def add(self, norms: Tensor, chunk_samples: float, global_batch_size: int) -> None:
        """Add the measurement of the next update if it is finite.

        ``norms`` are the squared norms of the chunks and of the batch, as in SquaredNorms, shape ``(2,)``.
        """
        by, small, large = self.arithmetic, chunk_samples, global_batch_size
        of_chunks, of_batch = by.values(norms)
        squared = (large * of_batch - small * of_chunks) / (large - small)
        variance = (of_chunks - of_batch) / (1 / small - 1 / large)
        finite, weight = by.finite(squared + variance), 1 - self.smoothing

        def average(old: float | Tensor, new: float | Tensor) -> Any:
            return by.choose(finite, lambda: by.lerp(old, new, weight), lambda: old)

        self.squared_gradient = average(self.squared_gradient, squared)
        self.covariance_trace = average(self.covariance_trace, variance)
        self._set_gain()

    def advance(self, left_out: Tensor | None = None) -> None:
        """Count an update at the current gain, unless it was ``left_out`` (a bool scalar)."""
        by, steps = self.arithmetic, self.scale_invariant_steps
        self.scale_invariant_steps = (
            steps + self.gain
            if left_out is None
            else by.choose(left_out, lambda: steps, lambda: steps + self.gain)
        )

    def _set_gain(self) -> None:
        by, variance = self.arithmetic, self.covariance_trace
        squared = by.at_least_zero(self.squared_gradient)
        small, large = self.base_batch_size, self.global_batch_size
        self.gain = by.choose(
            variance > 0,
            lambda: (variance / small + squared) / (variance / large + squared),
            lambda: by.constant(1.0, variance),
        )

    def _set(self, squared: float, trace: float, steps: float) -> None:
        numbers = torch.tensor([squared, trace, steps], dtype=torch.float64, device=self.device)
        self.squared_gradient, self.covariance_trace, self.scale_invariant_steps = (
            self.arithmetic.values(numbers)
        )
        self._set_gain()

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and tau as plain numbers."""
        names = ("squared_gradient", "covariance_trace")
        return {
            "statistics": {name: float(getattr(self, name)) for name in names},
            "scale_invariant_steps": float(self.scale_invariant_steps),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`."""
        saved = state["statistics"]
        self._set(
            saved["squared_gradient"], saved["covariance_trace"], state["scale_invariant_steps"]
        )


def adascale_layout(layout: BatchLayout, base_batch_size: int, group_size: int) -> BatchLayout:
    """Return the layout in chunks of the largest divisor of ``base_batch_size`` that divides the local batch size.

    If the base batch size divides the local batch size, the gain does not depend on the number of workers. Raises
    :class:`JobError` if a chunk would cut a normalization group of ``group_size`` samples.
    """
    chunk = math.gcd(base_batch_size, layout.local_batch_size)
    if chunk % group_size:
        raise JobError(
            f"adascale_batch_size must be a whole number of normalization groups, but got "
            f"{base_batch_size} and "
            f"normalization_batch_size {group_size}; choose a multiple of {group_size}"
        )
    return layout.in_chunks(chunk)
