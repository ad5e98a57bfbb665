"""One process: every collective operation is the identity."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainers.distributed.communicator import CollectiveWork
from trainers.distributed.device import choose_device, wanted_device


class _Done:
    def wait(self) -> None:
        """Nothing to wait for."""


_DONE = _Done()


class SingleProcess:
    """A group of one worker."""

    rank = 0
    size = 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or choose_device(wanted=wanted_device())

    def all_reduce_mean_(self, tensors: Sequence[Tensor]) -> None:
        """The mean over one worker."""

    def all_reduce_sum_(self, tensors: Sequence[Tensor]) -> None:
        """The sum over one worker."""

    def start_sum_(self, flat: Tensor) -> CollectiveWork:  # noqa: ARG002
        """Done already."""
        return _DONE

    def start_adasum_(self, flat: Tensor, sizes: Sequence[int]) -> CollectiveWork:  # noqa: ARG002
        """Done already: Adasum of one gradient is that gradient."""
        return _DONE

    def broadcast_(self, tensors: Sequence[Tensor], root: int = 0) -> None:
        """The only worker has them already."""

    def barrier(self) -> None:
        """Nobody to wait for."""

    def close(self) -> None:
        """Nothing to leave."""
