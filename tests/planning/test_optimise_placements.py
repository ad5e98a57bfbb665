"""The optimiser against an exhaustive search, and the placements against their rules."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from hpo.planning.placement.candidates import PlacementCandidate, PlanningContext
from hpo.planning.placement.optimise import (
    PlanConstraints,
    best_placement_candidate,
    choose_placement,
    placement_space,
)
from hpo.planning.placement.pareto import front_excerpt, pareto_front, pareto_knee
from hpo.planning.placement.placements import (
    Placement,
    PlacementSpace,
    memory_needs,
    placements_to_compare,
    steps_between,
)
from search_spaces.settings import TrainingSettings
from tests.planning.planning_contexts import (
    KnownLaw,
    a_context,
    a_machine,
    memory_of,
    random_context,
)
from trainers.cost import WorkloadCost


def everything(context: PlanningContext, batches: range, ranks: range) -> list[PlacementCandidate]:
    """Every placement that the rules allow, with every micro batch of whole normalization batches that fits."""
    found = []
    for nodes in range(1, context.machine.nodes + 1):
        for per_node in ranks:
            for local in range(context.unit, batches.stop, context.unit):
                if nodes * per_node * local in batches:
                    found += [
                        context.candidate(Placement(nodes, per_node, local, micro))
                        for micro in range(context.unit, local + 1, context.unit)
                        if micro <= context.largest_micro_batch
                    ]
    return found


def score(candidate: PlacementCandidate, objective: str, context: PlanningContext) -> float:
    """Mean seconds; times all accelerators of the nodes; times 300 W."""
    seconds = candidate.expected_seconds
    hours = seconds * candidate.placement.nodes * context.machine.accelerators_per_node / 3600
    return {"time": seconds, "accelerator_hours": hours, "energy": hours * 0.3}[objective]


@pytest.mark.medium
@pytest.mark.parametrize("objective", ["time", "accelerator_hours", "energy"])
@pytest.mark.parametrize("seed", range(4))
def test_the_choice_with_a_free_batch_is_the_best_of_everything(seed: int, objective: str) -> None:
    context = random_context(np.random.default_rng(seed))
    per_node = context.machine.accelerators_per_node
    found = choose_placement(context, PlanConstraints(minimise=objective))
    tried = everything(context, range(8, 257), range(per_node, per_node + 1))
    assert found is not None and len(tried) > 100
    assert score(found.best, objective, context) == pytest.approx(
        min(score(each, objective, context) for each in tried), rel=1e-9
    )


@pytest.mark.parametrize("objective", ["time", "accelerator_hours"])
@pytest.mark.parametrize("seed", range(4))
def test_the_choice_for_one_batch_is_the_best_of_everything(seed: int, objective: str) -> None:
    rng = np.random.default_rng(100 + seed)
    context = random_context(rng)
    batch = context.unit * int(rng.choice([12, 24, 36, 60]))
    found = choose_placement(context, PlanConstraints(minimise=objective, global_batch_size=batch))
    tried = everything(
        context, range(batch, batch + 1), range(1, context.machine.accelerators_per_node + 1)
    )
    assert found is not None and len(tried) >= 5
    assert score(found.best, objective, context) == pytest.approx(
        min(score(each, objective, context) for each in tried), rel=1e-9
    )


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(4))
def test_the_cheapest_that_meets_a_deadline(seed: int) -> None:
    context = random_context(np.random.default_rng(200 + seed))
    per_node = context.machine.accelerators_per_node
    tried = everything(context, range(8, 257), range(per_node, per_node + 1))
    fastest = min(each.seconds.high for each in tried)
    constraints = PlanConstraints(deadline_seconds=1.3 * fastest, chance=0.9)
    found = choose_placement(context, constraints)
    meeting = [each for each in tried if each.chance_within(1.3 * fastest) >= 0.9]
    assert found is not None and found.best.chance_within(1.3 * fastest) >= 0.9
    # the grid may miss the very cheapest of those that only just meet it
    assert found.best.expected_hours <= 1.02 * min(each.expected_hours for each in meeting)


def test_a_longer_slot_is_never_worse() -> None:
    context = a_context()
    slots = np.geomspace(10, 2000, 25)
    found = [
        choose_placement(context, PlanConstraints(minimise="accelerator_hours", slot_seconds=slot))
        for slot in slots
    ]
    best = [each.best for each in found if each]
    assert len(best) == len(slots)
    ending = [one for one, slot in zip(best, slots, strict=True) if one.chance_within(slot) >= 0.9]
    assert 3 < len(ending) < len(slots)
    hours = [one.expected_hours for one in ending]
    assert hours == sorted(hours, reverse=True) and hours[0] > hours[-1]
    chances = [best[0].chance_within(slot) for slot in slots]
    assert chances == sorted(chances) and chances[0] < 0.1 and chances[-1] > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_the_front_holds_all_that_nothing_dominates(seed: int) -> None:
    context = random_context(np.random.default_rng(300 + seed))
    found = choose_placement(context, PlanConstraints())
    assert found is not None
    members = pareto_front(found.candidates)

    def dominates(one: PlacementCandidate, other: PlacementCandidate) -> bool:
        first, second = (
            (one.expected_seconds, one.expected_hours),
            (other.expected_seconds, other.expected_hours),
        )
        return first != second and first[0] <= second[0] and first[1] <= second[1]

    assert not any(dominates(one, other) for one in found.candidates for other in members)
    values = {(each.expected_seconds, each.expected_hours) for each in members}
    for each in found.candidates:
        if (each.expected_seconds, each.expected_hours) not in values:
            assert any(dominates(member, each) for member in members)
    assert pareto_knee(members).expected_seconds <= 1.1 * members[0].expected_seconds
    shown = front_excerpt(members, [pareto_knee(members)], 4)
    assert (
        len(shown) <= 5
        and pareto_knee(members) in shown
        and {members[0].placement, members[-1].placement} <= {each.placement for each in shown}
    )


def test_the_likeliest_is_taken_where_none_ends_in_time() -> None:
    context = a_context()
    quick = choose_placement(context, PlanConstraints())
    assert quick is not None
    slot = quick.best.seconds.low
    found = choose_placement(
        context, PlanConstraints(slot_seconds=slot, minimise="accelerator_hours")
    )
    assert found is not None and 0 < found.best.chance_within(slot) < 0.9
    assert found.best.chance_within(slot) == max(
        each.chance_within(slot) for each in found.candidates
    )


@pytest.mark.parametrize("seed", range(5))
def test_placements_keep_the_rules(seed: int) -> None:
    rng = np.random.default_rng(400 + seed)
    context = random_context(rng)
    limits = placement_space(context, PlanConstraints(nodes=2))
    found = placements_to_compare(limits)
    assert found
    for each in found:
        assert each.nodes == 2 and each.ranks_per_node <= context.machine.accelerators_per_node
        assert each.global_batch_size == 2 * each.ranks_per_node * each.local_batch_size
        assert (
            each.local_batch_size % context.unit == 0 and each.micro_batch_size % context.unit == 0
        )
        assert each.micro_batch_size <= min(context.largest_micro_batch, each.local_batch_size)
        fewest = math.ceil(
            each.local_batch_size / (context.largest_micro_batch // context.unit * context.unit)
        )
        assert each.accumulation_steps == fewest
    assert (
        best_placement_candidate(
            [context.candidate(each) for each in found], PlanConstraints()
        ).placement
        in found
    )


def test_the_nodes_of_a_grid_hold_the_ends_and_are_at_most_a_quarter_apart() -> None:
    for low, high in ((1, 4608), (3, 3), (5, 17), (100, 9408)):
        steps = steps_between(low, high)
        assert steps[0] == low and steps[-1] == high and steps == sorted(set(steps))
        assert all(b <= max(a + 1, 1.26 * a) for a, b in itertools.pairwise(steps))


def test_memory_by_hand() -> None:
    cost = WorkloadCost(25_000_000, 161, 24e9, 80e6, 150e3)
    sgd = memory_needs(cost, TrainingSettings(optimizer="sgd"), 16e9)
    assert sgd.state == 25_000_000 * (4 + 4 + 4)  # weights, gradients, momentum
    assert sgd.largest_micro_batch == math.floor((16e9 - 1.5 * 2**30 - sgd.state) / 80e6)
    assert sgd.needed(sgd.largest_micro_batch) <= 16e9 < sgd.needed(sgd.largest_micro_batch + 1)
    lamb = memory_needs(
        cost,
        TrainingSettings(
            optimizer="lamb", precision="fp16", loss_scaling="dynamic", gradient_lag=1
        ),
        16e9,
    )
    assert lamb.state == 25_000_000 * (4 + 2 * 4 + 8)  # a lagged gradient is kept too
    assert lamb.per_sample == 40e6
    reduced = TrainingSettings(precision="bf16", reduced_weights=True)
    # bf16 weights and fp32 masters; gradients accumulate in fp32
    assert memory_needs(cost, reduced, 16e9).state == 25_000_000 * (2 + 4 + 4 + 4)
    assert memory_needs(cost, TrainingSettings(), 1e9).largest_micro_batch == 0


def test_fewer_ranks_than_accelerators_only_where_the_batch_asks_for_it() -> None:
    context = a_context(machine=a_machine(4, 6), unit=8)
    eight = choose_placement(context, PlanConstraints(global_batch_size=64))
    assert eight is not None and eight.best.placement.workers in (1, 2, 4, 8)
    free = choose_placement(context, PlanConstraints())
    assert free is not None and all(each.placement.ranks_per_node == 6 for each in free.candidates)
    few = choose_placement(a_context(machine=a_machine(1, 6), unit=64), PlanConstraints())
    assert few is not None and all(each.placement.workers <= 4 for each in few.candidates)


def test_more_nodes_than_the_evidence_fills_take_a_normalization_batch_each() -> None:
    context = a_context(machine=a_machine(200, 3), law=KnownLaw(supported=(8, 256)))
    found = choose_placement(context, PlanConstraints(nodes=200))
    assert found is not None and found.best.placement == Placement(200, 3, 2, 2)


def test_no_placement_where_the_memory_is_too_small() -> None:
    context = a_context(unit=4, memory=memory_of(3))
    assert choose_placement(context, PlanConstraints()) is None
    assert not PlacementSpace((1, 1), (1, 1), (4, 4), 4, 3).possible
    assert (
        choose_placement(dataclasses.replace(context, memory=memory_of(4)), PlanConstraints())
        is not None
    )
