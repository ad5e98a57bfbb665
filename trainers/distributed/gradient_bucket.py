"""A flat bucket of gradients, which is filled, sent, and read back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import Parameter

from trainers.distributed.buckets import tensor_buckets
from trainers.distributed.communicator import CollectiveWork, Communicator
from trainers.numerics.precision import gradient_type, zero_gradient


@dataclass(eq=False)
class GradientBucket:
    """Gradients that are sent together as one tensor of type ``travels_as``.

    ``flat`` is padded with zeros to a multiple of the number of workers, so that it splits evenly over them.
    """

    parameters: list[Parameter]
    workers: int
    travels_as: torch.dtype
    flat: Tensor = field(default_factory=lambda: torch.empty(0))
    views: list[Tensor] = field(default_factory=list)
    work: CollectiveWork | None = None
    divided: bool = False

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each gradient."""
        return [parameter.numel() for parameter in self.parameters]

    def with_memory(self) -> GradientBucket:
        """Return a copy of the bucket with its own memory."""
        numbers = sum(self.sizes)
        flat = torch.zeros(
            -(-numbers // self.workers) * self.workers,
            dtype=self.travels_as,
            device=self.parameters[0].device,
        )
        parts = torch.split(flat[:numbers], self.sizes)
        views = [
            _as(part, parameter) for part, parameter in zip(parts, self.parameters, strict=True)
        ]
        return replace(self, flat=flat, views=views)

    def start(self, communicator: Communicator, *, adasum: bool) -> None:
        """Copy the current gradients into the bucket and send it."""
        self.divided = not adasum and self.travels_as in (torch.float16, torch.bfloat16)
        self._fill(1 / self.workers if self.divided else 1.0)
        self.work = (
            communicator.start_adasum_(self.flat, self.sizes)
            if adasum
            else communicator.start_sum_(self.flat)
        )
        self.divided = self.divided or adasum

    def wait(self) -> None:
        """Return when ``views`` holds the reduced gradients."""
        if self.work is not None:
            self.work.wait()
            self.work = None
            if not self.divided:
                self.flat.div_(self.workers)

    def store(self) -> None:
        """Copy the reduced gradients to the ``grad`` of their parameters."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = zero_gradient(parameter)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        torch._foreach_copy_(gradients, self.views)

    def reduced(self) -> Iterator[tuple[Parameter, Tensor]]:
        """Yield each parameter with its reduced gradient, which has the shape and type of its gradient."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            yield parameter, view.to(gradient_type(parameter))

    @torch.no_grad()
    def _fill(self, factor: float) -> None:
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif factor != 1.0:  # divided while still in the wider type
                torch.mul(parameter.grad, factor, out=view)
        if factor == 1.0:
            present = [
                (view, parameter.grad)
                for parameter, view in zip(self.parameters, self.views, strict=True)
                if parameter.grad is not None
            ]
            if present:
                torch._foreach_copy_(
                    [view for view, _ in present], [gradient for _, gradient in present]
                )


def _as(part: Tensor, parameter: Parameter) -> Tensor:
    """View ``part`` in the parameter's memory layout, which its gradient probably shares, so copies are contiguous."""
    return part.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride())


def gradient_buckets(
    parameters: Sequence[Parameter], bucket_bytes: int, workers: int, travels_as: torch.dtype | None
) -> list[GradientBucket]:
    """Group the parameters in reverse order into buckets of one device and one type of their gradients.

    No memory is allocated yet.
    """
    devices = list(dict.fromkeys(parameter.device for parameter in parameters))
    split = [
        [parameter for parameter in reversed(parameters) if parameter.device == device]
        for device in devices
    ]
    return [
        GradientBucket(list(group), workers, travels_as or gradient_type(group[0]))  # type: ignore[arg-type]
        for on_device in split
        for group in tensor_buckets(on_device, bucket_bytes, gradient_type)
    ]
