"""Batches on their way to an accelerator, copied from pinned memory in a separate stream.

The thread that has prepared a batch begins its copy at once, while the accelerator still computes with the previous
one; the computation waits, on the accelerator and not on the host, only for the copy that it needs next. With two or
more batches ahead (``prefetched_batches``), one is copied while another is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from trainers.feed.streams import Batch


class SideStream(Protocol):
    """A stream of copies to an accelerator; an event marks its progress."""

    def copy(self, batch: Batch) -> Batch:
        """Begin to copy the tensors of a batch, whose host memory is kept until the copies are done."""

    def mark(self) -> Any:
        """Return an event that fires when the copies begun so far are done."""

    def await_on_device(self, event: Any, batch: Batch) -> None:
        """Make later computation wait for the event, and keep the batch's memory from being reused before it."""


class CudaStream:
    """A :class:`SideStream` of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, batch: Batch) -> Batch:
        """Copy from pinned memory; tensors elsewhere are first moved there."""
        with torch.cuda.stream(self._stream):
            return tree_map(self._copied, batch)

    def mark(self) -> Any:
        """Return an event of the stream."""
        return self._stream.record_event()

    def await_on_device(self, event: Any, batch: Batch) -> None:
        """Make the current stream wait for the event."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in tree_leaves(batch):
            if isinstance(tensor, Tensor):
                tensor.record_stream(current)

    def _copied(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.device == self._device:
            return leaf
        pinned = leaf if leaf.is_pinned() or leaf.device.type != "cpu" else leaf.pin_memory()
        return pinned.to(self._device, non_blocking=True)


@dataclass(frozen=True)
class SentBatch:
    """A batch whose copy has begun, or a batch prepared on the CPU, whose ``event`` is None."""

    batch: Batch
    event: Any = None


class DeviceCopies:
    """Moves batches to a device, where ``prepare`` turns them into the model's input.

    On the CPU there is nothing to copy, and the thread that has loaded a batch prepares it.
    """

    def __init__(
        self,
        device: torch.device,
        prepare: Callable[[Batch], Batch],
        stream: SideStream | None = None,
    ) -> None:
        self._prepare = prepare
        self._stream = stream or (CudaStream(device) if device.type == "cuda" else None)

    def send(self, batch: Batch) -> SentBatch:
        """Begin the copy; called by the thread that loaded the batch."""
        if self._stream is None:
            return SentBatch(self._prepare(batch))
        copied = self._stream.copy(batch)
        return SentBatch(copied, self._stream.mark())

    def receive(self, sent: SentBatch) -> Batch:
        """Return the batch on the device, prepared, for the calling thread's next computation."""
        if self._stream is None:
            return sent.batch
        self._stream.await_on_device(sent.event, sent.batch)
        return self._prepare(sent.batch)
