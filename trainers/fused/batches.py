"""The micro batches of fused trainings: those that each would take alone, stacked to ``(K, samples, ...)``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_map

from trainers.distributed.sampling import BatchLayout, Cut
from trainers.loop.micro_batches import MicroBatch
from trainers.loop.prefetch import prefetched
from trainers.loop.synchronous import Training
from trainers.workloads.workload import Batch


@dataclass(frozen=True)
class StackedBatch:
    """One forward pass of all trainings; ``shared`` where they all take the same samples, which then lie there once.

    ``share`` is its part of the batch; chunk and update are those of :class:`~trainers.loop.micro_batches.MicroBatch`.
    """

    batch: Batch
    shared: bool
    share: float
    ends_chunk: bool
    ends_update: bool


def layout_of(trainings: Sequence[Training], steps: Sequence[int]) -> BatchLayout:
    """How the batch of an update is cut: as one whose norms are measured if any of the trainings measures its own.

    The others' updates are cut with it, which changes the order of a sum.
    """
    measured = (
        training.loader.measured(step) for training, step in zip(trainings, steps, strict=True)
    )
    found = next((layout for layout in measured if layout is not None), None)
    return found or trainings[0].loader.layout(steps[0])


def stacked_batches(trainings: Sequence[Training], steps: Sequence[int]) -> Iterator[StackedBatch]:
    """All forward passes from the update ``steps`` of each training on, without end."""
    depth = trainings[0].workload.prefetched_batches
    return prefetched(_stacked(trainings, steps), depth)


def _stacked(trainings: Sequence[Training], steps: Sequence[int]) -> Iterator[StackedBatch]:
    same = len(set(steps)) == 1 and len({training.job.seed for training in trainings}) == 1
    for number in itertools.count():
        now = [step + number for step in steps]
        layout = layout_of(trainings, now)
        cuts = [
            training.loader.cuts(step, layout)
            for training, step in zip(trainings, now, strict=True)
        ]
        for each in zip(*cuts, strict=True):
            yield _load(trainings, each, shared=same)


def _load(
    trainings: Sequence[Training], cuts: Sequence[tuple[Cut, float, bool]], *, shared: bool
) -> StackedBatch:
    loaded: list[MicroBatch] = [
        training.loader.load(*cut)
        for training, cut in zip(trainings[:1] if shared else trainings, cuts, strict=False)
    ]
    first = loaded[0]
    batch = (
        first.batch
        if shared
        else tree_map(lambda *each: torch.stack(each), *(one.batch for one in loaded))
    )
    return StackedBatch(batch, shared, first.share, first.ends_chunk, first.ends_update)
