"""The base class of the backends: sums, means and broadcasts of many tensors as operations on flat buckets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from trainers.distributed.buckets import in_buckets
from trainers.distributed.communicator import CollectiveWork


class BucketedCommunicator(ABC):
    """A communicator built from a sum and a broadcast of one flat tensor."""

    rank: int
    size: int
    device: torch.device

    @abstractmethod
    def start_sum_(self, flat: Tensor) -> CollectiveWork:
        """Start replacing ``flat`` with its sum over the workers."""

    @abstractmethod
    def _start_broadcast_(self, flat: Tensor, root: int) -> CollectiveWork:
        """Start replacing ``flat`` with the values of worker ``root``."""

    def all_reduce_mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor with its mean over the workers."""

        def mean(flat: list[Tensor]) -> None:
            self._sum(flat)
            torch._foreach_div_(flat, self.size)

        in_buckets(tensors, mean)

    def all_reduce_sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor with its sum over the workers."""
        in_buckets(tensors, self._sum)

    def broadcast_(self, tensors: Sequence[Tensor], root: int = 0) -> None:
        """Replace each tensor with the values of worker ``root``."""

        def send(flat: list[Tensor]) -> None:
            for bucket in flat:
                self._start_broadcast_(bucket, root).wait()

        in_buckets(tensors, send)

    def barrier(self) -> None:
        """Wait until every worker has arrived, using a sum: a backend's own barrier may wait for dead workers."""
        self._sum([torch.zeros(1, device=self.device)])

    def _sum(self, flat: list[Tensor]) -> None:
        for work in [self.start_sum_(bucket) for bucket in flat]:
            work.wait()
