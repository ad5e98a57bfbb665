"""Plans that cannot be: the message names the rule and the value, and the plan that it offers can be made."""

from __future__ import annotations

import dataclasses

import pytest

from hpo.errors import PlanError
from hpo.planning.placement.candidates import HOUR, Situation
from hpo.planning.placement.feasibility import round_up, time_for
from hpo.planning.placement.optimise import Wish
from hpo.planning.placement.planner import Chosen, plan_placement, plan_untimed
from tests.planning.planned_situations import KnownLaw, a_machine, a_situation, memory_of


def granted(situation: Situation, wish: Wish, nearest: dict) -> Chosen:
    """The plan that an error offers, made as its message says: its options in place of those that were given."""
    hours = {f"{name.removesuffix('_hours')}_seconds": value * HOUR
             for name, value in nearest.items() if name.endswith("_hours")}
    given = {name: value for name, value in nearest.items() if not name.endswith("_hours")}
    return plan_placement(situation, dataclasses.replace(wish, workers=None, **given, **hours))


@pytest.mark.parametrize(("wish", "words"), [
    (Wish(nodes=7), "nodes must lie between 1 and 6, what six has, but got 7"),
    (Wish(nodes=99, global_batch_size=64), "nodes must lie between 1 and 6"),
    (Wish(ranks_per_node=4), "ranks per node must lie between 1 and 3"),
    (Wish(micro_batch_size=64), "a micro batch of 64 samples takes 2.49 GiB on an accelerator, but one of six has"),
    (Wish(micro_batch_size=64, global_batch_size=256, nodes=2), "a micro batch of 64"),
    (Wish(micro_batch_size=1), "at least one normalization batch of 2 samples, but got 1"),
    (Wish(global_batch_size=65), "batch size 65 cannot be cut into whole normalization batches of 2"),
    (Wish(nodes=5, global_batch_size=64), "has 64 samples per update, 5 nodes in whole normalization batches of 2"),
    (Wish(nodes=4, ranks_per_node=3, global_batch_size=64), "3 ranks per node"),
    (Wish(workers=7, global_batch_size=64), "7 workers"),
    (Wish(nodes=6, ranks_per_node=3, global_batch_size=8), "6 nodes"),
    (Wish(slot_seconds=1.0), "a slot of 1 s is too short: the plan needs"),
    (Wish(slot_seconds=30.0, nodes=1, ranks_per_node=1, global_batch_size=8), "a slot of 30 s is too short"),
    (Wish(deadline_seconds=5.0), "the deadline of 5 s asks for a chance of 90%"),
    (Wish(deadline_seconds=60.0, nodes=1), "the deadline of 1 min asks for"),
])
def test_the_nearest_possible_plan_is_possible(wish: Wish, words: str) -> None:
    situation = a_situation(memory=memory_of(10))
    with pytest.raises(PlanError, match="nearest possible plan: --nodes") as caught:
        plan_placement(situation, wish)
    assert words in str(caught.value)
    place = granted(situation, wish, caught.value.nearest).candidate.placement
    for name in ("nodes", "ranks_per_node", "global_batch_size", "micro_batch_size"):
        assert getattr(place, name) == caught.value.nearest[name]
    assert place.micro_batch_size <= 10 and place.nodes <= 6 and place.ranks_per_node <= 3


def test_what_can_be_kept_is_kept() -> None:
    situation = a_situation(memory=memory_of(10))
    with pytest.raises(PlanError) as batch:
        plan_placement(situation, Wish(nodes=5, global_batch_size=64))
    assert batch.value.nearest["global_batch_size"] == 64
    with pytest.raises(PlanError) as micro:
        plan_placement(situation, Wish(micro_batch_size=64, nodes=2, global_batch_size=120))
    assert (micro.value.nearest["nodes"], micro.value.nearest["global_batch_size"]) == (2, 120)
    with pytest.raises(PlanError) as nodes:
        plan_placement(situation, Wish(nodes=9, global_batch_size=72))
    assert (nodes.value.nearest["nodes"], nodes.value.nearest["global_batch_size"]) == (6, 72)


def test_a_slot_that_is_too_short_names_one_that_is_enough() -> None:
    situation = a_situation()
    with pytest.raises(PlanError) as caught:
        plan_placement(situation, Wish(slot_seconds=1.0))
    slot = caught.value.nearest["slot_hours"] * HOUR
    assert granted(situation, Wish(), caught.value.nearest).candidate.chance_within(slot) >= 0.5
    with pytest.raises(PlanError) as late:
        plan_placement(situation, Wish(deadline_seconds=5.0, chance=0.8))
    deadline = late.value.nearest["deadline_hours"] * HOUR
    assert granted(situation, Wish(chance=0.8), late.value.nearest).candidate.chance_within(deadline) >= 0.8


def test_a_deadline_that_divergence_forbids() -> None:
    situation = a_situation(law=KnownLaw(divergence=0.3))
    with pytest.raises(PlanError, match=r"no time is enough .* the risk that the training diverges is 30%"):
        plan_placement(situation, Wish(deadline_seconds=1e9, chance=0.9))


def test_a_normalization_batch_that_does_not_fit() -> None:
    with pytest.raises(PlanError, match=r"normalization batch of 8 samples .* GiB, for at most 5 \("):
        plan_placement(a_situation(unit=8, memory=memory_of(5)), Wish())


def test_energy_needs_the_power() -> None:
    situation = a_situation(machine=a_machine(power_watts=None))
    with pytest.raises(PlanError, match="does not say how many watts") as caught:
        plan_placement(situation, Wish(minimise="energy"))
    assert plan_placement(situation, Wish(**caught.value.nearest)).candidate.energy_kwh is None


def test_no_time_can_be_planned_with_where_nothing_tells_the_rate() -> None:
    situation = a_situation()
    for wish in (Wish(slot_seconds=3600.0), Wish(deadline_seconds=3600.0), Wish(minimise="accelerator_hours")):
        with pytest.raises(PlanError, match=r"--cost NAME\|FILE"):
            plan_untimed(situation, wish)
    assert plan_untimed(situation, Wish(global_batch_size=72)).workers == 18


def test_hours_that_are_told_are_rounded_up() -> None:
    for hours in (0.0123456, 1.23451, 99.9999, 1234.5):
        assert hours <= round_up(hours) <= 1.01 * hours
    one = a_situation().candidate(plan_untimed(a_situation(), Wish(nodes=2)))
    for chance in (0.05, 0.5, 0.9):
        needed = time_for(one, chance)
        assert needed is not None and one.chance_within(needed) >= chance > one.chance_within(needed * 0.99) - 0.01
