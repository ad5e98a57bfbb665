"""Landscapes of the panel's workloads: any rate and warmup, looked up in a grid of real training runs.

The log epochs of all runs that reached the target at a batch size are smoothed over log rate and log updates of warmup
(:mod:`benchmarks.real_panel.surface`). A requested run takes a neighbour's curve, drawn by its seed with the weights by
which the surface averages lost runs, so that lost runs are as frequent as on the surface. A neighbour that reached the
target is stretched in time to the smoothed epochs at the requested settings, times the deviation of a random run at
that batch size from the surface, also drawn by the seed; a lost neighbour is used unchanged. So the surface is the
truth here, and the optimum is its minimum.

The offset of a seed over all its runs at a batch size is subtracted before smoothing, as not every seed was trained
everywhere, and is part of the deviations.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from benchmarks.real_panel.cases import Case
from benchmarks.real_panel.surface import NEAR, Surface
from benchmarks.real_panel.trainings import LOST_EPOCHS, Training, rounded
from benchmarks.search_economy import grids
from benchmarks.search_economy.grids import Whole
from benchmarks.search_economy.protocol import Curve, Range, Settings

BUDGET = 4.0
"""Budget of one run, in multiples of the fewest epochs at its batch size."""

ROUNDS = 20
"""Iterations that estimate the offsets of seeds and the surface in turn."""

FINE = 40
"""Number of rates, and of warmups, in the grid that is searched for the optimum."""


class PanelLandscape:
    """One case of the panel, from its runs with full curves; an epoch has ``train_samples`` samples."""

    def __init__(self, case: Case, trainings: Sequence[Whole], train_samples: int) -> None:
        self.name = case.name
        self.ladder = case.ladder
        self.target_batch = case.batches[0]
        self.train_samples = train_samples
        self.target = case.target
        self.fixed: Mapping[str, object] = dict(case.search)
        self._of = {
            batch: [each for each in trainings if each.global_batch_size == batch]
            for batch in grids.batches(case)
        }
        self._surfaces: dict[int, Surface] = {}
        self._deviations: dict[int, tuple[float, ...]] = {}
        for batch, some in self._of.items():
            self._surfaces[batch], self._deviations[batch] = _smoothed(some, train_samples / batch)
        self._most = {batch: self._budget(batch) for batch in self._of}
        self.ranges = {
            "learning_rate": Range(*case.rates, log=True),
            "warmup_epochs": Range(
                0.0,
                max(each.settings["warmup_epochs"] for each in self._of[self.target_batch]),
                log=False,
            ),
        }
        self.best = min(self._fine(), key=self._log_epochs)
        self.optimum = math.exp(self._log_epochs(self.best))

    def candidates(self, global_batch_size: int) -> None:
        """Return None, because any settings can be trained."""

    def most_epochs(self, global_batch_size: int) -> float:
        """Return ``BUDGET`` times the fewest epochs at the batch."""
        return self._most[global_batch_size]

    def nearest(
        self,
        global_batch_size: int,  # noqa: ARG002
        settings: Settings,
        besides: Sequence[Settings] = (),  # noqa: ARG002
    ) -> dict[str, float]:
        """Return the settings themselves, rounded to three digits and clipped to the ranges."""
        return rounded(
            {
                name: min(max(float(settings[name]), each.low), each.high)
                for name, each in self.ranges.items()
            }
        )

    def train(self, global_batch_size: int, settings: Settings, seed: int) -> Curve:
        """Return a neighbour's curve, drawn by the seed; see the module docstring."""
        some, surface = self._of[global_batch_size], self._surfaces[global_batch_size]
        weights = np.array(self._weights(global_batch_size, tuple(sorted(settings.items()))))
        rng = np.random.default_rng(
            _number(f"{self.name} {global_batch_size} {sorted(settings.items())} {seed}")
        )
        chosen = some[int(rng.choice(len(some), p=weights))]
        if chosen.lost:
            return Curve(chosen.epochs, chosen.metric, chosen.loss, chosen.state)
        wanted = float(surface.log_epochs([settings])[0]) + float(
            rng.choice(self._deviations[global_batch_size])
        )
        stretch = math.exp(wanted) / chosen.epochs[-1]
        return Curve(
            tuple(epochs * stretch for epochs in chosen.epochs),
            chosen.metric,
            chosen.loss,
            "reached",
        )

    def regret(self, settings: Settings) -> float:
        """Return the regret according to the surface at the target batch, including expected lost runs."""
        return self._log_epochs(settings) - math.log(self.optimum)

    def lost(self, settings: Settings) -> float:
        """Return the share of nearby runs that are lost or exceed the budget."""
        weights = self._weights(self.target_batch, tuple(sorted(settings.items())))
        lost = [each.lost for each in self._of[self.target_batch]]
        return float(np.dot(weights, lost))

    def _log_epochs(self, settings: Settings) -> float:
        """Return the expected log epochs at the target batch."""
        log_epochs = float(self._surfaces[self.target_batch].log_epochs([settings])[0])
        lost = self.lost(settings)
        return (1 - lost) * log_epochs + lost * math.log(LOST_EPOCHS)

    def _fine(self) -> list[dict[str, float]]:
        """Return a fine grid of settings over the ranges, with warmups from one update up."""
        rates, warmups = self.ranges["learning_rate"], self.ranges["warmup_epochs"]
        least = self.target_batch / self.train_samples
        return [
            {"learning_rate": float(rate), "warmup_epochs": float(warmup)}
            for rate in np.geomspace(rates.low, rates.high, FINE)
            for warmup in np.geomspace(least, warmups.high, FINE)
        ]

    def _budget(self, batch: int) -> float:
        least = math.exp(float(self._surfaces[batch].log_epochs([self._surfaces[batch].best])[0]))
        return min(BUDGET * least, *(each.budget for each in self._of[batch]))

    @lru_cache(maxsize=4096)  # noqa: B019 - landscapes live as long as the benchmark
    def _weights(self, batch: int, settings: tuple[tuple[str, float], ...]) -> tuple[float, ...]:
        updates = self.train_samples / batch
        there = np.array([_place(each.settings, updates) for each in self._of[batch]])
        away = (((there - _place(dict(settings), updates)) / NEAR) ** 2).sum(axis=1)
        weights = np.exp(-0.5 * (away - away.min()))
        return tuple((weights / weights.sum()).tolist())


