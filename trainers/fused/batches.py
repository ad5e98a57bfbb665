"""The micro batches of fused training runs: each run's own micro batches, stacked to ``(K, samples, ...)``."""

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
    """The data for one forward pass of all training runs; if ``shared``, all use the same samples, stored only once.

    ``share`` is the micro batch's part of the batch; ``ends_chunk`` and ``ends_update`` mean the same as in
    :class:`~trainers.loop.micro_batches.MicroBatch`.
    """

    batch: Batch
    shared: bool
    share: float
    ends_chunk: bool
    ends_update: bool


@dataclass(frozen=True)
class _SentBatch:
    """A :class:`StackedBatch` on its way to the device: the samples of each run, or one set of samples for all."""

    sent: Sequence[SentBatch]
    share: float
    ends_chunk: bool
    ends_update: bool


def stacked_batch_layout(
    trainings: Sequence[SynchronousTraining], steps: Sequence[int]
) -> BatchLayout:
    """Return the layout of an update's batch, which is cut into chunks if any of the runs measures gradient norms.

    The batches of the other runs are cut the same way, which changes only the order of a sum.
    """
    measured = (
        training.loader.measured(step) for training, step in zip(trainings, steps, strict=True)
    )
    found = next((layout for layout in measured if layout is not None), None)
    return found or trainings[0].loader.layout(steps[0])


def stacked_batches(
    trainings: Sequence[SynchronousTraining], steps: Sequence[int]
) -> Iterator[StackedBatch]:
    """Yield the data of all forward passes, without end, starting at each run's update in ``steps``."""
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
    """Return the prepared samples on the device, stacked if the samples differ between runs."""
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
