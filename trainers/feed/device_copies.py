"""Copy batches to an accelerator from pinned memory in a separate stream.

The thread that has prepared a batch starts its copy at once, while the accelerator still computes with the previous
batch. The computation waits only for the copy that it needs next, on the accelerator rather than on the host. With two
or more prefetched batches (``prefetched_batches``), one is copied while another is used.
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
        """Start to copy the tensors of a batch, whose host memory is kept until the copies are done."""

    def mark(self) -> Any:
        """Return an event that completes when all copies started so far are done."""

    def await_on_device(self, event: Any, batch: Batch) -> None:
        """Make later computation wait for the event, and prevent earlier reuse of the batch's memory."""


class CudaStream:
    """A :class:`SideStream` for one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, batch: Batch) -> Batch:
        """Copy a batch from pinned memory; other tensors are first moved to pinned memory."""
        with torch.cuda.stream(self._stream):
            return tree_map(self._copied, batch)

    def mark(self) -> Any:
        """Return an event recorded in the stream."""
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
    """A batch whose copy has started, or a batch prepared on the CPU, whose ``event`` is None."""

    batch: Batch
    event: Any = None


class DeviceCopies:
    """Moves batches to a device, where ``prepare`` turns them into the model's input.

    On the CPU there is nothing to copy, and the thread that loaded a batch also prepares it.
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
        """Start to copy a batch; called by the thread that loaded it."""
        if self._stream is None:
            return SentBatch(self._prepare(batch))
        copied = self._stream.copy(batch)
        return SentBatch(copied, self._stream.mark())

    def receive(self, sent: SentBatch) -> Batch:
        """Return the prepared batch on the device, for the calling thread's next computation."""
        if self._stream is None:
            return sent.batch
        self._stream.await_on_device(sent.event, sent.batch)
        return self._prepare(sent.batch)
