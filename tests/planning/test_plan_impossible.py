"""Impossible plans: the message names the rule and the value, and the plan that it suggests is possible."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hpo.errors import PlanError
from hpo.planning.placement.candidates import HOUR, PlanningContext
from hpo.planning.placement.feasibility import check_layout, round_up, time_for
from hpo.planning.placement.optimise import PlanConstraints, PlanSelection
from hpo.planning.placement.planner import plan_placement, plan_untimed
from hpo.planning.plan import check_plan_workers
from tests.planning.launch_samples import small_job
from tests.planning.planning_contexts import KnownLaw, a_context, a_machine, memory_of


def granted(context: PlanningContext, constraints: PlanConstraints, nearest: dict) -> PlanSelection:
    """The plan that an error offers, made as its message says: its options in place of those that were given."""
    hours = {
        f"{name.removesuffix('_hours')}_seconds": value * HOUR
        for name, value in nearest.items()
        if name.endswith("_hours")
    }
    given = {name: value for name, value in nearest.items() if not name.endswith("_hours")}
    return plan_placement(context, dataclasses.replace(constraints, workers=None, **given, **hours))


@pytest.mark.parametrize(
    ("factors", "unit", "words", "nearest"),
    [
        ((1.5,), 1, "sizes 32, 48, which cannot all be split over 32 .* divides all is 16", 16),
        ((0.125, 2.0), 8, "sizes 32, 4, 64, .* change the batch schedule", None),
        ((1.03,), 1, "batch_factors must give whole global batch sizes", None),
    ],
)
def test_workers_split_every_size_that_the_batch_grows_to(
    tmp_path: Path, factors: tuple[float, ...], unit: int, words: str, nearest: int | None
) -> None:
    job = small_job(tmp_path)
    settings = dataclasses.replace(
        job.settings,
        batch_control="piecewise",
        batch_milestones=tuple(range(1, len(factors) + 1)),
        batch_factors=factors,
        normalization_batch_size=unit,
    )
    machine, workers = a_machine(per_node=32), 32 // unit
    grows = dataclasses.replace(job, settings=settings)
    with pytest.raises(PlanError, match=words) as error:
        check_plan_workers(grows, workers, machine, 1)
    if nearest:
        assert error.value.nearest == {"workers": nearest}
        check_plan_workers(grows, nearest, machine, 1)
    late = dataclasses.replace(
        settings, batch_milestones=tuple(m + 99 for m in range(len(factors)))
    )
    check_plan_workers(dataclasses.replace(job, settings=late), workers, machine, 1)


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        (PlanConstraints(nodes=7), "nodes must be between 1 and 6, the nodes of six, but got 7"),
        (PlanConstraints(nodes=99, global_batch_size=64), "nodes must be between 1 and 6"),
        (PlanConstraints(nodes=99, ranks_per_node=5), "nodes must be between 1 and 6"),
        (PlanConstraints(ranks_per_node=4), "ranks per node must be between 1 and 3"),
        (
            PlanConstraints(micro_batch_size=64),
            "a micro batch of 64 samples takes 2.49 GiB on an accelerator, but one of six has",
        ),
        (
            PlanConstraints(micro_batch_size=64, global_batch_size=256, nodes=2),
            "a micro batch of 64",
        ),
        (
            PlanConstraints(micro_batch_size=1),
            "at least one normalization batch of 2 samples, but got 1",
        ),
        (
            PlanConstraints(global_batch_size=65),
            "batch size 65 cannot be split into whole normalization batches of 2",
        ),
        (
            PlanConstraints(nodes=5, global_batch_size=64),
            "has 64 samples per update, 5 nodes in whole normalization batches of 2",
        ),
        (PlanConstraints(nodes=4, ranks_per_node=3, global_batch_size=64), "3 ranks per node"),
        (PlanConstraints(workers=7, global_batch_size=64), "7 workers"),
        (PlanConstraints(nodes=6, ranks_per_node=3, global_batch_size=8), "6 nodes"),
        (PlanConstraints(slot_seconds=1.0), "a slot of 1 s is too short: the plan needs"),
        (
            PlanConstraints(slot_seconds=30.0, nodes=1, ranks_per_node=1, global_batch_size=8),
            "a slot of 30 s is too short",
        ),
        (
            PlanConstraints(deadline_seconds=5.0),
            "the deadline of 5 s must be met with a chance of 90%",
        ),
        (PlanConstraints(deadline_seconds=60.0, nodes=1), "the deadline of 1 min must be met"),
    ],
)
def test_the_nearest_possible_plan_is_possible(constraints: PlanConstraints, words: str) -> None:
    context = a_context(memory=memory_of(10))
    with pytest.raises(PlanError, match="nearest possible plan: --nodes") as caught:
        plan_placement(context, constraints)
    assert words in str(caught.value)
    place = granted(context, constraints, caught.value.nearest).best.placement
    for name in ("nodes", "ranks_per_node", "global_batch_size", "micro_batch_size"):
        assert getattr(place, name) == caught.value.nearest[name]
    assert place.micro_batch_size <= 10 and place.nodes <= 6 and place.ranks_per_node <= 3


def test_what_can_be_kept_is_kept() -> None:
    context = a_context(memory=memory_of(10))
    with pytest.raises(PlanError) as batch:
        plan_placement(context, PlanConstraints(nodes=5, global_batch_size=64))
    assert batch.value.nearest["global_batch_size"] == 64
    with pytest.raises(PlanError) as micro:
        plan_placement(
            context, PlanConstraints(micro_batch_size=64, nodes=2, global_batch_size=120)
        )
    assert (micro.value.nearest["nodes"], micro.value.nearest["global_batch_size"]) == (2, 120)
    with pytest.raises(PlanError) as nodes:
        plan_placement(context, PlanConstraints(nodes=9, global_batch_size=72))
    assert (nodes.value.nearest["nodes"], nodes.value.nearest["global_batch_size"]) == (6, 72)


def test_a_layout_that_is_offered_fits_in_memory(tmp_path: Path) -> None:
    memory, machine = memory_of(10), a_machine()
    with pytest.raises(PlanError, match="5 nodes") as caught:
        check_layout(small_job(tmp_path), machine, 5, None, memory)
    assert caught.value.nearest["micro_batch_size"] <= 10


def test_a_slot_that_is_too_short_names_one_that_is_enough() -> None:
    context = a_context()
    with pytest.raises(PlanError) as caught:
        plan_placement(context, PlanConstraints(slot_seconds=1.0))
    slot = caught.value.nearest["slot_hours"] * HOUR
    assert granted(context, PlanConstraints(), caught.value.nearest).best.chance_within(slot) >= 0.5
    with pytest.raises(PlanError) as late:
        plan_placement(context, PlanConstraints(deadline_seconds=5.0, chance=0.8))
    deadline = late.value.nearest["deadline_hours"] * HOUR
    assert (
        granted(context, PlanConstraints(chance=0.8), late.value.nearest).best.chance_within(
            deadline
        )
        >= 0.8
    )


def test_a_deadline_that_divergence_forbids() -> None:
    context = a_context(law=KnownLaw(divergence=0.3))
    with pytest.raises(
        PlanError,
        match=r"no amount of time gives that chance: the risk that the training "
        r"diverges is 30%",
    ):
        plan_placement(context, PlanConstraints(deadline_seconds=1e9, chance=0.9))


def test_a_normalization_batch_that_does_not_fit() -> None:
    with pytest.raises(
        PlanError, match=r"normalization batch of 8 samples .* GiB, for at most 5 \("
    ):
        plan_placement(a_context(unit=8, memory=memory_of(5)), PlanConstraints())


def test_energy_needs_the_power() -> None:
    context = a_context(machine=a_machine(power_watts=None))
    with pytest.raises(
        PlanError, match="does not give the power of an accelerator in watts"
    ) as caught:
        plan_placement(context, PlanConstraints(minimise="energy"))
    assert plan_placement(context, PlanConstraints(**caught.value.nearest)).best.energy_kwh is None


def test_no_time_can_be_planned_with_where_nothing_tells_the_rate() -> None:
    context = a_context()
    for constraints in (
        PlanConstraints(slot_seconds=3600.0),
        PlanConstraints(deadline_seconds=3600.0),
        PlanConstraints(minimise="accelerator_hours"),
    ):
        with pytest.raises(PlanError, match=r"--cost NAME\|FILE"):
            plan_untimed(context, constraints)
    assert plan_untimed(context, PlanConstraints(global_batch_size=72)).workers == 18


def test_hours_that_are_told_are_rounded_up() -> None:
    for hours in (0.0123456, 1.23451, 99.9999, 1234.5):
        assert hours <= round_up(hours) <= 1.01 * hours
    one = a_context().candidate(plan_untimed(a_context(), PlanConstraints(nodes=2)))
    for chance in (0.05, 0.5, 0.9):
        needed = time_for(one, chance)
        assert (
            needed is not None
            and one.chance_within(needed) >= chance > one.chance_within(needed * 0.99) - 0.01
        )
