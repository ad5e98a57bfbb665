"""The gradient noise scale, estimated from gradients that a training run computes anyway.

McCandlish et al. (arXiv:1812.06162, appendix A.1): gradients of the mean loss over b and over B samples have
E|g_b|^2 = |G|^2 + tr(Sigma) / b, and the same with B. Two batch sizes thus give the true gradient and the
covariance of one sample's gradient,

    |G|^2     = (B |g_B|^2 - b |g_b|^2) / (B - b)
    tr(Sigma) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)

and the noise scale B_simple = tr(Sigma) / |G|^2, in samples. Both estimates are unbiased, but their ratio is not.
Therefore each is smoothed separately over the updates before the ratio is taken.

Here g_B is the mean gradient of the global batch, and the small batches are its n chunks over all workers. Chunk i,
with a share c_i of the samples, has weight c_i. The mean of |g_i|^2 then has the expectation |G|^2 + tr(Sigma) n / B
for any shares, as if each chunk had b = B / n samples.

A chunk consists of whole normalization groups, so it has the same gradient as inside the whole batch. Samples come from
a permutation of the data set, without replacement: if B is not small compared to the data set's size N, the estimate of
tr(Sigma) / B falls to as little as 1 - B / N times its value for independent samples. Settings that scale gradients
(clipping, loss scaling, decay) do not affect the noise scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.distributed.sampling import BatchLayout

MEASURED_EVERY = 24
"""The updates between measurements; cutting a batch into chunks costs up to 0.6 of an update, or 2.5 % overall."""

SMOOTHING = 0.8
"""The decay of the averages per measurement."""


@dataclass(frozen=True)
class SquaredNorms:
    """The |g|^2 of the global batch, and the mean |g_i|^2 of its chunks of (on average) ``chunk_samples`` samples."""

    of_chunks: float
    of_batch: float
    chunk_samples: float
    global_batch_size: int

    @property
    def squared_gradient(self) -> float:
        """The estimate of |G|^2, which may be negative."""
        small, large = self.chunk_samples, self.global_batch_size
        return (large * self.of_batch - small * self.of_chunks) / (large - small)

    @property
    def covariance_trace(self) -> float:
        """The estimate of tr(Sigma), for the gradient of one sample."""
        return (self.of_chunks - self.of_batch) / (
            1 / self.chunk_samples - 1 / self.global_batch_size
        )


class GradientStatistics:
    """Exponential averages of |G|^2 and tr(Sigma), initialized so that the first measurement counts in full."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing
        self._squared_gradient = self._covariance_trace = self._weight = 0.0

    def add(self, measured: SquaredNorms) -> None:
        """Add one measurement, unless it is not finite."""
        if not (math.isfinite(measured.of_chunks) and math.isfinite(measured.of_batch)):
            return
        keep = self.smoothing
        self._squared_gradient = (
            keep * self._squared_gradient + (1 - keep) * measured.squared_gradient
        )
        self._covariance_trace = (
            keep * self._covariance_trace + (1 - keep) * measured.covariance_trace
        )
        self._weight = keep * self._weight + (1 - keep)

    @property
    def squared_gradient(self) -> float:
        """The average of |G|^2; 0 before the first measurement."""
        return self._squared_gradient / self._weight if self._weight else 0.0

    @property
    def covariance_trace(self) -> float:
        """The average of tr(Sigma); 0 before the first measurement."""
        return self._covariance_trace / self._weight if self._weight else 0.0

    @property
    def noise_scale(self) -> float | None:
        """B_simple in samples; None before the first measurement, or if an average is not above 0."""
        if not (self._squared_gradient > 0 and self._covariance_trace > 0):
            return None
        return self._covariance_trace / self._squared_gradient

    def state_dict(self) -> dict[str, float]:
        """Return the averages as plain numbers."""
        return {
            "squared_gradient": self._squared_gradient,
            "covariance_trace": self._covariance_trace,
            "weight": self._weight,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state returned by :meth:`state_dict`."""
        self._squared_gradient, self._covariance_trace = (
            state["squared_gradient"],
            state["covariance_trace"],
        )
        self._weight = state["weight"]


def measured_layout(layout: BatchLayout, group_size: int, *, may_cut: bool) -> BatchLayout | None:
    """Return the layout of a measured update, with at least two chunks per worker; None if the groups do not allow it.

    ``may_cut`` says whether training is the same with smaller micro batches than planned.
    """
    half = -(-layout.local_batch_size // group_size // 2) * group_size
    chunk = min(layout.micro_batch_size, half) if may_cut else layout.micro_batch_size
    measured = layout.in_chunks(chunk)
    return measured if measured.chunks > 1 else None


def squared_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of squares over all tensors, computed in float32 or wider, as a float64 scalar."""
    tensors = list(tensors)
    wide = [tensor.dtype for tensor in tensors if tensor.dtype.itemsize > 4]
    norms = torch._foreach_norm(tensors, 2, dtype=wide[0] if wide else torch.float32)
    return torch.stack(norms).double().square().sum()
