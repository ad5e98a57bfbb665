"""How the trainings of a study's budget are split over its ladder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RungBudget:
    """The number of trainings of a rung, and of its best settings that are trained with ``seeds`` seeds."""

    trainings: int
    repeated_settings: int
    seeds: int

    @property
    def explorations(self) -> int:
        """Trainings of settings that the sampler picks."""
        return self.trainings - self.repeated_settings * (self.seeds - 1)


def rung_budgets(ladder: Sequence[int], trainings: int, seeds: int) -> dict[int, RungBudget]:
    """Split ``trainings`` evenly over the ladder; the largest rungs get the remainder.

    A quarter of a rung repeats settings with two seeds, a third with three, and so on
    up to a half: ``trainings // (2 * seeds)`` settings are repeated with ``seeds - 1`` more seeds.
    """
    share, rest = divmod(trainings, len(ladder))
    sizes = {batch: share + (index >= len(ladder) - rest) for index, batch in enumerate(ladder)}
    return {
        batch: RungBudget(size, size // (2 * seeds) if seeds > 1 else 0, seeds)
        for batch, size in sizes.items()
    }
