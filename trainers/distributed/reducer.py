"""GradientReducer: reduce the gradients of all workers while backpropagation is still running.

Gradients are sent in flat buckets of about 25 MB, in reverse order of the parameters, which is about the order in which
backpropagation finishes them. The order is static: a bucket is sent when its gradients are ready and every bucket
before it has been sent. All workers therefore start the same operations in the same order without negotiation (Yamazaki
et al., arXiv:1903.12650), as in PyTorch's DDP (Li et al., arXiv:2006.15704).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from search_spaces.names import nearest_or_all
from trainers.distributed.buckets import BUCKET_BYTES
from trainers.distributed.communicator import Communicator
from trainers.distributed.gradient_bucket import GradientBucket, gradient_buckets
from trainers.errors import CommunicationError, JobError
from trainers.numerics.precision import zero_gradient

COMPRESSIONS = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
REDUCTIONS = ("mean", "adasum")


class PendingReduction(Protocol):
    """A running reduction of all gradients."""

    def wait(self) -> list[Tensor]:
        """Return the reduced gradients in the order and shapes of the parameters; they belong to the caller."""


class GradientReducer:
    """Reduces ``parameter.grad`` over the workers; a missing gradient counts as zeros.

    ``compression`` is the data type of the communication. With fp16 or bf16, gradients are divided by the number of
    workers before they are cast and summed, so that the sum cannot overflow unless the mean does (fp16 gradients as in
    Akiba et al., arXiv:1711.04325, and Mikami et al., arXiv:1811.05233). ``reduction`` is the mean, or Adasum (Maleki
    et al., arXiv:2006.02924), which needs a power-of-two number of workers.

    Call either ``arm()`` before the last backward pass of an update and ``finish()`` after it, or ``finish()`` alone,
    or ``start()`` and then ``wait()`` on its result. All workers must make the same calls in the same order.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        communicator: Communicator,
        *,
        compression: str = "none",
        reduction: str = "mean",
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        _check(compression, reduction, communicator.size)
        self._parameters = list(parameters)
        self._communicator = communicator
        self._adasum = reduction == "adasum"
        self._layout = gradient_buckets(
            self._parameters, bucket_bytes, communicator.size, COMPRESSIONS[compression]
        )
        self._buckets: list[
            GradientBucket
        ] = []  # memory is allocated when the first gradient is sent
        self._bucket_of = {
            parameter: at
            for at, bucket in enumerate(self._layout)
            for parameter in bucket.parameters
        }
        self._hooked = False
        self._armed = False
        self._missing: list[set[Parameter]] = []
        self._left = 0

    def arm(self) -> None:
        """Start sending each bucket as soon as its gradients are ready; call this before the last backward pass.

        Raises :class:`CommunicationError` if the reducer is already armed.
        """
        if self._communicator.size == 1:
            return
        if self._armed:
            raise CommunicationError(
                "the reducer is already armed; call finish() before the next arm()"
            )
        self._hook()
        self._armed, self._left = True, 0
        self._missing = [set(bucket.parameters) for bucket in self._layout]

    def finish(self) -> None:
        """Wait until every ``parameter.grad`` holds the reduced gradient."""
        if self._communicator.size == 1:
            _fill(self._parameters)
            return
        buckets = self._own_buckets()
        _fill(self._parameters)
        first, self._armed, self._left = self._left, False, 0
        for bucket in buckets[first:]:
            bucket.start(self._communicator, adasum=self._adasum)
        for bucket in buckets:
            bucket.wait()
            bucket.store()

    def start(self) -> PendingReduction:
        """Copy the current gradients and reduce them while the caller continues to compute.

        Raises :class:`CommunicationError` if the reducer is armed.
        """
        if self._armed:
            raise CommunicationError(
                "the reducer is armed; call finish(), or start() without arm()"
            )
        if self._communicator.size == 1:
            return _Copies([_copy(parameter) for parameter in self._parameters])
        buckets = [bucket.with_memory() for bucket in self._layout]
        for bucket in buckets:
            bucket.start(self._communicator, adasum=self._adasum)
        return _Reduction(self._parameters, buckets)

    def _own_buckets(self) -> list[GradientBucket]:
        if not self._buckets:
            self._buckets = [bucket.with_memory() for bucket in self._layout]
        return self._buckets

    def _hook(self) -> None:
        if self._hooked:
            return
        this = weakref.ref(self)

        def ready(parameter: Parameter) -> None:
            reducer = this()
            if reducer is not None and reducer._armed:
                reducer._ready(parameter)

        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]
        self._hooked = True

    def _ready(self, parameter: Parameter) -> None:
        missing = self._missing[self._bucket_of[parameter]]
        if parameter not in missing:
            raise CommunicationError(
                "a gradient changed after it was ready to send; call arm() before the last "
                "backward pass of an update"
            )
        missing.discard(parameter)
        while self._left < len(self._missing) and not self._missing[self._left]:
            self._own_buckets()[self._left].start(self._communicator, adasum=self._adasum)
            self._left += 1


class _Copies:
    def __init__(self, gradients: list[Tensor]) -> None:
        self._gradients = gradients

    def wait(self) -> list[Tensor]:
        return self._gradients


class _Reduction:
    def __init__(self, parameters: list[Parameter], buckets: list[GradientBucket]) -> None:
        self._parameters = parameters
        self._buckets = buckets

    def wait(self) -> list[Tensor]:
        reduced: dict[Parameter, Tensor] = {}
        for bucket in self._buckets:
            bucket.wait()
            reduced.update(bucket.reduced())
        return [reduced[parameter] for parameter in self._parameters]


def _check(compression: str, reduction: str, size: int) -> None:
    if compression not in COMPRESSIONS:
        raise JobError(
            f"there is no gradient compression {compression!r}{nearest_or_all(compression, COMPRESSIONS)}"
        )
    if reduction not in REDUCTIONS:
        raise JobError(
            f"there is no gradient reduction {reduction!r}{nearest_or_all(reduction, REDUCTIONS)}"
        )
    if reduction == "adasum" and size & (size - 1):
        raise JobError(
            f"Adasum combines the workers in pairs and needs a power of two of them, but there are {size}; "
            "use gradient_reduction mean or another number of workers"
        )


def _fill(parameters: list[Parameter]) -> None:
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = zero_gradient(parameter)


def _copy(parameter: Parameter) -> Tensor:
    return zero_gradient(parameter) if parameter.grad is None else parameter.grad.detach().clone()
