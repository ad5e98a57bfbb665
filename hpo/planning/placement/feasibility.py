"""Errors for infeasible plans: the violated rule, and the nearest feasible plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpo.errors import PlanError
from hpo.planning.machines import Machine
from hpo.planning.placement.candidates import HOUR, PlacementCandidate, PlanningContext
from hpo.planning.placement.epochs import EvenEpochsLaw
from hpo.planning.placement.optimise import (
    PlanConstraints,
    PlanSelection,
    best_placement_candidate,
    choose_placement,
    in_hours,
    placement_candidates,
    placement_space,
)
from hpo.planning.placement.placements import GIB, AcceleratorMemory, placements_to_compare
from hpo.planning.placement.rates import SweepRates
from hpo.planning.plan import check_plan_workers
from trainers.job import TrainingJob

LEAST_CHANCE = 0.05
"""A slot is too short if the chance of reaching the target within it is below this."""
OPTIONS = {
    "nodes": "--nodes",
    "ranks_per_node": "--ranks-per-node",
    "global_batch_size": "--global-batch-size",
    "micro_batch_size": "--micro-batch-size",
    "slot_hours": "--slot",
    "deadline_hours": "--deadline",
}


def check_constraints(context: PlanningContext, constraints: PlanConstraints) -> None:
    """Raise :class:`PlanError`, with the nearest possible plan, if no placement meets the constraints."""
    _check_machine(context, constraints)
    _check_memory(context, constraints)
    unit, batch = context.unit, constraints.global_batch_size
    if batch is not None and batch % unit:
        raise _error(
            context,
            f"global batch size {batch} cannot be split into whole normalization batches of "
            f"{unit} samples",
            [
                dataclasses.replace(constraints, global_batch_size=near)
                for near in _multiples(batch, unit)
            ],
        )
    if not placements_to_compare(placement_space(context, constraints)):
        asked = ", ".join(f"{value} {name}" for name, value in _asked(constraints))
        raise _error(
            context,
            f"no placement on {context.machine.name} has {asked} in whole normalization batches "
            f"of {unit} samples",
            _relaxed(context, constraints),
            _other_batches(context, constraints),
        )


def check_layout(
    job: TrainingJob,
    machine: Machine,
    nodes: int | None,
    workers: int | None,
    memory: AcceleratorMemory | None = None,
) -> None:
    """Raise :class:`PlanError`, with the nearest option, if a job's batch cannot be laid out on a machine as asked.

    With ``memory``, the option that the error names also fits on an accelerator.
    """
    if workers is not None and nodes is None:
        check_plan_workers(job, workers, machine, min(workers, machine.nodes))
    context = PlanningContext(
        machine, EvenEpochsLaw(), SweepRates(1.0), 1, job.settings.normalization_batch_size, memory
    )
    check_constraints(
        context,
        PlanConstraints(nodes=nodes, workers=workers, global_batch_size=job.global_batch_size),
    )


def check_power(context: PlanningContext, constraints: PlanConstraints) -> None:
    """Raise :class:`PlanError` if energy is to be minimised and the machine's description has no power."""
    if constraints.objective == "energy" and context.power_watts is None:
        raise PlanError(
            f"machine {context.machine.name} does not give the power of an accelerator in "
            f"watts, so energy cannot be minimised; add accelerator.power_watts to its file, "
            f"or minimise "
            "accelerator_hours",
            {"minimise": "accelerator_hours"},
        )


def check_time(
    context: PlanningContext, constraints: PlanConstraints, selection: PlanSelection
) -> None:
    """Raise :class:`PlanError` if a deadline is not met or a slot is too short."""
    best = selection.best
    if constraints.deadline_seconds is not None:
        chance = best.chance_within(constraints.deadline_seconds)
        if chance < constraints.chance:
            raise _time_error(
                context,
                constraints,
                best,
                constraints.chance,
                "deadline_hours",
                f"the deadline of {in_hours(constraints.deadline_seconds)} must be met with a "
                f"chance of {constraints.chance:.0%}, but the likeliest plan, which takes "
                f"{in_hours(best.seconds.median)}{_overhead(best)}, has a chance of {chance:.1%}",
            )
    if constraints.slot_seconds is not None:
        chance = best.chance_within(constraints.slot_seconds)
        if chance < LEAST_CHANCE:
            raise _time_error(
                context,
                constraints,
                best,
                0.5,
                "slot_hours",
                f"a slot of {in_hours(constraints.slot_seconds)} is too short: the plan needs "
                f"{in_hours(best.seconds.median)} ({in_hours(best.seconds.low)} to "
                f"{in_hours(best.seconds.high)}){_overhead(best)}, which gives a chance of {chance:.1%}",
            )


