"""Compute the optimizer's gradient from micro batches: accumulation, reduction over the workers, lag and scaling.

With ``gradient_lag`` 1 (Kurth et al., arXiv:1810.01993), each update uses the gradient of the previous update, so that
the reduction can take a whole step; the first update uses zeros. Because the mean is linear, the lagging gradient here
is the reduced gradient, which is the same on every worker and stored once in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.distributed.communicator import Communicator
from trainers.distributed.reducer import GradientReducer, PendingReduction
from trainers.distributed.sampling import BatchLayout
from trainers.loop.micro_batches import MicroBatch
from trainers.loop.replica import Replica
from trainers.numerics.precision import LossScale, zero_gradient
from trainers.schedules.noise_scale import SquaredNorms, squared_norm


@dataclass(frozen=True)
class Origin:
    """The statistics needed when a gradient arrives; ``of_chunks`` is as in SquaredNorms, but multiplied by the loss
    scale.

    The tensors stay on the device, so that the host does not wait for it.
    """

    loss_scale: float | Tensor = 1.0
    of_chunks: Tensor | None = None
    chunk_samples: float = 0.0
    global_batch_size: int = 0


@dataclass(frozen=True)
class ArrivedGradient:
    """The statistics of the gradient now in ``parameter.grad``: whether it overflowed, and its norms.

    ``overflowed`` is a bool scalar on the device, or None if the loss scale does not depend on it.
    """

    overflowed: Tensor | None = None
    measured: MeasuredNorms | None = None


@dataclass(frozen=True)
class MeasuredNorms:
    """Squared gradient norms of the chunks and of the batch, ``(2,)`` float64, still on the device."""

    norms: Tensor
    chunk_samples: float
    global_batch_size: int

    def read(self) -> SquaredNorms:
        """Return the norms as numbers; waits for the device."""
        of_chunks, of_batch = self.norms.tolist()
        return SquaredNorms(of_chunks, of_batch, self.chunk_samples, self.global_batch_size)


def accumulate_gradients(
    replica: Replica,
    micro_batches: Iterable[MicroBatch],
    loss_scale: float | Tensor,
    before_last: Callable[[], None],
) -> Tensor:
    """Add the gradient of the local batch's mean loss, times ``loss_scale``, to each ``parameter.grad``.

    Return the unscaled loss, a float64 scalar on the device. ``before_last`` is called before the last backward pass.
    """
    losses = []
    scaled = isinstance(loss_scale, Tensor) or loss_scale != 1
    for micro in micro_batches:
        loss = replica.loss(micro.batch)
        if micro.share != 1:
            loss = loss * micro.share
        if micro.ends_update:
            before_last()
        (loss * loss_scale if scaled else loss).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().double())
    return reduce(add, losses)


def accumulate_chunks(
    replica: Replica, micro_batches: Iterable[MicroBatch], loss_scale: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Like :func:`accumulate_gradients`, but by chunks; also return the mean squared norm of the chunks' gradients.

    A chunk with a share s of the local batch adds s g_i to the gradient, so s |g_i|^2 is |s g_i|^2 / s.
    """
    losses, squares, gradients = list[Tensor](), list[Tensor](), list[Tensor]()
    share = 0.0
    for micro in micro_batches:
        losses.append(accumulate_gradients(replica, [micro], loss_scale, _nothing))
        share += micro.share
        if micro.ends_chunk:
            chunk = replica.gradients()
            squares.append(squared_norm(chunk) / share)
            if gradients:
                torch._foreach_add_(gradients, chunk)
            else:
                gradients = chunk
            replica.set_gradients(None)
            share = 0.0
    replica.set_gradients(gradients)
    return reduce(add, losses), reduce(add, squares)


def _nothing() -> None:
    """Do nothing, where no reduction may start during the backward pass."""


