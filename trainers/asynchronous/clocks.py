"""Tensor-free rules for when an update may start, when an epoch ends, and how stale a gradient is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def worker_share(first_step: int, last_step: int, worker: int, workers: int) -> range:
    """Return the updates that ``worker`` does from ``first_step`` up to but not including ``last_step``."""
    return range(first_step + (worker - first_step) % workers, last_step, workers)


@dataclass(frozen=True)
class Staleness:
    """The staleness measured in one epoch.

    ``mean`` and ``maximum`` count the updates between taking the weights and applying the gradient; ``skipped`` counts
    the updates still outstanding when the quorum ended the epoch; ``lead`` is the largest number of updates by which a
    replica was ahead of the slowest one when it started an update.
    """

    updates: int
    skipped: int
    mean: float
    maximum: int
    lead: int


class WorkerClocks:
    """The number of updates that each worker has done of its share of one epoch."""

    def __init__(self, shares: Sequence[int], bound: int | None, quorum: float) -> None:
        self._shares, self._bound = list(shares), bound
        self._done = [0] * len(shares)
        with_work = sum(count > 0 for count in shares)
        self._needed = min(with_work, math.ceil(quorum * with_work - 1e-9))
        self._ages: list[int] = []
        self._lead = 0

    @property
    def over(self) -> bool:
        """Whether enough of the workers with a non-empty share have finished their shares."""
        return (
            sum(
                self.finished(worker) and self._shares[worker] > 0
                for worker in range(len(self._shares))
            )
            >= self._needed
        )

    def finished(self, worker: int) -> bool:
        """Return whether a worker has finished its share."""
        return self._done[worker] >= self._shares[worker]

    def may_begin(self, worker: int) -> bool:
        """Return whether a worker may start its next update, that is, whether it stays within any staleness bound."""
        return self._bound is None or self._ahead(worker) <= self._bound

    def begin(self, worker: int) -> None:
        """Record that a worker has taken the weights."""
        self._lead = max(self._lead, self._ahead(worker))

    def end(self, worker: int, age: int) -> None:
        """Record that a worker's gradient was applied, ``age`` updates after its weights were taken."""
        self._done[worker] += 1
        self._ages.append(age)

    def measured(self) -> Staleness:
        """Return the measurements so far."""
        updates = len(self._ages)
        return Staleness(
            updates=updates,
            skipped=sum(self._shares) - updates,
            mean=sum(self._ages) / updates if updates else 0.0,
            maximum=max(self._ages, default=0),
            lead=self._lead,
        )

    def _ahead(self, worker: int) -> int:
        slowest = min(
            (done for other, done in enumerate(self._done) if not self.finished(other)),
            default=self._done[worker],
        )
        return self._done[worker] - slowest
