"""Cut a stream of samples in a fixed order into batches of the requested sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Batch = Any
"""Tensors with samples along the first axis, in tuples, lists or dictionaries; usually ``(inputs, targets)``."""


@dataclass(frozen=True)
class Part:
    """One worker's part of a stream: worker ``rank``, from 0, of ``size`` workers."""

    rank: int
    size: int

    def share(self, samples: int) -> int:
        """Return how many of ``samples`` samples belong to this worker."""
        return samples * (self.rank + 1) // self.size - samples * self.rank // self.size


class SampleQueue:
    """A queue that returns any number of samples, in order, from batches of any size."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._waiting: list[Batch] = []
        self._first = 0  # next sample in the first waiting batch
        self._samples = 0

    def take(self, count: int) -> Batch:
        """Return the next ``count`` samples as one batch; raises StopIteration if the batches run out first."""
        import torch
        from torch.utils._pytree import tree_map

        pieces = self._pieces(count)
        if len(pieces) == 1:
            return pieces[0]
        return tree_map(lambda *tensors: torch.cat(tensors), *pieces)

    def skip(self, count: int) -> None:
        """Skip the next ``count`` samples."""
        while count:
            left_out = min(count, 4096)
            self._pieces(left_out)
            count -= left_out

    def _pieces(self, count: int) -> list[Batch]:
        from torch.utils._pytree import tree_map

        while self._samples < count:
            batch = next(self._batches)
            self._waiting.append(batch)
            self._samples += samples_in_batch(batch)
        self._samples -= count
        pieces = []
        while count:
            batch, first = self._waiting[0], self._first
            last = min(first + count, samples_in_batch(batch))
            cut = slice(first, last)
            whole = last - first == samples_in_batch(batch)
            pieces.append(batch if whole else tree_map(lambda tensor, cut=cut: tensor[cut], batch))
            count -= last - first
            self._first = last
            if last == samples_in_batch(batch):
                self._waiting.pop(0)
                self._first = 0
        return pieces


def samples_in_batch(batch: Batch) -> int:
    """Return the number of samples in a batch: the length of its tensors."""
    from torch.utils._pytree import tree_leaves

    return len(tree_leaves(batch)[0])


def first_samples(batches: Iterable[Batch], count: int) -> Iterator[Batch]:
    """Yield the first ``count`` samples of ``batches``, in batches, without requesting unneeded ones."""
    if not count:
        return
    for batch in batches:
        left_over = samples_in_batch(batch) - count
        yield batch if left_over <= 0 else SampleQueue(iter([batch])).take(count)
        if left_over >= 0:
            return
        count = -left_over
