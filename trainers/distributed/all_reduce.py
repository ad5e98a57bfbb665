"""All-reduce algorithms over the process groups of torch.distributed.

With X workers in a row (or node) and Y rows, and n bytes:

- ``torus`` (Mikami et al., arXiv:1811.05233): reduce-scatter along the row, all-reduce of n/X along the column,
  all-gather along the row. By default, X is the largest divisor of the number of workers up to its square root.
- ``hierarchical``: the same three phases with nodes as rows, so that each worker sends only n/X bytes between nodes, as
  in Horovod's hierarchical all-reduce.
- ``masters`` (Jia et al., arXiv:1807.11205): reduce to the first worker of each node, all-reduce between these masters,
  broadcast within the node.

In PyTorch, Gloo's reduce-scatter runs a full all-reduce, with twice the traffic (pytorch/pytorch, pull request 118911).
With Gloo, the workers here therefore exchange parts and each sums its own part, in fp32 if the numbers are 16 bits
wide. NCCL has its own reduce-scatter.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from trainers.errors import CommunicationError

# newer names of all_gather_into_tensor and reduce_scatter_tensor; PyTorch 2.13 warns of the older ones
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Wait = Callable[[dist.Work], object]


def _wait(work: dist.Work) -> None:
    work.wait()


class WorkerGrid:
    """A grid of all workers, with ``row_size`` neighbours in each row; all workers must create it together.

    Raises :class:`CommunicationError` if the workers do not fill the rows.
    """

    def __init__(self, row_size: int, *, wait: Wait = _wait) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        if row_size < 1 or size % row_size:
            raise CommunicationError(
                f"{size} workers do not split into groups of {row_size}; the group size of an "
                "all-reduce must divide the number of workers"
            )
        rows = [list(range(first, first + row_size)) for first in range(0, size, row_size)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        self.row_size, self.rows = row_size, len(rows)
        self.master = rank - rank % row_size
        self._row, self._column = _own_group(rows, rank), _own_group(columns, rank)
        self._wait = wait

    def torus_(self, flat: Tensor) -> None:
        """Sum ``flat``, ``(numbers,)``: reduce-scatter in the row, all-reduce in the column, all-gather in the row.

        The 2D torus of Mikami et al. (arXiv:1811.05233); 1 / ``row_size`` of the numbers travels along a column.
        """
        padded = pad(flat, (0, -len(flat) % self.row_size)) if len(flat) % self.row_size else flat
        part = self._reduce_scatter(padded)
        if self.rows > 1:
            self._done(dist.all_reduce(part, group=self._column, async_op=True))
        self._done(all_gather(padded, part, group=self._row, async_op=True))
        if padded is not flat:
            flat.copy_(padded[: len(flat)])

    def masters_(self, flat: Tensor) -> None:
        """Sum ``flat``, ``(numbers,)``: reduce to each row's first worker, sum between these workers, and broadcast."""
        self._done(dist.reduce(flat, self.master, group=self._row, async_op=True))
        if dist.get_rank() == self.master and self.rows > 1:
            self._done(dist.all_reduce(flat, group=self._column, async_op=True))
        self._done(dist.broadcast(flat, self.master, group=self._row, async_op=True))

    def _reduce_scatter(self, flat: Tensor) -> Tensor:
        if flat.is_cuda:
            part = flat.new_empty(len(flat) // self.row_size)
            self._done(reduce_scatter(part, flat, group=self._row, async_op=True))
            return part
        received = torch.empty_like(flat)
        self._done(dist.all_to_all_single(received, flat, group=self._row, async_op=True))
        return sum_all_reduce_parts(received.view(self.row_size, -1))

    def _done(self, work: dist.Work | None) -> None:
        if work is not None:
            self._wait(work)


def sum_all_reduce_parts(parts: Tensor) -> Tensor:
    """Sum the rows of ``parts``, ``(rows, columns)``, and return ``(columns,)``; 16-bit numbers are added in fp32."""
    narrow = parts.dtype in (torch.float16, torch.bfloat16)
    return parts.sum(0, dtype=torch.float32 if narrow else parts.dtype).to(parts.dtype)


def all_reduce_row_size(all_reduce: str, workers: int, group_size: int | None) -> int:
    """Return the number of workers in a row or node: ``group_size``, or a default for the algorithm.

    For a torus the default is the largest divisor of the number of workers up to its square root; for the other
    algorithms it is the number of workers per node. Raises :class:`CommunicationError` if torchrun does not provide
    that number.
    """
    if group_size is not None:
        return group_size
    if all_reduce == "torus":
        return max(row for row in range(1, math.isqrt(workers) + 1) if workers % row == 0)
    local = os.environ.get("LOCAL_WORLD_SIZE")
    if local is None and all_reduce != "default":
        raise CommunicationError(
            f"the {all_reduce} all-reduce needs the number of workers on a node: torchrun sets it "
            "as LOCAL_WORLD_SIZE; otherwise give the group size"
        )
    return int(local or workers)


def all_reduce_function(all_reduce: str, grid: WorkerGrid) -> Callable[[Tensor], None]:
    """Return a function that sums a tensor, shape ``(numbers,)``, in place over the workers of the grid."""
    return grid.masters_ if all_reduce == "masters" else grid.torus_


def _own_group(members: list[list[int]], rank: int) -> dist.ProcessGroup:
    groups = [dist.new_group(ranks) for ranks in members]  # every worker creates every group
    mine: dist.ProcessGroup = next(
        group for group, ranks in zip(groups, members, strict=True) if rank in ranks
    )
    return mine
