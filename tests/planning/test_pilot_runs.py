"""Pilot runs check the least certain assumption, on fewer nodes, and say what would overturn the plan."""

from __future__ import annotations

import math

import pytest

from hpo.planning.placement.pilot_run import LEAST_SHARE, STEPS, pilot_runs
from hpo.planning.placement.placements import Placement
from tests.planning.planning_contexts import END, KnownLaw, KnownRates, a_context, a_machine

MACHINE = a_machine(64, 4)
PLACE = Placement(nodes=32, ranks_per_node=4, local_batch_size=4, micro_batch_size=4)


def runs(law: KnownLaw, rates: KnownRates, place: Placement = PLACE) -> list:
    context = a_context(machine=MACHINE, law=law, rates=rates)
    return pilot_runs(context, context.candidate(place))


def test_the_shares_are_those_of_the_variance_of_the_log_time() -> None:
    found = runs(KnownLaw(sd=0.3), KnownRates(sd=0.2, node_sd=0.1))
    share = {run.checks: run.share for run in found}
    whole = 0.3**2 + 0.2**2
    assert share["epochs to target"] == pytest.approx(0.3**2 / whole, rel=0.03)
    assert share["throughput of one node"] == pytest.approx(0.1**2 / whole, rel=0.03)
    assert share["throughput at scale"] == pytest.approx((0.2**2 - 0.1**2) / whole, rel=0.03)
    assert [run.share for run in found] == sorted(share.values(), reverse=True)
    assert sum(share.values()) == pytest.approx(1)


def test_the_riskiest_assumption_comes_first_and_small_ones_not_at_all() -> None:
    assert [run.checks for run in runs(KnownLaw(sd=0.5), KnownRates(sd=0.05, node_sd=0.05))] == [
        "epochs to target"
    ]
    risky = runs(KnownLaw(sd=0.05), KnownRates(sd=0.5, node_sd=0.05))
    assert risky[0].checks == "throughput at scale" and all(
        run.share >= LEAST_SHARE for run in risky
    )


def test_a_throughput_run_expects_what_the_rates_say_on_fewer_nodes() -> None:
    rates = KnownRates(sd=0.3, node_sd=0.1)
    run = runs(KnownLaw(sd=0.1), rates)[0]
    assert run.checks == "throughput at scale" and run.placement.nodes == 4 and run.steps == STEPS
    assert run.placement.local_batch_size == PLACE.local_batch_size
    rate = 4 * 4 * 4 / rates.seconds(run.placement)
    assert run.expected.median == pytest.approx(rate)
    assert run.overturned_by == f"fewer than {run.expected.low:,.4g} samples a second"
    assert run.accelerator_hours == pytest.approx(16 * STEPS * 64 / rate / 3600)
    assert run.spread_after == pytest.approx(
        math.exp(2 * END * math.sqrt(0.1**2 + 0.1**2)), rel=0.05
    )


def test_an_epochs_run_trains_a_batch_between_the_sweep_and_the_plan() -> None:
    law = KnownLaw(sd=0.4, swept=32)
    run = runs(law, KnownRates(sd=0.05, node_sd=0.05))[0]
    batch = run.placement.global_batch_size
    assert 32 < batch < PLACE.global_batch_size and run.placement.nodes < PLACE.nodes
    median = 10 * (1 + batch / 64)
    assert run.expected.median == pytest.approx(median, rel=0.01)
    assert run.expected.high == pytest.approx(median * math.exp(END * 0.4), rel=0.02)
    assert run.steps == math.ceil(run.expected.median * 1000 / batch)
    assert run.overturned_by == f"more than {run.expected.high:.4g} epochs"
    left = 0.4 * math.log2(PLACE.global_batch_size / batch) / 8
    assert run.spread_after == pytest.approx(math.exp(2 * END * math.hypot(left, 0.05)), rel=0.05)


@pytest.mark.parametrize(
    "place",
    [
        Placement(1, 1, 48, 8),
        Placement(1, 4, 8, 8),
        Placement(2, 3, 10, 2),
        Placement(64, 4, 2, 2),
        Placement(5, 2, 6, 6),
    ],
)
def test_every_pilot_run_is_a_placement_that_keeps_the_rules(place: Placement) -> None:
    for run in runs(KnownLaw(sd=0.3, swept=8), KnownRates(sd=0.2, node_sd=0.1), place):
        tried = run.placement
        assert 1 <= tried.nodes <= place.nodes and 1 <= tried.ranks_per_node <= place.ranks_per_node
        assert tried.local_batch_size % 2 == 0 and tried.micro_batch_size % 2 == 0
        assert run.expected.low <= run.expected.median <= run.expected.high
        assert run.steps >= 1 and run.accelerator_hours > 0


def test_one_node_has_no_network_to_check() -> None:
    found = runs(KnownLaw(sd=0.3), KnownRates(sd=0.2, node_sd=0.2), Placement(1, 4, 8, 8))
    assert {run.checks for run in found} == {"epochs to target", "throughput of one node"}
