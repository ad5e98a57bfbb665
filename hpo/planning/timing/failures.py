"""The cost of node failures: how often to write a checkpoint, and how much longer a run takes.

Nodes fail at a constant rate, and a failure restarts the run from its last checkpoint. With M the mean time between
failures of all nodes together, D the time to write a checkpoint, R the time from a failure until training resumes
and t the training time between two checkpoints (J. T. Daly, Future Generation Computer Systems 22, 2006):

- the best t is about ``sqrt(2 D M) - D`` (Young 1974; Daly's equation 37 adds terms for D close to M);
- the expected time of a run of T training seconds is ``M exp(R/M) (exp((t + D)/M) - 1) T / t`` (Daly's equation 20).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpo.errors import PlanError

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class NodeFailures:
    """Mean hours between failures of one node (infinite if it never fails), and seconds per restart and checkpoint."""

    node_hours: float = math.inf
    restart_seconds: float = 300.0
    checkpoint_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in ("node_hours", "checkpoint_seconds"):
            if not getattr(self, name) > 0:
                raise PlanError(
                    f"{name} of failures must be above 0, but got {getattr(self, name)}"
                )
        if not self.restart_seconds >= 0:
            raise PlanError(
                f"restart_seconds of failures must be 0 or more, but got {self.restart_seconds}"
            )

    def seconds_between(self, nodes: int) -> float:
        """Return the mean seconds between failures of any of ``nodes`` nodes."""
        return self.node_hours * SECONDS_PER_HOUR / nodes

    def checkpoint_interval(self, nodes: int) -> float:
        """Return the training seconds between two checkpoints that minimise the expected time (Daly 2006, eq. 37).

        It is infinite if nothing fails, and M if a checkpoint takes at least twice the time between failures.
        """
        between, writing = self.seconds_between(nodes), self.checkpoint_seconds
        if math.isinf(between):
            return math.inf
        if writing >= 2 * between:
            return between
        ratio = writing / (2 * between)
        return math.sqrt(2 * writing * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - writing

    def expected_seconds(
        self, training_seconds: float, nodes: int, interval: float | None = None
    ) -> float:
        """Return the expected seconds of a run that trains for ``training_seconds`` (Daly 2006, eq. 20).

        ``interval`` is the training time between two checkpoints, by default the best one.
        """
        between = self.seconds_between(nodes)
        interval = self.checkpoint_interval(nodes) if interval is None else interval
        if math.isinf(between):
            written = (
                0.0
                if math.isinf(interval)
                else self.checkpoint_seconds * training_seconds / interval
            )
            return training_seconds + written
        interval = min(interval, training_seconds)
        attempt = (interval + self.checkpoint_seconds) / between
        if attempt + self.restart_seconds / between > 500:
            return math.inf
        return (
            between
            * math.exp(self.restart_seconds / between)
            * math.expm1(attempt)
            * training_seconds
            / interval
        )

    def saving_interval(self, nodes: int, evaluation_seconds: float) -> float:
        """Return the seconds between two checkpoints of a run that saves only at evaluations.

        It is the best interval, rounded up to a multiple of ``evaluation_seconds``, the time from one evaluation to the
        next; 0 means that the run can save at any time.
        """
        best = self.checkpoint_interval(nodes)
        if not evaluation_seconds or math.isinf(best):
            return best
        return math.ceil(best / evaluation_seconds) * evaluation_seconds

    def slowdown(self, nodes: int, interval: float | None = None) -> float:
        """Return the factor, at least 1, on the time of a run much longer than the interval between its checkpoints.

        ``interval`` is the training time between two checkpoints, by default the best one.
        """
        interval = self.checkpoint_interval(nodes) if interval is None else interval
        return (
            1.0
            if math.isinf(interval)
            else self.expected_seconds(interval, nodes, interval) / interval
        )
