"""The search of ``sampler: forecast`` as a method that sees the same runs and is charged for the same samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.search_economy import protocol
from benchmarks.search_economy.protocol import Landscape
from hpo.extrapolation.evidence.evidence import ScaledSetting
from hpo.tuning.generation.search import SeenTraining, SettingsSearch

IN_THE_LOSS = {"label_smoothing"}
"""Settings that change the loss function: if one is tuned, losses of different runs are not comparable."""


class OwnSearch:
    """The search at the target batch of a landscape; a stopped run is not continued."""

    def __init__(self, landscape: Landscape, seed: int) -> None:
        self._landscape, target = landscape, landscape.target_batch
        self._loss = not IN_THE_LOSS & set(landscape.ranges)
        self._search = SettingsSearch(
            [*landscape.ladder, target],
            target,
            [
                ScaledSetting(name, "log" if each.log else "linear", each.low, each.high)
                for name, each in landscape.ranges.items()
            ],
            most_epochs=landscape.most_epochs(target),
            resolution=_resolution(landscape),
            goal=landscape.target,
            seed=seed,
        )

    def next(self, seen: Sequence[protocol.Seen]) -> protocol.Step | None:
        """Return the search's step, as a new run with its own seed."""
        step = self._search.next(self._seen(seen))
        if step is None:
            return None
        settings = self._landscape.nearest(
            step.global_batch_size, step.settings, [each.settings for each in seen]
        )
        return protocol.Step(
            step.global_batch_size, settings, len(seen), step.until_epochs, None, step.reason
        )

    def recommendation(self, seen: Sequence[protocol.Seen]) -> protocol.Settings:
        """Return the search's recommendation."""
        return self._search.recommendation(self._seen(seen))

    def _seen(self, seen: Sequence[protocol.Seen]) -> list[SeenTraining]:
        return [
            SeenTraining(
                each.number,
                each.global_batch_size,
                each.settings,
                each.seed,
                each.epochs,
                each.metric,
                each.state,
                each.epochs_to_target,
                each.loss if self._loss else (),
            )
            for each in seen
        ]


def _resolution(landscape: Landscape) -> float:
    """Return the epochs between evaluations of a run with settings in the middle of the ranges."""
    middle = {
        name: math.sqrt(each.low * each.high) if each.log else (each.low + each.high) / 2
        for name, each in landscape.ranges.items()
    }
    batch = landscape.target_batch
    curve = landscape.train(batch, landscape.nearest(batch, middle), 0)
    return float(np.median(np.diff((0.0, *curve.epochs))))
