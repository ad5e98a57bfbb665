"""The micro batches of fused trainings: those that each would use by itself, stacked to ``(K, samples, ...)``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_map

from trainers.distributed.sampling import BatchLayout, MicroBatchCut
from trainers.feed.device_copies import DeviceCopies, SentBatch
from trainers.loop.prefetch import prefetch_results
from trainers.loop.synchronous import SynchronousTraining
from trainers.workloads.workload import Batch

_Cut = tuple[MicroBatchCut, float, bool]


@dataclass(frozen=True)
class StackedBatch:
    """One forward pass of all trainings; ``shared`` if they all use the same samples, which are then stored once.

    ``share`` is its part of the batch; chunk and update mean the same as in
    :class:`~trainers.loop.micro_batches.MicroBatch`.
    """

    batch: Batch
    shared: bool
    share: float
    ends_chunk: bool
    ends_update: bool


@dataclass(frozen=True)
class _SentBatch:
    """A :class:`StackedBatch` on its way to the device: the samples of each training, or of the first for all."""

    sent: Sequence[SentBatch]
    share: float
    ends_chunk: bool
    ends_update: bool


def stacked_batch_layout(
    trainings: Sequence[SynchronousTraining], steps: Sequence[int]
) -> BatchLayout:
    """Return how the batch of an update is cut: so that norms can be measured, if any of the trainings measures them.

    The other trainings' batches are cut the same way, which changes only the order of a sum.
    """
    measured = (
        training.loader.measured(step) for training, step in zip(trainings, steps, strict=True)
    )
    found = next((layout for layout in measured if layout is not None), None)
    return found or trainings[0].loader.layout(steps[0])


def stacked_batches(
    trainings: Sequence[SynchronousTraining], steps: Sequence[int]
) -> Iterator[StackedBatch]:
    """Yield all forward passes, without end, starting at each training's update in ``steps``."""
    workload, copies = trainings[0].workload, trainings[0].replica.copies
    same = len(set(steps)) == 1 and len({training.job.seed for training in trainings}) == 1
    calls = (
        _loading(trainings, cuts, shared=same)
        for number in itertools.count()
        for cuts in _cuts(trainings, [step + number for step in steps])
    )
    sent = prefetch_results(calls, workload.prefetched_batches, workload.concurrent_batches)
    return (_received(copies, each) for each in sent)


def _cuts(
    trainings: Sequence[SynchronousTraining], steps: Sequence[int]
) -> Iterator[tuple[_Cut, ...]]:
    layout = stacked_batch_layout(trainings, steps)
    of_each = [
        training.loader.cuts(step, layout) for training, step in zip(trainings, steps, strict=True)
    ]
    return zip(*of_each, strict=True)


def _received(copies: DeviceCopies, each: _SentBatch) -> StackedBatch:
    """Return the prepared samples on the device, stacked where the trainings' samples differ."""
    batches = [copies.receive(sent) for sent in each.sent]
    shared = len(batches) == 1
    batch = batches[0] if shared else tree_map(lambda *own: torch.stack(own), *batches)
    return StackedBatch(batch, shared, each.share, each.ends_chunk, each.ends_update)


def _loading(
    trainings: Sequence[SynchronousTraining], cuts: Sequence[_Cut], *, shared: bool
) -> Callable[[], _SentBatch]:
    first, share, ends_update = cuts[0]
    copies = trainings[0].replica.copies
    samples = [
        training.loader.samples(cut)
        for training, (cut, _, _) in zip(
            trainings[:1] if shared else trainings, cuts, strict=not shared
        )
    ]

    def load() -> _SentBatch:
        sent = [copies.send(each()) for each in samples]
        return _SentBatch(sent, share, first.ends_chunk, ends_update)

    return load