def _overhead(candidate: PlacementCandidate) -> str:
    seconds = candidate.overhead_seconds
    return f" and {in_hours(seconds)} for starting and staging" if seconds else ""


def _check_machine(context: PlanningContext, constraints: PlanConstraints) -> None:
    machine = context.machine
    most = machine.accelerators_per_node
    if constraints.nodes is not None and not 1 <= constraints.nodes <= machine.nodes:
        ranks = constraints.ranks_per_node
        near = dataclasses.replace(
            constraints,
            nodes=min(max(constraints.nodes, 1), machine.nodes),
            ranks_per_node=None if ranks is None else min(max(ranks, 1), most),
        )
        raise _error(
            context,
            f"nodes must be between 1 and {machine.nodes}, the nodes of {machine.name}, but got "
            f"{constraints.nodes}",
            [near, *_relaxed(context, near)],
        )
    if constraints.ranks_per_node is not None and not 1 <= constraints.ranks_per_node <= most:
        raise _error(
            context,
            f"ranks per node must be between 1 and {most}, one for each accelerator of a node of "
            f"{machine.name}, but got {constraints.ranks_per_node}",
            [
                dataclasses.replace(
                    constraints, ranks_per_node=min(max(constraints.ranks_per_node, 1), most)
                ),
                *_relaxed(context, constraints),
            ],
        )


def _check_memory(context: PlanningContext, constraints: PlanConstraints) -> None:
    memory, unit, micro = context.memory, context.unit, constraints.micro_batch_size
    if memory and memory.largest_micro_batch < unit:
        raise PlanError(
            f"one normalization batch of {unit} samples takes {memory.needed(unit) / GIB:.3g} GiB on an accelerator, "
            f"but one of {context.machine.name} has {memory.capacity / GIB:.3g} GiB, for at most "
            f"{memory.largest_micro_batch} (search: normalization_batch_size); or use precision bf16 or fp16"
        )
    if micro is not None and micro < unit:
        raise _error(
            context,
            f"a micro batch must hold at least one normalization batch of {unit} samples, but got "
            f"{micro}",
            [dataclasses.replace(constraints, micro_batch_size=unit)],
        )
    if memory and micro is not None and micro > memory.largest_micro_batch:
        raise _error(
            context,
            f"a micro batch of {micro} samples takes {memory.needed(micro) / GIB:.3g} GiB on an "
            f"accelerator, but one of {context.machine.name} has {memory.capacity / GIB:.3g} GiB",
            [
                dataclasses.replace(
                    constraints, micro_batch_size=memory.largest_micro_batch // unit * unit
                )
            ],
        )


def _relaxed(context: PlanningContext, constraints: PlanConstraints) -> Iterator[PlanConstraints]:
    """Yield weaker constraints, the least relaxed first: the most ranks on no more nodes, then the nearest batches."""
    fewer = _fewer_ranks(context, constraints)
    if fewer:
        yield fewer
    yield from _other_batches(context, constraints)
    yield PlanConstraints(minimise=constraints.minimise)


def _fewer_ranks(context: PlanningContext, constraints: PlanConstraints) -> PlanConstraints | None:
    """Return the same batch on as many workers as the requested nodes and workers allow; None if that is impossible."""
    anywhere = dataclasses.replace(constraints, ranks_per_node=None, workers=None, nodes=None)
    found = [
        each
        for each in placements_to_compare(placement_space(context, anywhere))
        if each.nodes <= (constraints.nodes or each.nodes)
        and each.workers <= (constraints.workers or each.workers)
    ]
    if not found:
        return None
    best = max(found, key=lambda each: (each.workers, -each.nodes))
    return dataclasses.replace(anywhere, nodes=best.nodes, ranks_per_node=best.ranks_per_node)


def _other_batches(
    context: PlanningContext, constraints: PlanConstraints
) -> Iterator[PlanConstraints]:
    """Yield the batches that fill the requested nodes, ranks or workers, nearest first."""
    if constraints.global_batch_size is None or (constraints.nodes or 1) > context.machine.nodes:
        return
    for batch in _multiples(
        constraints.global_batch_size, _workers(context, constraints) * context.unit
    ):
        yield dataclasses.replace(constraints, global_batch_size=batch)


