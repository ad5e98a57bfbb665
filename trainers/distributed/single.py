"""The communicator of a single process, for which every collective operation is the identity."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainers.distributed.communicator import CollectiveWork
from trainers.distributed.device import choose_device, wanted_device


class _Done:
    def wait(self) -> None:
        """Return at once: there is nothing to wait for."""


_DONE = _Done()


class SingleProcessCommunicator:
    """The communicator of a group with one worker."""

    rank = 0
    size = 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or choose_device(wanted=wanted_device())

    def all_reduce_mean_(self, tensors: Sequence[Tensor]) -> None:
        """Do nothing: the mean over one worker is that worker's own tensor."""

    def all_reduce_sum_(self, tensors: Sequence[Tensor]) -> None:
        """Do nothing: the sum over one worker is that worker's own tensor."""

    def start_sum_(self, flat: Tensor) -> CollectiveWork:  # noqa: ARG002
        """Return a finished operation: the sum over one worker is that worker's own tensor."""
        return _DONE

    def start_adasum_(self, flat: Tensor, sizes: Sequence[int]) -> CollectiveWork:  # noqa: ARG002
        """Return a finished operation: the Adasum of one gradient is that gradient."""
        return _DONE

    def broadcast_(self, tensors: Sequence[Tensor], root: int = 0) -> None:
        """Do nothing: the only worker already has the tensors."""

    def barrier(self) -> None:
        """Return at once: there is nobody to wait for."""

    def close(self) -> None:
        """Do nothing: there is no group to leave."""
