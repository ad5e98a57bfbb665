"""Short runs on fewer nodes that check the assumptions on which a plan's time depends most."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.placement.candidates import HOUR, RATE_VALUES, PlacementCandidate, PlanningContext
from hpo.planning.placement.epochs import END_OF_INTERVAL, epoch_quantiles
from hpo.planning.placement.placements import Placement, PlacementSpace

MOST_RUNS = 3
LEAST_SHARE = 0.05  # share of the variance: a run that checks less is not worth its time
STEPS = 200  # number of updates that measure a throughput to within a few per cent


@dataclass(frozen=True)
class PilotRun:
    """One pilot run: what it checks, where and for how many steps, what is expected, and what would overturn the plan.

    ``share`` is the part of the variance of the plan's log time that depends on what is checked. ``quantity`` is
    ``epochs to target`` or ``samples per second``; ``spread_after`` is the factor between the ends of the 90 % interval
    of the plan's time if the run gives the expected result.
    """

    checks: str
    placement: Placement
    steps: int
    quantity: str
    expected: Interval
    overturned_by: str
    share: float
    spread_after: float
    accelerator_hours: float

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        place = self.placement
        return {
            "checks": self.checks,
            "nodes": place.nodes,
            "ranks_per_node": place.ranks_per_node,
            "global_batch_size": place.global_batch_size,
            "local_batch_size": place.local_batch_size,
            "micro_batch_size": place.micro_batch_size,
            "steps": self.steps,
            "quantity": self.quantity,
            "expected": self.expected.to_dict(),
            "overturned_by": self.overturned_by,
            "share_of_variance": self.share,
            "spread_after": self.spread_after,
            "accelerator_hours": self.accelerator_hours,
        }


def pilot_runs(context: PlanningContext, candidate: PlacementCandidate) -> list[PilotRun]:
    """Return at most MOST_RUNS pilot runs, riskiest assumption first, and at least one unless nothing is uncertain.

    The variance of the log time is the sum of the variances of the log epochs and the log throughput, which are
    independent; the latter is split into the part of a single node and the part due to scale.
    """
    found = sorted(_runs(context, candidate), key=lambda run: -run.share)
    return [run for run in found if run.share >= LEAST_SHARE][:MOST_RUNS]


def _runs(context: PlanningContext, candidate: PlacementCandidate) -> Iterator[PilotRun]:
    epochs, rate = (
        float(np.var(np.log(candidate.epochs.values))),
        _variance(candidate.rate.samples_per_second),
    )
    whole = epochs + rate
    if not whole:
        return
    place = candidate.placement
    alone = dataclasses.replace(place, nodes=1)
    node = (
        rate if place.nodes == 1 else min(rate, _variance(context.rates(alone).samples_per_second))
    )
    yield _of_epochs(context, candidate, epochs, rate)
    if node:
        yield _of_rate("throughput of one node", context, alone, node / whole, whole - node)
    if rate > node:
        what = "input at scale" if candidate.rate.limited_by == "input" else "throughput at scale"
        fewer = dataclasses.replace(place, nodes=_fewer(place.nodes))
        yield _of_rate(what, context, fewer, (rate - node) / whole, whole - (rate - node))


def _of_rate(
    what: str, context: PlanningContext, placement: Placement, share: float, left: float
) -> PilotRun:
    """Return a run of STEPS updates with the plan's local batch size."""
    rate = context.rates(placement).samples_per_second
    seconds = STEPS * placement.global_batch_size / rate.median
    return PilotRun(
        what,
        placement,
        STEPS,
        "samples per second",
        rate,
        f"fewer than {rate.low:,.4g} samples a second",
        share,
        _spread(left),
        context.accelerators(placement) * seconds / HOUR,
    )


def _of_epochs(
    context: PlanningContext, candidate: PlacementCandidate, epochs: float, rate: float
) -> PilotRun:
    """Return a training run to the target at the batch size that is most informative per sample about the plan's."""
    batch = candidate.placement.global_batch_size
    after = {
        tried: context.law.spread_after(tried, batch)
        for tried in _smaller_batches(context, candidate)
    }
    seen = max(
        after,
        key=lambda tried: max(epochs - after[tried] ** 2, 0.0) / context.law.near(tried).expected,
    )
    run = context.candidate(_placement_of(seen, context, candidate.placement), exact=True)
    expected = run.epochs.interval
    steps = math.ceil(expected.median * context.train_samples / run.placement.global_batch_size)
    return PilotRun(
        "epochs to target",
        run.placement,
        steps,
        "epochs to target",
        expected,
        f"more than {expected.high:.4g} epochs",
        epochs / (epochs + rate),
        _spread(min(after[seen] ** 2, epochs) + rate),
        run.expected_hours,
    )


def _smaller_batches(context: PlanningContext, candidate: PlacementCandidate) -> list[int]:
    """Return the plan's batch repeatedly halved, down to the largest swept one, or itself if none lies between."""
    batch, unit, found = candidate.placement.global_batch_size, context.unit, []
    half = batch // 2
    while half > context.law.swept and half >= unit:
        found.append(max(unit, half // unit * unit))
        half //= 2
    return found or [batch]


def _placement_of(batch: int, context: PlanningContext, plan: Placement) -> Placement:
    """Return a placement with the plan's local batch size, and with fewer ranks if the batch has too few groups."""
    groups = batch // context.unit
    nodes = max(1, round(plan.nodes * batch / plan.global_batch_size))
    if nodes == plan.nodes and nodes > 1:
        nodes = _fewer(nodes)
    workers = min(nodes * plan.ranks_per_node, groups)
    while groups % workers or (workers > plan.ranks_per_node and workers % plan.ranks_per_node):
        workers -= 1
    ranks = min(workers, plan.ranks_per_node)
    space = PlacementSpace(
        (1, nodes),
        (1, plan.ranks_per_node),
        (batch, batch),
        context.unit,
        min(context.largest_micro_batch, plan.micro_batch_size),
    )
    return space.placement(workers // ranks, ranks, batch // workers)


def _fewer(nodes: int) -> int:
    """Return an eighth of the nodes, but at least two: a single node does not use the network."""
    return max(2, nodes // 8)


def _variance(rate: Interval) -> float:
    return float(np.var(np.log(epoch_quantiles(rate, RATE_VALUES))))


def _spread(variance: float) -> float:
    """Return the ratio of the ends of the 90 % interval of a log-normal quantity."""
    return math.exp(2 * END_OF_INTERVAL * math.sqrt(max(variance, 0.0)))
