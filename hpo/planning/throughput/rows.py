"""Measured throughput: the rows of a fit, checked, with repeated rows merged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from hpo.errors import EvidenceError


class MeasuredThroughput(Protocol):
    """The fields of a measured row that a fit reads; database rows provide them."""

    @property
    def accelerators(self) -> int: ...  # noqa: D102
    @property
    def nodes(self) -> int | None: ...  # noqa: D102
    @property
    def global_batch_size(self) -> int: ...  # noqa: D102
    @property
    def samples_per_second(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class Measurement:
    """Training samples per second on ``accelerators`` at ``global_batch_size``, the mean or median of ``runs``.

    ``nodes`` and ``accelerators_per_node`` (of the machine's nodes) are None if unknown. Raises :class:`EvidenceError`
    for invalid figures.
    """

    accelerators: int
    global_batch_size: int
    samples_per_second: float
    nodes: int | None = None
    accelerators_per_node: int | None = None
    runs: int = 1

    def __post_init__(self) -> None:
        for name in ("accelerators", "global_batch_size", "runs"):
            check_count(name, getattr(self, name))
        if not (math.isfinite(self.samples_per_second) and self.samples_per_second > 0):
            raise EvidenceError(
                f"samples_per_second must be a finite number above 0, but got "
                f"{self.samples_per_second!r}; leave out rows without a measurement"
            )
        for name in ("nodes", "accelerators_per_node"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value)
        if self.nodes is not None and self.nodes > self.accelerators:
            raise EvidenceError(
                f"nodes must not exceed accelerators, but got {self.nodes} nodes with "
                f"{self.accelerators} accelerators; leave nodes empty if they are unknown"
            )

    @property
    def local_batch_size(self) -> float:
        """Samples per accelerator per update; a mean if the batch does not divide evenly."""
        return self.global_batch_size / self.accelerators

    @property
    def node_size(self) -> float | None:
        """Accelerators per node, a mean if they do not divide evenly; None if unknown."""
        if self.accelerators_per_node is not None:
            return self.accelerators_per_node
        return None if self.nodes is None else self.accelerators / self.nodes

    @property
    def shows_node_size(self) -> bool:
        """Whether the row determines the node size, which a row on a single node does not."""
        return self.accelerators_per_node is not None or (self.nodes is not None and self.nodes > 1)


def check_count(name: str, value: int) -> None:
    """Raise :class:`EvidenceError` unless ``value`` is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EvidenceError(f"{name} must be a whole number of 1 or more, but got {value!r}")


def merge_measurements(rows: Sequence[MeasuredThroughput]) -> list[Measurement]:
    """Return one measurement per number of accelerators and batch size: the median, with the total number of runs."""
    if not rows:
        raise EvidenceError(
            "a throughput fit needs at least one measured row of accelerators, global_batch_size and "
            "samples_per_second"
        )
    found: dict[tuple[int, int, float], list[Measurement]] = {}
    for row in rows:
        one = (
            row
            if isinstance(row, Measurement)
            else Measurement(
                row.accelerators, row.global_batch_size, row.samples_per_second, row.nodes
            )
        )
        found.setdefault(
            (one.accelerators, one.global_batch_size, one.node_size or 0.0), []
        ).append(one)
    return [
        replace(
            same[0],
            samples_per_second=median(one.samples_per_second for one in same),
            runs=sum(one.runs for one in same),
        )
        for _, same in sorted(found.items())
    ]
