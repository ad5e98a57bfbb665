"""A placement, chosen and explained: what it costs, what limits it, the alternatives, and how to rehearse it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpo.errors import PlanError
from hpo.intervals import Interval
from hpo.planning.placement import bottlenecks, feasibility, pareto, rehearsal
from hpo.planning.placement.candidates import HOUR, Candidate, Situation
from hpo.planning.placement.optimise import Choice, Wish, candidates, choose
from hpo.planning.placement.placements import Memory, Placement
from hpo.planning.placement.rates import Rate


@dataclass(frozen=True)
class Chosen:
    """A candidate, what limits it, and ``details`` for people: see :func:`explained`."""

    candidate: Candidate
    limited_by: str
    details: dict[str, Any]


def plan_placement(situation: Situation, wish: Wish, notes: Sequence[str] = ()) -> Chosen:
    """The best placement for a wish; :class:`PlanError`, with the nearest possible plan, where there is none."""
    feasibility.check_power(situation, wish)
    feasibility.check_wish(situation, wish)
    choice = choose(situation, wish)
    if choice is None:
        raise PlanError("no placement was found within the limits that were asked for")
    best = situation.candidate(choice.best.placement, exact=True)
    choice = Choice(best, tuple(best if each is choice.best else each for each in choice.candidates))
    feasibility.check_time(situation, wish, choice)
    parts = bottlenecks.shares(situation, best)
    return Chosen(best, bottlenecks.limited_by(parts), explained(situation, wish, choice, parts, notes))


def explained(situation: Situation, wish: Wish, choice: Choice, parts: dict[str, float],
              notes: Sequence[str]) -> dict[str, Any]:
    """What is told of a plan, as plain values that JSON holds.

    ``front`` is the Pareto front of time against accelerator hours over all nodes of the machine, the fastest first;
    ``shares`` is how the time is spent; ``rate`` the throughput and its source; ``sensitivity`` and ``rehearsal`` are
    lists; ``supported_batches`` the ends of what the evidence supports; ``failures`` what they were taken to cost.
    """
    best = choice.best
    return {
        "minimise": wish.objective, "chance_asked": wish.chance, "deadline_seconds": wish.deadline_seconds,
        "chance_by_deadline": None if wish.deadline_seconds is None else best.chance_within(wish.deadline_seconds),
        "overhead_seconds": situation.overhead_seconds, "divergence": best.epochs.divergence, "shares": parts,
        "rate": best.rate.to_dict(),
        "front": _front_rows(situation, wish, choice),
        "sensitivity": [each.to_dict() for each in bottlenecks.sensitivity(situation, wish, best)],
        "rehearsal": [each.to_dict() for each in rehearsal.rehearsals(situation, best)],
        "supported_batches": list(situation.law.supported), "notes": list(notes),
        "memory": _memory(situation.memory, best.placement), "failures": _failures(situation, best),
    }


def plan_untimed(situation: Situation, wish: Wish) -> Placement:
    """The placement with the least time if all ranks were equally fast, where nothing tells how fast they are.

    Raises :class:`PlanError` where there is none, and where a time or its cost is asked for.
    """
    if wish.limit_seconds is not None or wish.objective != "time":
        raise PlanError(f"how fast {situation.machine.name} trains this workload is not known, so that no time can be "
                        "planned with; --cost NAME|FILE says what a sample costs")
    evenly = dataclasses.replace(situation, rates=_even)
    feasibility.check_wish(evenly, wish)
    choice = choose(evenly, wish)
    if choice is None:
        raise PlanError("no placement was found within the limits that were asked for")
    return choice.best.placement


def _front_rows(situation: Situation, wish: Wish, choice: Choice) -> list[dict[str, Any]]:
    free = wish.free()
    others = choice.candidates if free == wish else candidates(situation, free)
    others = [each for each in others if each.placement != choice.best.placement]
    found = pareto.front([choice.best, *others])
    knee = pareto.knee(found)
    shown = pareto.excerpt(found, [each for each in (knee, choice.best) if each in found])
    return [{**each.to_dict(), "chosen": each is choice.best, "knee": each is knee,
             "chance_in_slot": None if wish.slot_seconds is None else each.chance_within(wish.slot_seconds)}
            for each in shown]


def _failures(situation: Situation, best: Candidate) -> dict[str, float] | None:
    if situation.failures is None:
        return None
    nodes = best.placement.nodes
    return {"node_hours": situation.failures.node_hours, "slowdown": best.slowdown,
            "hours_between": situation.failures.seconds_between(nodes) / HOUR,
            "checkpoint_minutes": situation.failures.checkpoint_interval(nodes) / 60}


def _memory(memory: Memory | None, placement: Placement) -> dict[str, float] | None:
    return None if memory is None else {
        "bytes_needed": memory.needed(placement.micro_batch_size), "bytes": memory.capacity,
        "largest_micro_batch_size": memory.largest_micro_batch}


def _even(placement: Placement) -> Rate:
    return Rate(Interval(placement.workers, placement.workers, placement.workers))
