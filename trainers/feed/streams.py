"""Samples that come in an order of their own, one after another, cut into the batches that are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers.errors import DataError

if TYPE_CHECKING:
    from trainers.workloads.workload import Batch, Workload


@dataclass(frozen=True)
class Part:
    """One worker's part of a stream: that of worker ``rank``, from 0, of ``size``."""

    rank: int
    size: int

    def share(self, samples: int) -> int:
        """How many of so many samples are this worker's."""
        return samples * (self.rank + 1) // self.size - samples * self.rank // self.size


class SampleQueue:
    """Takes any number of samples from batches of any size, in their order."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._waiting: list[Batch] = []
        self._first = 0  # sample of the first waiting batch
        self._samples = 0

    def take(self, count: int) -> Batch:
        """The next ``count`` samples as one batch; raises StopIteration where the batches end before."""
        import torch
        from torch.utils._pytree import tree_map

        pieces = self._pieces(count)
        if len(pieces) == 1:
            return pieces[0]
        return tree_map(lambda *tensors: torch.cat(tensors), *pieces)

    def skip(self, count: int) -> None:
        """Leave the next ``count`` samples out."""
        while count:
            left_out = min(count, 4096)
            self._pieces(left_out)
            count -= left_out

    def _pieces(self, count: int) -> list[Batch]:
        from torch.utils._pytree import tree_map

        while self._samples < count:
            batch = next(self._batches)
            self._waiting.append(batch)
            self._samples += samples_in(batch)
        self._samples -= count
        pieces = []
        while count:
            batch, first = self._waiting[0], self._first
            last = min(first + count, samples_in(batch))
            cut = slice(first, last)
            whole = last - first == samples_in(batch)
            pieces.append(batch if whole else tree_map(lambda tensor, cut=cut: tensor[cut], batch))
            count -= last - first
            self._first = last
            if last == samples_in(batch):
                self._waiting.pop(0)
                self._first = 0
        return pieces


def samples_in(batch: Batch) -> int:
    """The samples of a batch: the length of its tensors."""
    from torch.utils._pytree import tree_leaves

    return len(tree_leaves(batch)[0])


def training_queue(workload: Workload, seed: int, part: Part, first: int) -> SampleQueue:
    """A worker's training samples, epoch after epoch without end, from its sample ``first`` on.

    An epoch of the worker is its share of the declared ``train_samples``: what its stream gives beyond that is left
    out, and where the stream ends before, it begins again. A single worker's stream has to give as many as declared.
    """
    share = part.share(workload.train_samples)
    epoch, skipped = divmod(first, share)
    queue = SampleQueue(_epochs(workload, seed, part, share, epoch))
    queue.skip(skipped)
    return queue


def _epochs(workload: Workload, seed: int, part: Part, share: int, epoch: int) -> Iterator[Batch]:
    name = type(workload).__name__
    while True:
        given = 0
        while given < share:
            before = given
            for batch in workload.training_stream(epoch, seed, part):
                left = share - given
                cut = samples_in(batch) > left
                given += min(left, samples_in(batch))
                yield SampleQueue(iter([batch])).take(left) if cut else batch
                if given == share:
                    break
            if given < share and (part.size == 1 or given == before):
                raise DataError(
                    f"{name}.training_stream gave {given - before} samples to worker {part.rank} of {part.size} in "
                    f"epoch {epoch}, but train_samples declares {workload.train_samples}; correct train_samples, or "
                    "let the stream give as many"
                )
        epoch += 1


def check_evaluated(workload: Workload, counted: int) -> None:
    """Raise :class:`~trainers.errors.DataError` where the workers' streams did not give the declared samples."""
    if counted != workload.evaluation_samples:
        raise DataError(
            f"{type(workload).__name__}.evaluation_stream gave {counted} samples to all workers together, but "
            f"evaluation_samples declares {workload.evaluation_samples}; every sample must come once: correct "
            "evaluation_samples, or how the stream is divided by part.rank and part.size"
        )