def _workers(context: PlanningContext, constraints: PlanConstraints) -> int:
    per_node = constraints.ranks_per_node or context.machine.accelerators_per_node
    return constraints.workers or (constraints.nodes or 1) * per_node


def _multiples(number: int, unit: int) -> list[int]:
    """Return the multiples of ``unit`` around ``number``, nearest first, each at least one unit."""
    around = {max(1, number // unit) * unit, -(-number // unit) * unit}
    return sorted(around, key=lambda each: abs(each - number))


def _asked(constraints: PlanConstraints) -> Iterator[tuple[str, int]]:
    names = {
        "global_batch_size": "samples per update",
        "nodes": "nodes",
        "ranks_per_node": "ranks per node",
        "workers": "workers",
        "micro_batch_size": "samples per micro batch",
    }
    for name, words in names.items():
        value = getattr(constraints, name)
        if value is not None:
            yield words, value


def _error(
    context: PlanningContext,
    message: str,
    alternatives: Iterable[PlanConstraints],
    others: Iterable[PlanConstraints] = (),
) -> PlanError:
    """Return the error with the best placement for the first possible alternative, and for the first of ``others``."""
    near, other = _first_possible(context, alternatives), _first_possible(context, others)
    if near is None:
        return PlanError(f"{message}; there is no similar plan: give another machine or batch size")
    error = _with_nearest(message, near, {})
    if other is None or other.placement == near.placement:
        return error
    return PlanError(f"{error}; or {_options(_asked_for(other))}", error.nearest)


def _first_possible(
    context: PlanningContext, alternatives: Iterable[PlanConstraints]
) -> PlacementCandidate | None:
    for constraints in alternatives:
        try:
            selection = (
                choose_placement(context, constraints)
                if placement_space(context, constraints).possible
                else None
            )
        except PlanError:  # a batch that a single forecast does not cover
            continue
        if selection:
            return selection.best
    return None


def _time_error(
    context: PlanningContext,
    constraints: PlanConstraints,
    best: PlacementCandidate,
    chance: float,
    name: str,
    message: str,
) -> PlanError:
    """Return the error with the cheapest plan of any size and batch that ends in time, or with the time needed."""
    limit = constraints.limit_seconds or 0.0
    for free in (
        constraints.free(),
        dataclasses.replace(constraints.free(), global_batch_size=None),
    ):
        others = [
            each
            for each in placement_candidates(context, free)
            if each.chance_within(limit) >= chance
        ]
        if others:
            cheapest = dataclasses.replace(
                free, minimise=constraints.minimise or "accelerator_hours", chance=chance
            )
            return _with_nearest(message, best_placement_candidate(others, cheapest), {})
    needed = time_for(best, chance)
    if needed is None:
        return PlanError(
            f"{message}; no amount of time gives that chance: the risk that the training "
            f"diverges is "
            f"{best.epochs.divergence:.0%}"
        )
    return _with_nearest(
        f"{message}; with a chance of {chance:.0%} it takes {in_hours(needed)}",
        best,
        {name: round_up(needed / HOUR)},
    )


def time_for(candidate: PlacementCandidate, chance: float) -> float | None:
    """Return the seconds within which a candidate reaches the target with this probability; None if it never does."""
    import numpy as np

    level = chance / (1 - candidate.epochs.divergence) if candidate.epochs.divergence < 1 else 2.0
    if level > 1:
        return None
    return candidate.overhead_seconds + float(
        np.quantile(candidate.seconds_values, level, method="higher")
    )


def round_up(hours: float) -> float:
    """Round hours up to three digits, because the time in a message must suffice."""
    from decimal import ROUND_UP, Context

    return float(Context(prec=3, rounding=ROUND_UP).create_decimal_from_float(hours))


def _with_nearest(
    message: str, candidate: PlacementCandidate, more: Mapping[str, Any]
) -> PlanError:
    found = {**_asked_for(candidate), **more}
    return PlanError(f"{message}; the nearest possible plan: {_options(found)}", found)


def _asked_for(candidate: PlacementCandidate) -> dict[str, Any]:
    place = candidate.placement
    return {
        "nodes": place.nodes,
        "ranks_per_node": place.ranks_per_node,
        "global_batch_size": place.global_batch_size,
        "micro_batch_size": place.micro_batch_size,
    }


def _options(found: Mapping[str, Any]) -> str:
    return " ".join(
        f"{OPTIONS[name]} {value:g}" if isinstance(value, float) else f"{OPTIONS[name]} {value}"
        for name, value in found.items()
    )
