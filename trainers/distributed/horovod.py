"""Workers started by horovodrun (or horovod.runner); gradients travel by grouped all-reduce."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trainers.distributed.buckets import in_buckets
from trainers.distributed.communicator import local_device
from trainers.errors import CommunicationError


class HorovodCommunicator:
    """A communicator over Horovod (Sergeev and Del Balso, arXiv:1802.05799)."""

    def __init__(self, timeout_seconds: float) -> None:
        self._hvd = _import_horovod()
        seconds = str(max(1, round(timeout_seconds)))
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", seconds)
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", seconds)
        with _peer_errors():
            self._hvd.init()
        self.rank: int = self._hvd.rank()
        self.size: int = self._hvd.size()
        self.device = local_device(self._hvd.local_rank())

    def all_reduce_mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over the workers."""
        self._all_reduce(tensors, self._hvd.Average)

    def all_reduce_sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the workers."""
        self._all_reduce(tensors, self._hvd.Sum)

    def broadcast_(self, tensors: Sequence[Tensor], root: int = 0) -> None:
        """Replace each tensor by that of worker ``root``."""
        def send(flat: list[Tensor]) -> None:
            for bucket in flat:
                self._hvd.broadcast_(bucket, root_rank=root)
        with _peer_errors():
            in_buckets(tensors, send)

    def barrier(self) -> None:
        """Wait until every worker is here."""
        # an all-reduce, because Horovod's own barrier cannot be cancelled when a peer dies
        self.all_reduce_sum_([torch.zeros(1)])

    def close(self) -> None:
        """Leave the group."""
        self._hvd.shutdown()

    def _all_reduce(self, tensors: Sequence[Tensor], operation: Any) -> None:
        with _peer_errors():
            in_buckets(tensors, lambda flat: self._hvd.grouped_allreduce_(flat, op=operation))


def _import_horovod() -> Any:
    try:
        import horovod.torch
    except ImportError as error:
        raise CommunicationError(f"Horovod is not installed for PyTorch here ({error}); use "
                                 "--backend torch") from error
    return horovod.torch


@contextmanager
def _peer_errors() -> Iterator[None]:
    from horovod.common.exceptions import HorovodInternalError
    try:
        yield
    except HorovodInternalError as error:
        raise CommunicationError(f"a worker is gone or silent: {error}") from error
