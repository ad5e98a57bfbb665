"""The Pareto front of time, accelerator hours and epochs, against brute force and cases with a known answer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest

from hpo.planning.placement.optimise import PlanConstraints, placement_candidates
from hpo.planning.placement.tradeoffs import AIMS, BALANCED, nondominated, trade_offs
from tests.planning.planning_contexts import KnownLaw, a_context, a_machine, random_context
from trainers.job import Question, Target


@dataclass(frozen=True)
class WithRate(KnownLaw):
    """The law of settings with one learning rate."""

    rate: float = 0.1

    def settings(self, batch: int) -> dict[str, float]:
        return {"learning_rate": self.rate * batch}


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_is_what_no_other_point_dominates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    aims = np.round(rng.uniform(0, 1, (150, 3)), 1)  # with equals
    kept = nondominated(aims)

    def dominated(index: int) -> bool:
        better = (aims <= aims[index]).all(axis=1) & (aims < aims[index]).any(axis=1)
        return bool(better.any())

    assert {tuple(aims[index]) for index in kept} == {
        tuple(aims[index]) for index in range(150) if not dominated(index)
    }
    assert len({tuple(aims[index]) for index in kept}) == len(kept), "of equals one"


@pytest.mark.parametrize("seed", range(3))
def test_members_are_the_whole_front_over_batches_placements_and_settings(seed: int) -> None:
    context = random_context(np.random.default_rng(40 + seed))
    law = context.law
    assert isinstance(law, KnownLaw)
    laws = [
        WithRate(law.minimum, law.critical, law.sd, 0.05),
        WithRate(1.2 * law.minimum, law.critical, law.sd, 0.0, rate=0.05),
    ]
    found = trade_offs(context, PlanConstraints(), laws, most=10**6)

    def aims(each: object, epochs: float, risk: float) -> tuple[float, float, float]:
        return each.expected_seconds / (1 - risk), each.expected_hours / (1 - risk), epochs  # type: ignore[attr-defined]

    every = {
        aims(each, law.near(each.placement.global_batch_size).interval.median, law.divergence)
        for law in laws
        for each in placement_candidates(dataclasses.replace(context, law=law), PlanConstraints())
    }
    front = {
        one
        for one in every
        if not any(
            other != one and all(o <= t for o, t in zip(other, one, strict=True)) for other in every
        )
    }
    told = {
        aims(each.candidate, each.need.median, each.candidate.epochs.divergence) for each in found
    }
    assert told == front


def test_the_best_in_each_aim_are_marked_and_known() -> None:
    """On six nodes of three ranks: the smallest batch needs the fewest epochs, one rank costs the least."""
    context = a_context()
    found = trade_offs(context, PlanConstraints(), [WithRate()])
    assert len(found) == 12
    marks = {mark: each for each in found for mark in each.marks}
    assert set(marks) == {*AIMS, BALANCED}
    fewest = marks["fewest epochs"]
    assert fewest.global_batch_size == min(each.global_batch_size for each in found)
    assert fewest.need.median == pytest.approx(10 * (1 + fewest.global_batch_size / 64), rel=0.01)
    times = [each.candidate.expected_seconds for each in found]
    assert times == sorted(times) and found[0] is marks["fastest"]
    assert marks["cheapest"].candidate.expected_hours == min(
        each.candidate.expected_hours for each in found
    )
    row = fewest.to_dict()
    assert row["settings"] == {"learning_rate": pytest.approx(0.1 * fewest.global_batch_size)}
    assert row["workers"] == fewest.candidate.placement.workers
    assert row["epochs_to_target"]["median"] == fewest.need.median


def test_bold_settings_are_on_it_only_where_they_are_not_lost_too_often() -> None:
    """A rate twice as high that saves a tenth of the epochs, and is lost in every other run or never."""
    for risk, there in ((0.5, False), (0.0, True)):
        bold = WithRate(9.0, divergence=risk, rate=0.2)
        found = trade_offs(a_context(), PlanConstraints(), [WithRate(), bold])
        fastest, *_ = found
        assert (fastest.settings["learning_rate"] > 0.15 * fastest.global_batch_size) is there


def test_of_a_fixed_budget_the_metric_is_the_third_aim() -> None:
    """What is lacking is 0.1 (1 + B / 64) of an accuracy, as odds; the time is that of 10 epochs."""
    question = Question(Target.best("top1", higher_is_better=True), 10.0)
    context = a_context(law=KnownLaw(10.0, 1e9, 0.01))
    found = trade_offs(context, PlanConstraints(), [WithRate(0.1)], question)
    best = next(each for each in found if "best top1" in each.marks)
    assert best.metric == "top1"
    assert best.need.median == pytest.approx(1 / (1 + 0.1 * (1 + 8 / 64)), abs=0.01)
    assert best.need.low < best.need.median < best.need.high
    assert best.to_dict()["best"]["median"] == best.need.median
    worst = max(found, key=lambda each: each.global_batch_size)
    assert worst.need.median < best.need.median


def test_nodes_that_were_asked_for_are_kept_and_unsupported_batches_left_out() -> None:
    found = trade_offs(
        a_context(machine=a_machine(6)), PlanConstraints(nodes=2), [WithRate(supported=(16, 64))]
    )
    assert {each.nodes for each in found} == {2}
    assert all(16 <= each.global_batch_size <= 64 for each in found)
    question = Question(Target.best("top1", higher_is_better=True), 10.0)
    far = WithRate(supported=(1000, 2000))
    assert not trade_offs(a_context(), PlanConstraints(), [far], question)
