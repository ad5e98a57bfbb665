"""Divide work that every worker would repeat: each worker does a part, and a sum distributes the results.

Distributed Shampoo (Shi et al., arXiv:2309.06497, section 4) and distributed Muon (Liu et al., arXiv:2502.16982,
section 2.3) divide their computations for each parameter in this way. Sharing pays off if an element costs more to
compute than to send twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from trainers.distributed.communicator import Communicator


def task_owners(costs: Sequence[float], workers: int) -> list[int]:
    """Return the worker of each task, assigned most expensive first to the least loaded; equal on every worker."""
    spent, found = [0.0] * workers, [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda each: -costs[each]):
        found[index] = min(range(workers), key=spent.__getitem__)
        spent[found[index]] += costs[index]
    return found


def computed_by_owners(
    like: Sequence[Tensor],
    owned_by: Sequence[int],
    workers: Communicator,
    compute: Callable[[int], Tensor],
) -> list[Tensor]:
    """Return tensors with the shapes of ``like``, each computed only by its owner; all workers must call this
    together.

    ``compute`` returns the tensor for an index. The results are contiguous parts of one block of memory.
    """
    sizes = [each.numel() for each in like]
    flat = like[0].new_zeros(sum(sizes))
    parts = [
        part.view(each.shape) for part, each in zip(flat.split_with_sizes(sizes), like, strict=True)
    ]
    for index, (part, owner) in enumerate(zip(parts, owned_by, strict=True)):
        if owner == workers.rank:
            part.copy_(compute(index))
    workers.all_reduce_sum_([flat])
    return parts
