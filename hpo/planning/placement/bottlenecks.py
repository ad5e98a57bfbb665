"""What limits a plan, and how its cost would change with other numbers of nodes or another network bandwidth."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hpo.planning.placement.candidates import PlacementCandidate, PlanningContext
from hpo.planning.placement.optimise import PlanConstraints, choose_placement
from hpo.planning.placement.rates import ModelledRates, ThroughputRate


@dataclass(frozen=True)
class BottleneckChange:
    """The effect of a change, as factors on the expected time and accelerator hours; 1 means no difference."""

    what: str
    time: float
    accelerator_hours: float

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return dataclasses.asdict(self)


def time_shares(context: PlanningContext, candidate: PlacementCandidate) -> dict[str, float]:
    """Return the shares of the time to target by cause, which sum to 1.

    ``statistics`` is the share of samples that a small batch would not need: 1 - E(smallest) / E(B). The other shares
    are ``evaluation`` and the breakdown of a step into compute, network, input and control. ``memory`` is the share
    that a step would save if the whole local batch fitted in memory at once.
    """
    smallest = context.law.near(
        min(context.law.supported[0], candidate.placement.global_batch_size)
    )
    needed = min(1.0, smallest.expected / candidate.epochs.expected)
    parts = dict(candidate.rate.shares) or {candidate.rate.limited_by or "compute": 1.0}
    saved = _saved_by_memory(context, candidate)
    parts = {
        name: needed * (part - saved if name == "compute" else part) for name, part in parts.items()
    }
    if saved:
        parts["memory"] = needed * saved
    if candidate.evaluating > 1:
        parts = {name: part / candidate.evaluating for name, part in parts.items()}
        parts["evaluation"] = needed * (1 - 1 / candidate.evaluating)
    return {"statistics": 1 - needed, **parts}


def limited_by(parts: dict[str, float], rate: ThroughputRate) -> str:
    """Return the cause with the largest share; an input that limits the rate takes precedence over the parts of a step.

    Decoding overlaps with computation, so its share covers only the time by which it takes longer. A faster accelerator
    would not make the step shorter.
    """
    largest = max(parts, key=lambda name: parts[name])
    of_step = largest not in ("statistics", "evaluation")
    return "input" if rate.limited_by == "input" and of_step else largest


def plan_sensitivity(
    context: PlanningContext, constraints: PlanConstraints, candidate: PlacementCandidate
) -> list[BottleneckChange]:
    """Return the effects of halving or doubling the nodes (each with its best placement) or the network bandwidth."""
    nodes, found = candidate.placement.nodes, []
    for what, count in (("half the nodes", nodes // 2), ("twice the nodes", nodes * 2)):
        other = (
            choose_placement(context, dataclasses.replace(constraints.free(), nodes=count))
            if 1 <= count <= context.machine.nodes
            else None
        )
        if other:
            found.append(_change(what, candidate, other.best))
    for what, factor in (
        ("half the bandwidth between nodes", 0.5),
        ("twice the bandwidth between nodes", 2.0),
    ):
        if nodes > 1 and isinstance(context.rates, ModelledRates):
            link = context.rates.machine.inter_node
            faster = dataclasses.replace(
                link, bandwidth_bytes_per_second=factor * link.bandwidth_bytes_per_second
            )
            machine = dataclasses.replace(context.rates.machine, inter_node=faster)
            rates = dataclasses.replace(context.rates, machine=machine)
            other_rate = dataclasses.replace(candidate, rate=rates(candidate.placement))
            found.append(_change(what, candidate, other_rate))
    return found


def _change(
    what: str, candidate: PlacementCandidate, other: PlacementCandidate
) -> BottleneckChange:
    return BottleneckChange(
        what,
        other.expected_seconds / candidate.expected_seconds,
        other.expected_hours / candidate.expected_hours,
    )


def _saved_by_memory(context: PlanningContext, candidate: PlacementCandidate) -> float:
    """Return the share of a step that one pass over the whole local batch would save, at most the share of compute."""
    placement = candidate.placement
    if placement.accumulation_steps == 1 or not candidate.rate.shares:
        return 0.0
    whole = context.rates(
        dataclasses.replace(placement, micro_batch_size=placement.local_batch_size)
    )
    ratio = candidate.rate.samples_per_second.median / whole.samples_per_second.median
    return min(max(0.0, 1 - ratio), candidate.rate.shares.get("compute", 0.0))
