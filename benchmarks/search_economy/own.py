"""The search of ``sampler: forecast`` as a method: it sees the same trainings, and pays for the same samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.search_economy import protocol
from benchmarks.search_economy.protocol import Landscape
from hpo.extrapolation.evidence.evidence import ScaledSetting
from hpo.tuning.acquisition.search import Search


class OwnSearch:
    """The search over all batches of a landscape; ``fixed`` settings are the landscape's."""

    def __init__(self, landscape: Landscape, seed: int) -> None:
        target = landscape.target_batch
        self._search = Search(
            [*landscape.ladder, target],
            target,
            [
                ScaledSetting(name, "log" if each.log else "linear", each.low, each.high)
                for name, each in landscape.ranges.items()
            ],
            most_epochs=landscape.most_epochs(target),
            resolution=_resolution(landscape),
            fixed=landscape.fixed,
            samples_per_epoch=landscape.train_samples,
            seed=seed,
        )

    def next(self, seen: Sequence[protocol.Seen]) -> protocol.Step | None:
        """The search's step, as a new training with a seed of its own."""
        step = self._search.next(seen)
        return step and protocol.Step(
            step.global_batch_size,
            step.settings,
            len(seen),
            step.until_epochs,
            None,
            step.reason,
        )

    def recommendation(self, seen: Sequence[protocol.Seen]) -> protocol.Settings:
        """What it recommends."""
        return self._search.recommendation(seen)


def _resolution(landscape: Landscape) -> float:
    """Epochs between evaluations, as in a training in the middle of the ranges."""
    middle = {
        name: math.sqrt(each.low * each.high) if each.log else (each.low + each.high) / 2
        for name, each in landscape.ranges.items()
    }
    batch = landscape.target_batch
    curve = landscape.train(batch, landscape.nearest(batch, middle), 0)
    return float(np.median(np.diff((0.0, *curve.epochs))))
