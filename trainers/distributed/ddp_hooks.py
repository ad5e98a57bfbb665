"""Communication hooks for torch's DistributedDataParallel, for custom training loops.

    model = DistributedDataParallel(model)
    model.register_comm_hook(HookState(), fp16_hook)
    model.register_comm_hook(HookState.torus(), torus_hook)
    model.register_comm_hook(HookState.hierarchical(local_size=4), hierarchical_hook)

Each hook returns the mean over the workers. With ``compression=torch.float16``, the torus and the hierarchical
all-reduce communicate in 16 bits. Gradients are divided before the cast, so a sum cannot overflow unless the mean does.
Create states on every worker, after ``init_process_group``. DDP inspects a hook's annotations, so this file does not
postpone their evaluation.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from trainers.distributed.all_reduce import WorkerGrid, all_reduce_row_size
from trainers.distributed.background import BackgroundThread

Mean = torch.futures.Future[Tensor]


@dataclass(frozen=True)
class HookState:
    """The grid of workers and the data type in which they communicate; None means the type of the gradients."""

    grid: WorkerGrid | None = None
    background: BackgroundThread | None = None
    compression: torch.dtype | None = None

    @classmethod
    def torus(cls, row: int | None = None, *, compression: torch.dtype | None = None) -> Self:
        """Return a state for :func:`torus_hook` with ``row`` workers per row, by default as square as possible."""
        return cls._of("torus", row, compression)

    @classmethod
    def hierarchical(
        cls, local_size: int | None = None, *, compression: torch.dtype | None = None
    ) -> Self:
        """Return a state for :func:`hierarchical_hook` with ``local_size`` workers per node, by default torchrun's."""
        return cls._of("hierarchical", local_size, compression)

    @classmethod
    def _of(cls, all_reduce: str, group_size: int | None, compression: torch.dtype | None) -> Self:
        device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
        return cls(
            WorkerGrid(all_reduce_row_size(all_reduce, dist.get_world_size(), group_size)),
            BackgroundThread(device),
            compression,
        )


def fp16_hook(state: HookState, bucket: GradBucket) -> Mean:
    """Return the mean computed by the backend's own all-reduce in fp16 (or ``state.compression``)."""
    buffer = bucket.buffer()
    narrow = _share(buffer, state.compression or torch.float16)
    future = dist.all_reduce(narrow, async_op=True).get_future()
    return future.then(lambda done: buffer.copy_(done.value()[0]))  # type: ignore[no-any-return]


def torus_hook(state: HookState, bucket: GradBucket) -> Mean:
    """Return the mean, by reduce-scatter along the row, all-reduce along the column, and all-gather along the row.

    Raises ValueError for a state not made by :meth:`HookState.torus` or :meth:`HookState.hierarchical`.
    """
    if state.grid is None or state.background is None:
        raise ValueError(
            "torus_hook and hierarchical_hook need HookState.torus() or HookState.hierarchical()"
        )
    buffer, grid = bucket.buffer(), state.grid

    def mean_(whole: Tensor) -> None:
        share = _share(whole, state.compression or whole.dtype)
        grid.torus_(share)
        whole.copy_(share)

    return state.background.then(mean_, buffer)


hierarchical_hook = torus_hook
"""The three phases of the torus, with each node as a row; the hook's state defines the rows."""


def _share(buffer: Tensor, dtype: torch.dtype) -> Tensor:
    """Return this worker's part of the mean."""
    return (buffer / dist.get_world_size()).to(dtype)
