"""Workers started by torchrun; gloo between CPUs, NCCL between GPUs, in flat buckets of 25 MB."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.distributed.buckets import in_buckets
from trainers.distributed.communicator import local_device
from trainers.errors import CommunicationError


class TorchCommunicator:
    """A communicator over torch.distributed."""

    def __init__(self, timeout_seconds: float) -> None:
        needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in needed if name not in os.environ]
        if missing:
            raise CommunicationError(f"the torch backend needs {', '.join(missing)} in the environment; "
                                     "start the workers with torchrun, or use --backend single")
        self.device = local_device(int(os.environ.get("LOCAL_RANK", "0")))
        with _peer_errors():
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo",
                                    timeout=timedelta(seconds=timeout_seconds))
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def all_reduce_mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over the workers."""
        def mean(flat: list[Tensor]) -> None:
            self._sum(flat)
            torch._foreach_div_(flat, self.size)
        with _peer_errors():
            in_buckets(tensors, mean)

    def all_reduce_sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the workers."""
        with _peer_errors():
            in_buckets(tensors, self._sum)

    def broadcast_(self, tensors: Sequence[Tensor], root: int = 0) -> None:
        """Replace each tensor by that of worker ``root``."""
        def send(flat: list[Tensor]) -> None:
            for bucket in flat:
                dist.broadcast(bucket, src=root)
        with _peer_errors():
            in_buckets(tensors, send)

    def barrier(self) -> None:
        """Wait until every worker is here."""
        with _peer_errors():
            dist.barrier()

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _sum(self, flat: list[Tensor]) -> None:
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in flat]:
            if work is not None:
                work.wait()


@contextmanager
def _peer_errors() -> Iterator[None]:
    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        raise CommunicationError(f"a worker is gone or silent: {error}") from error