def _place(settings: Settings, updates_per_epoch: float) -> tuple[float, float]:
    updates = settings["warmup_epochs"] * updates_per_epoch
    return math.log(settings["learning_rate"]), math.log(max(updates, 1.0))


def _smoothed(
    trainings: Sequence[Whole], updates_per_epoch: float
) -> tuple[Surface, tuple[float, ...]]:
    """Return the mean surface over seeds, and equally many deviations (offset plus residual) for every seed."""
    offsets: dict[int, float] = dict.fromkeys({each.seed for each in trainings}, 0.0)
    reached = [each for each in trainings if not each.lost]
    left: dict[int, list[float]] = {}
    for _ in range(ROUNDS):
        surface = Surface([_as_training(each, offsets) for each in trainings], updates_per_epoch)
        smooth = surface.log_epochs([each.settings for each in reached])
        left = {}
        for each, level in zip(reached, smooth, strict=True):
            left.setdefault(each.seed, []).append(math.log(each.epochs[-1]) - float(level))
        means = {seed: float(np.mean(some)) for seed, some in left.items()}
        middle = float(np.mean(list(means.values())))
        offsets.update({seed: mean - middle for seed, mean in means.items()})
    most = max(len(some) for some in left.values())
    drawn = np.array([value for some in left.values() for value in np.resize(some, most)])
    return surface, tuple((drawn - drawn.mean()).tolist())


def _as_training(whole: Whole, offsets: Mapping[int, float]) -> Training:
    return Training(
        whole.case,
        whole.global_batch_size,
        whole.settings,
        whole.seed,
        whole.state,
        whole.epochs[-1] * math.exp(-offsets[whole.seed]),
        math.nan,
        whole.epochs,
        whole.metric,
        whole.train_loss,
    )


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
