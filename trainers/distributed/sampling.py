"""The assignment of samples to updates, worker by worker and micro batch by micro batch.

The stream of samples concatenates one permutation of the data set per epoch. Each global batch takes the next B samples
of the stream, so a batch may straddle epochs, no sample is dropped, and B may exceed the data set. Worker r takes the
r-th contiguous part of the batch, and accumulation cuts this part into micro batches of whole normalization groups. The
same samples therefore share a normalization group on any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.errors import JobError
from trainers.numerics.random_numbers import mixed_seed


class SampleStream:
    """The endless stream of (index, epoch) pairs for one seed."""

    def __init__(self, train_samples: int, seed: int) -> None:
        self.train_samples = train_samples
        self.seed = seed
        self._permutations: dict[int, Tensor] = {}

    def take(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return the indices and epochs of the samples at ``[first, first + count)``, both ``(count,)`` int64."""
        indices, epochs = [], []
        while count > 0:
            epoch, offset = divmod(first, self.train_samples)
            taken = self._permutation(epoch)[offset : offset + count]
            indices.append(taken)
            epochs.append(torch.full_like(taken, epoch))
            first, count = first + len(taken), count - len(taken)
        return (
            (indices[0], epochs[0])
            if len(indices) == 1
            else (torch.cat(indices), torch.cat(epochs))
        )

    def _permutation(self, epoch: int) -> Tensor:
        if epoch not in self._permutations:
            self._permutations = {
                at: each for at, each in self._permutations.items() if at == epoch - 1
            }
            generator = torch.Generator().manual_seed(mixed_seed(self.seed, 0, epoch))
            self._permutations[epoch] = torch.randperm(self.train_samples, generator=generator)
        return self._permutations[epoch]


@dataclass(frozen=True)
class MicroBatchCut:
    """One micro batch: ``count`` samples starting at stream position ``first``, and whether it ends a chunk."""

    first: int
    count: int
    ends_chunk: bool


@dataclass(frozen=True)
class BatchLayout:
    """The division of a global batch into workers' parts, chunks and micro batches; all sizes are in samples.

    A chunk is a part of the batch whose gradient is measured separately (``noise_scale``): some micro batches of one
    worker, or the whole local batch if nothing is measured. No micro batch crosses the end of a chunk.
    """

    global_batch_size: int
    local_batch_size: int
    chunk_size: int
    micro_batch_size: int

    @property
    def micro_batches(self) -> int:
        """The number of forward passes per worker in each update."""
        whole, rest = divmod(self.local_batch_size, self.chunk_size)
        return whole * -(-self.chunk_size // self.micro_batch_size) + -(
            -rest // self.micro_batch_size
        )

    @property
    def chunks(self) -> int:
        """The number of chunks in each update, over all workers."""
        workers = self.global_batch_size // self.local_batch_size
        return workers * -(-self.local_batch_size // self.chunk_size)

    def cuts(self, first_sample: int, rank: int) -> Iterator[MicroBatchCut]:
        """Yield the micro batches of one worker for the update whose first sample is at ``first_sample``."""
        start = first_sample + rank * self.local_batch_size
        for chunk in range(0, self.local_batch_size, self.chunk_size):
            end = min(chunk + self.chunk_size, self.local_batch_size)
            for offset in range(chunk, end, self.micro_batch_size):
                count = min(self.micro_batch_size, end - offset)
                yield MicroBatchCut(start + offset, count, offset + count == end)

    def in_chunks(self, chunk_size: int) -> BatchLayout:
        """Return the layout of the batch in chunks of (at most) ``chunk_size`` samples each."""
        return BatchLayout(
            self.global_batch_size,
            self.local_batch_size,
            chunk_size,
            min(chunk_size, self.micro_batch_size),
        )


def batch_layout(
    global_batch_size: int, workers: int, group: int, largest_micro_batch: int
) -> BatchLayout:
    """Return the layout for ``workers``; ``group`` is the normalization batch size in samples (1: no batch norm).

    Raises :class:`JobError` if a worker's part is not a whole number of groups, or if a micro batch is smaller than a
    group.
    """
    if global_batch_size % (workers * group) != 0:
        raise JobError(_indivisible(global_batch_size, workers, group))
    if largest_micro_batch < group:
        raise JobError(
            "micro_batch_size must hold at least one normalization group, but got "
            f"micro_batch_size {largest_micro_batch} and normalization_batch_size {group}; raise the "
            f"first to {group} or lower the second"
        )
    local = global_batch_size // workers
    return BatchLayout(
        global_batch_size, local, local, min(local, largest_micro_batch // group * group)
    )


def _indivisible(global_batch_size: int, workers: int, group: int) -> str:
    unit = workers * group
    below, above = global_batch_size // unit * unit, -(-global_batch_size // unit) * unit
    valid = f"{below} or {above}" if below else str(above)
    if group == 1:
        return (
            f"the number of workers must divide global_batch_size, but got {workers} workers and "
            f"global_batch_size {global_batch_size}; the nearest valid sizes are {valid}"
        )
    return (
        "normalization_batch_size must divide the local batch size, but got normalization_batch_size "
        f"{group} and a local batch size of {global_batch_size / workers:g} (global_batch_size "
        f"{global_batch_size}, workers {workers}); choose global_batch_size {valid}, or another "
        "normalization_batch_size or number of workers"
    )
