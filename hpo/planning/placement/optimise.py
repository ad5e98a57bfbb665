"""The choice of a placement: the least expected time, accelerator hours or energy, within what was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpo.planning.placement.candidates import HOUR, Candidate, Situation
from hpo.planning.placement.placements import Limits, Placement, neighbours, placements
from hpo.planning.request import Objective

CLIMBS = 40                      # steps of the search around the best of a grid


@dataclass(frozen=True)
class Wish:
    """What is asked of a plan; None leaves a choice free.

    Within ``deadline_seconds`` the target must be reached with the probability ``chance``; within ``slot_seconds`` it
    should. Without ``minimise`` a deadline asks for the fewest accelerator hours, and else the time counts.
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
        """What is minimised."""
        return self.minimise or ("time" if self.deadline_seconds is None else "accelerator_hours")

    @property
    def limit_seconds(self) -> float | None:
        """The shorter of deadline and slot."""
        return min((each for each in (self.deadline_seconds, self.slot_seconds) if each is not None), default=None)

    def free(self) -> Wish:
        """The same, with nodes, ranks and micro batch left open: what else could be done at the batch size."""
        return dataclasses.replace(self, nodes=None, ranks_per_node=None, workers=None, micro_batch_size=None)


@dataclass(frozen=True)
class Choice:
    """The best candidate, and all that it was compared with."""

    best: Candidate
    candidates: tuple[Candidate, ...]


def limits_of(situation: Situation, wish: Wish) -> Limits:
    """The limits that a wish and the machine set together."""
    machine = situation.machine
    per_node = machine.accelerators_per_node
    if machine.name == "local" and wish.workers:
        per_node = max(per_node, wish.workers)      # cores may be shared
    nodes = (wish.nodes, wish.nodes) if wish.nodes else (1, machine.nodes)
    ranks = (wish.ranks_per_node, wish.ranks_per_node) if wish.ranks_per_node else (1, per_node)
    largest = situation.largest_micro_batch
    if wish.micro_batch_size is not None:
        largest = min(largest, wish.micro_batch_size)
    return Limits(nodes, ranks, _batches(situation, wish, nodes[0], ranks), situation.unit, largest, wish.workers)


def candidates(situation: Situation, wish: Wish) -> list[Candidate]:
    """Every placement that is compared, with what it would cost; empty where there is none."""
    return [situation.candidate(placement) for placement in placements(limits_of(situation, wish))]


def choose(situation: Situation, wish: Wish) -> Choice | None:
    """The best placement, or None where there is none; with a free batch the best of a grid, then of its neighbours.

    Where no placement is likely enough to end in time, the likeliest is the best.
    """
    limits = limits_of(situation, wish)
    found = {placement: situation.candidate(placement) for placement in placements(limits)}
    if not found:
        return None
    best = best_of(list(found.values()), wish)
    for _ in range(CLIMBS if limits.batches[0] < limits.batches[1] else 0):
        near = [each for each in neighbours(best.placement, limits) if each not in found]
        found |= {placement: situation.candidate(placement) for placement in near}
        better = best_of([best, *(found[placement] for placement in near)], wish)
        if better is best:
            break
        best = better
    return Choice(best, tuple(found.values()))


def best_of(found: Sequence[Candidate], wish: Wish) -> Candidate:
    """The candidate with the least of what is minimised among those likely enough to end in time.

    Where none is, the likeliest; of equals, as where none has a chance, the fastest.
    """
    limit = wish.limit_seconds
    if limit is None:
        return min(found, key=lambda each: ranking(each, wish))
    chances = [each.chance_within(limit) for each in found]
    ending = [each for each, chance in zip(found, chances, strict=True) if chance >= wish.chance]
    if ending:
        return min(ending, key=lambda each: ranking(each, wish))
    return max(zip(found, chances, strict=True), key=lambda each: (each[1], -each[0].expected_seconds))[0]


def ranking(candidate: Candidate, wish: Wish) -> tuple[float, float, Placement]:
    """What is minimised; of equals the one with the fewer accelerator hours, then with the fewer nodes."""
    values: Mapping[str, Any] = {"time": candidate.expected_seconds, "accelerator_hours": candidate.expected_hours,
                                 "energy": candidate.expected_kwh}
    return float(values[wish.objective]), candidate.expected_hours, candidate.placement


def _batches(situation: Situation, wish: Wish, least_nodes: int, ranks: tuple[int, int]) -> tuple[int, int]:
    """The batch asked for, or all that the evidence supports; as many nodes as were asked for need a sample each."""
    if wish.global_batch_size is not None:
        return wish.global_batch_size, wish.global_batch_size
    smallest, largest = situation.law.supported
    least = wish.workers or least_nodes * (ranks[1] if wish.nodes else ranks[0])
    return smallest, max(largest, least * situation.unit)


def in_hours(seconds: float) -> str:
    """``1.5 h``, or minutes and seconds where shorter."""
    if seconds >= HOUR:
        return f"{seconds / HOUR:.3g} h"
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:.3g} s"
