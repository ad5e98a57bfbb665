"""Chooses the placement with the least expected time, accelerator hours or energy within the constraints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpo.planning.placement.candidates import HOUR, PlacementCandidate, PlanningContext
from hpo.planning.placement.placements import (
    Placement,
    PlacementSpace,
    neighbouring_placements,
    placements_to_compare,
)
from hpo.planning.request import Objective

CLIMBS = 40  # steps of the search around the best of a grid


@dataclass(frozen=True)
class PlanConstraints:
    """The constraints and the objective of a plan, with times in seconds; a quantity that is None is free.

    The target must be reached within ``deadline_seconds``, and should be within ``slot_seconds``, with probability
    ``chance``. ``minimise`` defaults to accelerator hours if there is a deadline, otherwise to time.
    """

    minimise: Objective | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    workers: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    deadline_seconds: float | None = None
    slot_seconds: float | None = None
    chance: float = 0.9

    @property
    def objective(self) -> Objective:
        """The objective to minimise."""
        return self.minimise or ("time" if self.deadline_seconds is None else "accelerator_hours")

    @property
    def limit_seconds(self) -> float | None:
        """The shorter of the deadline and the slot."""
        return min(
            (each for each in (self.deadline_seconds, self.slot_seconds) if each is not None),
            default=None,
        )

    def free(self) -> PlanConstraints:
        """Return a copy with nodes, ranks and micro batch free, to compare alternatives at this batch size."""
        return dataclasses.replace(
            self, nodes=None, ranks_per_node=None, workers=None, micro_batch_size=None
        )


@dataclass(frozen=True)
class PlanSelection:
    """The best candidate, and all candidates with which it was compared.

    ``limited_by`` names the largest share of the best candidate's time, and ``details`` explains the choice: see
    :func:`hpo.planning.placement.planner.explained`. Both are empty if placements were only compared.
    """

    best: PlacementCandidate
    candidates: tuple[PlacementCandidate, ...]
    limited_by: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def placement_space(context: PlanningContext, constraints: PlanConstraints) -> PlacementSpace:
    """Return the placements that the constraints and the machine allow together."""
    machine = context.machine
    per_node = machine.accelerators_per_node
    if machine.name == "local" and machine.computes_on_cores and constraints.workers:
        per_node = max(per_node, constraints.workers)  # cores may be shared
    nodes = (constraints.nodes, constraints.nodes) if constraints.nodes else (1, machine.nodes)
    ranks = (
        (constraints.ranks_per_node, constraints.ranks_per_node)
        if constraints.ranks_per_node
        else (1, per_node)
    )
    largest = context.largest_micro_batch
    if constraints.micro_batch_size is not None:
        largest = min(largest, constraints.micro_batch_size)
    return PlacementSpace(
        nodes,
        ranks,
        _batches(context, constraints, nodes[0], ranks),
        context.unit,
        largest,
        constraints.workers,
    )


def placement_candidates(
    context: PlanningContext, constraints: PlanConstraints
) -> list[PlacementCandidate]:
    """Return every placement that is compared, with its cost; empty if there is none."""
    return [
        context.candidate(placement)
        for placement in placements_to_compare(placement_space(context, constraints))
    ]


def choose_placement(
    context: PlanningContext, constraints: PlanConstraints
) -> PlanSelection | None:
    """Return the best placement or None; with a free batch, search a grid and then the neighbours of its best member.

    If no placement is likely enough to end in time, the likeliest one is returned.
    """
    space = placement_space(context, constraints)
    found = {placement: context.candidate(placement) for placement in placements_to_compare(space)}
    if not found:
        return None
    best = best_placement_candidate(list(found.values()), constraints)
    for _ in range(CLIMBS if space.batches[0] < space.batches[1] else 0):
        near = [
            each for each in neighbouring_placements(best.placement, space) if each not in found
        ]
        found |= {placement: context.candidate(placement) for placement in near}
        better = best_placement_candidate(
            [best, *(found[placement] for placement in near)], constraints
        )
        if better is best:
            break
        best = better
    return PlanSelection(best, tuple(found.values()))


def best_placement_candidate(
    found: Sequence[PlacementCandidate], constraints: PlanConstraints
) -> PlacementCandidate:
    """Return the candidate with the lowest objective among those likely enough to end in time.

    If there is none, return the likeliest candidate, or the fastest if several are equally likely.
    """
    limit = constraints.limit_seconds
    if limit is None:
        return min(found, key=lambda each: ranking(each, constraints))
    chances = [each.chance_within(limit) for each in found]
    ending = [
        each for each, chance in zip(found, chances, strict=True) if chance >= constraints.chance
    ]
    if ending:
        return min(ending, key=lambda each: ranking(each, constraints))
    return max(
        zip(found, chances, strict=True), key=lambda each: (each[1], -each[0].expected_seconds)
    )[0]


def ranking(
    candidate: PlacementCandidate, constraints: PlanConstraints
) -> tuple[float, float, Placement]:
    """Return the sort key: the objective, then fewer accelerator hours, then fewer nodes."""
    values: Mapping[str, Any] = {
        "time": candidate.expected_seconds,
        "accelerator_hours": candidate.expected_hours,
        "energy": candidate.expected_kwh,
    }
    return float(values[constraints.objective]), candidate.expected_hours, candidate.placement


def _batches(
    context: PlanningContext, constraints: PlanConstraints, least_nodes: int, ranks: tuple[int, int]
) -> tuple[int, int]:
    """Return the requested batch, or the range that the evidence supports, large enough for every requested worker."""
    if constraints.global_batch_size is not None:
        return constraints.global_batch_size, constraints.global_batch_size
    smallest, largest = context.law.supported
    least = constraints.workers or least_nodes * (ranks[1] if constraints.nodes else ranks[0])
    return smallest, max(largest, least * context.unit)


def in_hours(seconds: float) -> str:
    """Format seconds as ``1.5 h``, or as minutes or seconds if shorter."""
    if seconds >= HOUR:
        return f"{seconds / HOUR:.3g} h"
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:.3g} s"
