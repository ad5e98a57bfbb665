"""Splits a study's budget of training runs over its ladder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RungBudget:
    """The number of training runs at a rung, and how many of its best settings are trained with ``seeds`` seeds."""

    trainings: int
    repeated_settings: int
    seeds: int

    @property
    def explorations(self) -> int:
        """The number of training runs whose settings the sampler picks."""
        return self.trainings - self.repeated_settings * (self.seeds - 1)


def rung_budgets(ladder: Sequence[int], trainings: int, seeds: int) -> dict[int, RungBudget]:
    """Split ``trainings`` evenly over the ladder; the largest rungs get the remainder.

    With two seeds, a quarter of a rung's training runs are repetitions, with three a third, and so on up to a half:
    ``trainings // (2 * seeds)`` settings are repeated with ``seeds - 1`` more seeds.
    """
    share, rest = divmod(trainings, len(ladder))
    sizes = {batch: share + (index >= len(ladder) - rest) for index, batch in enumerate(ladder)}
    return {
        batch: RungBudget(size, size // (2 * seeds) if seeds > 1 else 0, seeds)
        for batch, size in sizes.items()
    }
