"""Chooses a placement and explains it: its cost, what limits it, the alternatives, and its pilot runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hpo.errors import PlanError
from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.placement import bottlenecks, feasibility, pareto, pilot_run
from hpo.planning.placement.candidates import HOUR, PlacementCandidate, PlanningContext
from hpo.planning.placement.optimise import (
    PlanConstraints,
    PlanSelection,
    choose_placement,
    placement_candidates,
)
from hpo.planning.placement.placements import AcceleratorMemory, Placement
from hpo.planning.placement.rates import ThroughputRate
from hpo.planning.plan import SAVE_AFTER


def plan_placement(
    context: PlanningContext, constraints: PlanConstraints, notes: Sequence[str] = ()
) -> PlanSelection:
    """Return the best placement within the constraints, with its explanation.

    Raises :class:`PlanError`, with the nearest possible plan, if there is none.
    """
    feasibility.check_power(context, constraints)
    feasibility.check_constraints(context, constraints)
    selection = choose_placement(context, constraints)
    if selection is None:
        raise PlanError("no placement was found within the requested limits")
    best = context.candidate(selection.best.placement, exact=True)
    selection = PlanSelection(
        best, tuple(best if each is selection.best else each for each in selection.candidates)
    )
    feasibility.check_time(context, constraints, selection)
    parts = bottlenecks.time_shares(context, best)
    return dataclasses.replace(
        selection,
        limited_by=bottlenecks.limited_by(parts, best.rate),
        details=explained(context, constraints, selection, parts, notes),
    )


def explained(
    context: PlanningContext,
    constraints: PlanConstraints,
    selection: PlanSelection,
    parts: dict[str, float],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the explanation of a plan, as plain values for JSON.

    ``front`` is the Pareto front of time against accelerator hours over all nodes of the machine, fastest first;
    ``shares`` is how the time is spent; ``rate`` is the throughput with its source; ``sensitivity`` and ``pilot_runs``
    are lists; ``supported_batches`` is the range that the evidence supports; ``failures`` is the assumed cost of node
    failures, with the minutes between two checkpoints and, as the trainer saves at the first evaluation after these,
    the minutes that it is given; ``evaluation`` is the seconds of one evaluation and the share of the time that
    evaluations take, or None.
    """
    best, deadline = selection.best, constraints.deadline_seconds
    return {
        "minimise": constraints.objective,
        "chance_asked": constraints.chance,
        "deadline_seconds": deadline,
        "chance_by_deadline": None if deadline is None else best.chance_within(deadline),
        "overhead_seconds": context.overhead_seconds,
        "divergence": best.epochs.divergence,
        "shares": parts,
        "rate": best.rate.to_dict(),
        "front": _front_rows(context, constraints, selection),
        "sensitivity": [
            each.to_dict() for each in bottlenecks.plan_sensitivity(context, constraints, best)
        ],
        "pilot_runs": [each.to_dict() for each in pilot_run.pilot_runs(context, best)],
        "supported_batches": list(context.law.supported),
        "notes": list(notes),
        "memory": _memory(context.memory, best.placement),
        "failures": _failures(context, best),
        "evaluation": None
        if best.evaluating == 1
        else {"seconds": best.rate.evaluation_seconds, "share": 1 - 1 / best.evaluating},
    }


def plan_untimed(context: PlanningContext, constraints: PlanConstraints) -> Placement:
    """Return the placement with the least time if all ranks are equally fast, for an unknown throughput.

    Raises :class:`PlanError` if there is none, or if the constraints or the objective depend on time.
    """
    if constraints.limit_seconds is not None or constraints.objective != "time":
        raise PlanError(
            f"the speed of {context.machine.name} for this workload is unknown, so no time can "
            f"be planned; give the cost of a sample with --cost NAME|FILE"
        )
    evenly = dataclasses.replace(context, rates=_even)
    feasibility.check_constraints(evenly, constraints)
    selection = choose_placement(evenly, constraints)
    if selection is None:
        raise PlanError("no placement was found within the requested limits")
    return selection.best.placement


def _front_rows(
    context: PlanningContext, constraints: PlanConstraints, selection: PlanSelection
) -> list[dict[str, Any]]:
    free = constraints.free()
    others = selection.candidates if free == constraints else placement_candidates(context, free)
    others = [each for each in others if each.placement != selection.best.placement]
    found = pareto.pareto_front([selection.best, *others])
    knee = pareto.pareto_knee(found)
    shown = pareto.front_excerpt(found, [each for each in (knee, selection.best) if each in found])
    return [
        {
            **each.to_dict(),
            "chosen": each is selection.best,
            "knee": each is knee,
            "chance_in_slot": None
            if constraints.slot_seconds is None
            else each.chance_within(constraints.slot_seconds),
        }
        for each in shown
    ]


def _failures(context: PlanningContext, best: PlacementCandidate) -> dict[str, float] | None:
    if context.failures is None:
        return None
    nodes = best.placement.nodes
    return {
        "node_hours": context.failures.node_hours,
        "slowdown": best.slowdown,
        "hours_between": context.failures.seconds_between(nodes) / HOUR,
        "checkpoint_minutes": best.saving_seconds / 60,
        SAVE_AFTER: context.failures.checkpoint_interval(nodes) / 60,
    }


def _memory(memory: AcceleratorMemory | None, placement: Placement) -> dict[str, float] | None:
    return (
        None
        if memory is None
        else {
            "bytes_needed": memory.needed(placement.micro_batch_size),
            "bytes": memory.capacity,
            "largest_micro_batch_size": memory.largest_micro_batch,
        }
    )


def _even(placement: Placement) -> ThroughputRate:
    return ThroughputRate(Interval(placement.workers, placement.workers, placement.workers))
