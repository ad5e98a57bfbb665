"""The Pareto front of time, accelerator hours and epochs over batch sizes, placements and settings.

The best choice depends on what is scarce: a small batch needs the fewest epochs, a large batch on many accelerators
finishes first, and few accelerators cost the least. Candidates are all placements of all batch sizes that the evidence
supports, with the recommended settings and with others around them. A candidate is left out if another is at least as
good in all three aims and better in one (Pareto; Miettinen, Nonlinear Multiobjective Optimization, 1999). With a fixed
training budget, the third aim is the metric at its end. A run that may be lost is assumed to be repeated: its time and
hours are divided by the chance that it is not lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.placement.candidates import PlacementCandidate, PlanningContext
from hpo.planning.placement.epochs import EpochsLaw
from hpo.planning.placement.optimise import PlanConstraints, placement_candidates
from trainers.job import Question

Array: TypeAlias = NDArray[np.float64]

SHOWN = 12
"""The maximum number of members of a front that are shown; a front may have hundreds."""
AIMS = ("fastest", "cheapest", "fewest epochs")
BALANCED = "balanced"


class SettingsLaw(EpochsLaw, Protocol):
    """The need of given settings (the recommended ones, or others around them) at each batch size.

    The need is the epochs to target, or the shortfall after a fixed budget.
    """

    def settings(self, global_batch_size: int) -> Mapping[str, float]:
        """Return the tuned settings by name."""


@dataclass(frozen=True)
class TradeOff:
    """A member of the front: a placement with its batch size, its ``settings``, and their results.

    ``need`` is the interval of one run's epochs to target or, with a fixed budget, of its ``metric`` after the budget.
    ``seconds`` and ``accelerator_hours`` are medians with 90 % intervals, for one run. ``marks`` names the aims in
    which the member is the best of all; the member closest to the best in all aims at once is marked too.
    """

    candidate: PlacementCandidate
    settings: Mapping[str, float]
    need: Interval
    metric: str | None = None
    marks: tuple[str, ...] = ()

    @property
    def global_batch_size(self) -> int:
        """Samples per update over all workers."""
        return self.candidate.placement.global_batch_size

    @property
    def nodes(self) -> int:
        """The number of nodes used."""
        return self.candidate.placement.nodes

    @property
    def seconds(self) -> Interval:
        """The time to the target, or to the end of the budget."""
        return self.candidate.seconds

    @property
    def accelerator_hours(self) -> Interval:
        """The cost in accelerator hours."""
        return self.candidate.accelerator_hours

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        row = self.candidate.to_dict()
        if self.metric is not None:
            row |= {"metric": self.metric, "best": self.need.to_dict()}
        return {
            **row,
            "workers": self.candidate.placement.workers,
            "divergence": self.candidate.epochs.divergence,
            "settings": dict(self.settings),
            "marks": list(self.marks),
        }


def trade_offs(
    context: PlanningContext,
    constraints: PlanConstraints,
    laws: Sequence[SettingsLaw],
    told: Question | None = None,
    most: int = SHOWN,
) -> tuple[TradeOff, ...]:
    """Return the front over all placements within the constraints and the settings of each of ``laws``, fastest first.

    ``told`` is the :class:`trainers.job.Question` of a fixed budget, for which the context's own law gives the time; it
    is None if the question is the epochs to target. There are at most ``most`` members, including the best in each aim.
    """
    found: list[TradeOff] = []
    for law in laws:
        of_law = context if told is not None else dataclasses.replace(context, law=law)
        low, high = law.supported
        for each in placement_candidates(of_law, constraints):
            batch = each.placement.global_batch_size
            if low <= batch <= high:
                need = law.near(batch)
                epochs = dataclasses.replace(each.epochs, divergence=need.divergence)
                costs = dataclasses.replace(each, epochs=epochs)
                found.append(TradeOff(costs, law.settings(batch), need.interval))
    if not found:
        return ()
    aims = np.array([_aims(each) for each in found])
    front = nondominated(aims)
    members = [found[index] for index in front]
    chosen = _excerpt(np.log(aims[front]), most)
    told_members = [
        dataclasses.replace(members[at], marks=marks) for at, marks in sorted(chosen.items())
    ]
    if told is not None:
        told_members = [_of_metric(each, told) for each in told_members]
    return tuple(sorted(told_members, key=lambda each: each.candidate.expected_seconds))


def nondominated(aims: Array) -> list[int]:
    """Return the indices of those rows of ``aims`` (points, aims; all minimised) that no other row dominates.

    Of equal rows, only the first is kept. The indices are ordered by the first aim, then by the others.
    """
    order = sorted(range(len(aims)), key=lambda index: (*aims[index].tolist(), index))
    kept: list[int] = []
    for index in order:  # a row that dominates another precedes it
        best = aims[kept]
        if not kept or not bool((best <= aims[index]).all(axis=1).any()):
            kept.append(index)
    return kept


def _aims(each: TradeOff) -> tuple[float, float, float]:
    arrives = max(1.0 - each.candidate.epochs.divergence, 1e-6)
    return (
        each.candidate.expected_seconds / arrives,
        each.candidate.expected_hours / arrives,
        each.need.median,
    )


def _excerpt(logs: Array, most: int) -> dict[int, tuple[str, ...]]:
    """Return members by index, with marks: the best in each aim, the balanced one, then the farthest from those."""
    low, span = logs.min(axis=0), np.ptp(logs, axis=0)
    unit = (logs - low) / np.where(span > 0, span, 1.0)
    marks: dict[int, tuple[str, ...]] = {}
    for aim, name in enumerate(AIMS):
        at = min(range(len(unit)), key=lambda index: (unit[index, aim], *unit[index].tolist()))
        marks[at] = (*marks.get(at, ()), name)
    at = int(np.argmin(np.linalg.norm(unit, axis=1)))
    marks[at] = (*marks.get(at, ()), BALANCED)
    while len(marks) < min(most, len(unit)):
        apart = np.min([np.linalg.norm(unit - unit[index], axis=1) for index in marks], axis=0)
        farthest = int(np.argmax(apart))
        if farthest in marks:
            break
        marks[farthest] = ()
    return marks


def _of_metric(each: TradeOff, question: Question) -> TradeOff:
    """Return the member with its shortfall converted to the metric."""
    ends = sorted((question.told(each.need.low), question.told(each.need.high)))
    marks = tuple(f"best {question.unit}" if mark == AIMS[2] else mark for mark in each.marks)
    return dataclasses.replace(
        each,
        need=Interval(question.told(each.need.median), *ends),
        metric=question.unit,
        marks=marks,
    )
