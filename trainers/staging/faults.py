"""Stop the staging on all nodes, with the same message, if one node has a fault."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from trainers.distributed.communicator import Communicator
from trainers.errors import DataError, TrainerError

READING, WRITING = 2, 1
"""The severity of faults: a read fault is reported rather than a write fault, which may be its consequence."""

_MESSAGE_BYTES = 4096


class StagingFaults:
    """Holds this node's first fault of the highest severity; ``stop`` tells its threads to end."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.weight = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def noted(self, weight: int) -> Iterator[None]:
        """Record an error instead of raising it, because the other nodes must be informed first."""
        try:
            yield
        except Exception as error:
            self.note(error, weight)

    def note(self, error: BaseException, weight: int) -> None:
        """Record ``error`` unless an error at least as severe has been recorded."""
        with self._lock:
            if weight > self.weight:
                self.error, self.weight = error, weight
        self.stop.set()


def agree_on_staging_faults(communicator: Communicator, faults: StagingFaults) -> None:
    """Continue only if no node has a fault; otherwise raise :class:`~trainers.errors.DataError` on all of them."""
    weights = torch.zeros(communicator.size, dtype=torch.int64, device=communicator.device)
    weights[communicator.rank] = faults.weight
    communicator.all_reduce_sum_([weights])
    gravest = int(weights.argmax())
    if int(weights[gravest]) == 0:
        return
    text = broadcast_bytes(communicator, _message(faults.error), root=gravest).decode(
        errors="replace"
    )
    where = f"node {gravest} of {communicator.size}: " if communicator.size > 1 else ""
    raise DataError(f"{where}{text}") from (faults.error if gravest == communicator.rank else None)


def broadcast_bytes(communicator: Communicator, content: bytes, root: int = 0) -> bytes:
    """Return the bytes of node ``root``, of any length, on every node."""
    length = torch.tensor([len(content)], dtype=torch.int64, device=communicator.device)
    communicator.broadcast_([length], root=root)
    buffer = torch.zeros(int(length), dtype=torch.uint8)
    if communicator.rank == root and content:
        buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    buffer = buffer.to(communicator.device)
    if len(buffer):
        communicator.broadcast_([buffer], root=root)
    return bytes(buffer.cpu().numpy())


def _message(error: BaseException | None) -> bytes:
    text = str(error) if isinstance(error, TrainerError) else f"{type(error).__name__}: {error}"
    return text.encode()[:_MESSAGE_BYTES]