class GradientComputation:
    """Computes, reduces and scales a run's gradients on all workers; ``loss_scale`` applies to the next update."""

    def __init__(
        self, replica: Replica, settings: TrainingSettings, communicator: Communicator
    ) -> None:
        self.loss_scale = LossScale(settings, replica.device)
        self._replica, self._communicator = replica, communicator
        self._clip_norm, self._lags = settings.gradient_clip_norm, settings.gradient_lag > 0
        self._reducer = GradientReducer(
            replica.parameters,
            communicator,
            compression=settings.gradient_compression,
            reduction=settings.gradient_reduction,
        )
        self._pending: PendingReduction | None = None
        self._lagging = (
            [zero_gradient(parameter) for parameter in replica.parameters] if self._lags else []
        )
        self._origin = Origin()

    def compute(
        self, micro_batches: Iterable[MicroBatch], measured: BatchLayout | None
    ) -> tuple[Tensor, ArrivedGradient]:
        """Return the local batch's mean loss, a float64 scalar, and set ``parameter.grad`` to the optimizer's input.

        If ``measured`` is given, also measure the squared norms of its chunks' gradients.
        """
        scale = self.loss_scale.value
        if measured is None:
            origin = Origin(scale)
            loss = accumulate_gradients(
                self._replica, micro_batches, scale, _nothing if self._lags else self._reducer.arm
            )
        else:
            loss, squares = accumulate_chunks(self._replica, micro_batches, scale)
            self._communicator.all_reduce_mean_([squares])
            origin = Origin(
                scale,
                squares,
                measured.global_batch_size / measured.chunks,
                measured.global_batch_size,
            )
        return loss, self._finish(self._exchange(origin))

    def settle(self) -> None:
        """Wait for running reductions on all workers, before the state is saved."""
        if self._pending is not None:
            arrived, self._pending = self._pending.wait(), None
            self._lagging = [
                gradient.to(last.dtype)
                for gradient, last in zip(arrived, self._lagging, strict=True)
            ]

    def _exchange(self, origin: Origin) -> Origin:
        """Reduce the gradient, and set ``parameter.grad`` to the gradient that is due; return its origin."""
        if not self._lags:
            self._reducer.finish()
            return origin
        self.settle()
        gradients, self._origin, origin = self._lagging, origin, self._origin
        if self._communicator.size == 1:  # nothing to reduce
            self._lagging = self._replica.gradients()
        else:
            self._pending = self._reducer.start()
        self._replica.set_gradients(gradients)
        return origin

    def _finish(self, origin: Origin) -> ArrivedGradient:
        """Unscale and clip the gradient, once per update, and check whether it is finite if it may overflow."""
        scale = origin.loss_scale
        if isinstance(scale, Tensor):
            scale = scale.double()  # its square may be too large for float32
        unscaled = not isinstance(scale, Tensor) and scale == 1
        if self._clip_norm is None and origin.of_chunks is None and not self.loss_scale.dynamic:
            if not unscaled:
                torch._foreach_mul_(self._replica.gradients(), 1 / scale)
            return ArrivedGradient()
        gradients = self._replica.gradients()
        square = squared_norm(gradients)
        if not unscaled:
            square = square / scale**2
        overflowed = None
        if self.loss_scale.dynamic:
            overflowed = ~square.isfinite()
            self.loss_scale.update(overflowed)
        factor = 1 / scale
        if self._clip_norm is not None:
            factor = factor * (self._clip_norm / square.sqrt()).clamp(max=1.0)
        if isinstance(factor, Tensor):
            factor = factor.to(torch.promote_types(gradients[0].dtype, torch.float32))
        if not unscaled or self._clip_norm is not None:
            torch._foreach_mul_(gradients, factor)
        return ArrivedGradient(overflowed, _measured(origin, square, 1.0 if unscaled else scale))

    def state_dict(self) -> dict[str, Any]:
        """Return the lagging gradient with its origin, and the loss scale; call :meth:`settle` first."""
        return {
            "lagging": [gradient.clone() for gradient in self._lagging],
            "origin": {
                name: float(value) if isinstance(value, Tensor) else value
                for name, value in vars(self._origin).items()
            },
            "loss_scale": self.loss_scale.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        self._pending = None
        self._lagging = [
            saved.to(own.device, own.dtype, copy=True)
            for saved, own in zip(state["lagging"], self._lagging, strict=True)
        ]
        origin, device = dict(state["origin"]), self._replica.device
        if origin["of_chunks"] is not None:
            origin["of_chunks"] = torch.tensor(
                origin["of_chunks"], dtype=torch.float64, device=device
            )
        if self.loss_scale.dynamic:
            origin["loss_scale"] = torch.tensor(
                origin["loss_scale"], dtype=torch.float32, device=device
            )
        self._origin = Origin(**origin)
        self.loss_scale.load_state_dict(state["loss_scale"])


def _measured(origin: Origin, square: Tensor, scale: float | Tensor) -> MeasuredNorms | None:
    of_chunks = origin.of_chunks
    if of_chunks is None:
        return None
    if isinstance(scale, Tensor) or scale != 1:
        of_chunks = of_chunks / scale**2
    return MeasuredNorms(
        torch.stack([of_chunks, square]), origin.chunk_samples, origin.global_batch_size
    )
