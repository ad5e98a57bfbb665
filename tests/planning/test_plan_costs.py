"""The cost of a candidate, against sums by hand and against random draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.placement.bottlenecks import limited_by, plan_sensitivity, time_shares
from hpo.planning.placement.candidates import PlacementCandidate
from hpo.planning.placement.epochs import IntervalEpochsLaw, PosteriorEpochsLaw, epoch_quantiles
from hpo.planning.placement.optimise import PlanConstraints, choose_placement
from hpo.planning.placement.placements import Placement
from hpo.planning.placement.rates import (
    LEAST_EFFICIENCY,
    SweepRates,
    ThroughputRate,
    seconds_to_target,
)
from hpo.planning.timing.failures import NodeFailures
from tests.planning.planning_contexts import (
    END,
    KnownLaw,
    KnownRates,
    a_context,
    a_machine,
    memory_of,
)

pytestmark = pytest.mark.fit


@dataclass(frozen=True)
class Evaluating:
    """Rates with evaluations that take so many seconds each."""

    rates: KnownRates
    seconds: float

    def __call__(self, placement: Placement) -> ThroughputRate:
        return replace(self.rates(placement), evaluation_seconds=self.seconds)


PLACE = Placement(nodes=4, ranks_per_node=3, local_batch_size=6, micro_batch_size=6)


def candidate(**parts: object) -> PlacementCandidate:
    return a_context(**parts).candidate(PLACE)  # type: ignore[arg-type]


def test_the_time_is_that_of_drawn_epochs_and_rates() -> None:
    law, rates = KnownLaw(sd=0.4, divergence=0.1), KnownRates(sd=0.2)
    one = candidate(law=law, rates=rates)
    rng = np.random.default_rng(1)
    epochs = 10 * (1 + 72 / 64) * np.exp(0.4 * rng.standard_normal(400_000))
    seconds = (
        1000 * epochs / (72 / rates.seconds(PLACE) * np.exp(0.2 * rng.standard_normal(400_000)))
    )
    ends = one.seconds
    for found, level in ((ends.median, 0.5), (ends.low, 0.05), (ends.high, 0.95)):
        assert found == pytest.approx(np.quantile(seconds, level), rel=0.02)
    stays = rng.uniform(size=400_000) > 0.1
    for slot in np.quantile(seconds, [0.02, 0.3, 0.7, 0.98]):
        assert one.chance_within(slot) == pytest.approx(
            (stays & (seconds <= slot)).mean(), abs=0.01
        )
    given_up = np.minimum(epochs, 1.5 * np.quantile(epochs, 0.95)) * seconds / epochs
    assert one.expected_seconds == pytest.approx(given_up.mean(), rel=0.01)


def test_failing_nodes_stretch_time_hours_and_the_chance() -> None:
    failures = NodeFailures(node_hours=2.0, restart_seconds=60, checkpoint_seconds=5)
    calm, failing = candidate(), candidate(failures=failures)
    factor = failures.expected_seconds(1e6, PLACE.nodes) / 1e6
    assert factor > 1.1
    assert failing.seconds.median == pytest.approx(factor * calm.seconds.median)
    assert failing.expected_seconds == pytest.approx(factor * calm.expected_seconds)
    assert failing.accelerator_hours.high == pytest.approx(factor * calm.accelerator_hours.high)
    assert failing.chance_within(calm.seconds.high) < calm.chance_within(calm.seconds.high)


def test_checkpoints_wait_for_the_next_evaluation() -> None:
    failures = NodeFailures(node_hours=2.0, restart_seconds=60, checkpoint_seconds=5)
    context = replace(
        a_context(failures=failures), evaluations_per_epoch=1, saves_at_evaluations=True
    )
    epoch = 1000 / context.rates(PLACE).samples_per_second.median
    often = replace(context, evaluations_per_epoch=20).candidate(PLACE)
    seldom = replace(context, evaluations_per_epoch=0.01).candidate(PLACE)
    best = failures.checkpoint_interval(PLACE.nodes)
    assert best <= often.saving_seconds < best + epoch / 20 < 100 * epoch
    assert seldom.saving_seconds == pytest.approx(100 * epoch)
    assert seldom.slowdown == pytest.approx(failures.slowdown(PLACE.nodes, 100 * epoch))
    assert seldom.slowdown > often.slowdown >= failures.slowdown(PLACE.nodes)
    own = replace(context, saves_at_evaluations=False).candidate(PLACE)
    assert own.saving_seconds == best


def test_hours_and_energy_by_hand() -> None:
    one = candidate(law=KnownLaw(sd=1e-6), rates=KnownRates(sd=1e-6))
    step = 6 * 0.01 + 0.02 + 0.03 * math.log2(12)
    seconds = 10 * (1 + 72 / 64) * 1000 / 72 * step
    assert one.seconds.median == pytest.approx(seconds, rel=1e-4)
    assert one.expected_seconds == pytest.approx(seconds, rel=1e-4)
    assert one.accelerator_hours.median == pytest.approx(
        12 * seconds / 3600, rel=1e-4
    )  # 4 nodes x 3
    assert one.energy_kwh is not None and one.energy_kwh.median == pytest.approx(
        12 * seconds / 3600 * 0.3, rel=1e-4
    )
    idle = a_context(
        machine=a_machine(6, 5), law=KnownLaw(sd=1e-6), rates=KnownRates(sd=1e-6)
    ).candidate(PLACE)
    assert idle.accelerator_hours.median == pytest.approx(
        20 * seconds / 3600, rel=1e-4
    )  # all of each node
    assert candidate(machine=a_machine(power_watts=None)).energy_kwh is None


def test_quantiles_have_the_interval_that_they_were_made_from() -> None:
    values = epoch_quantiles(Interval(10.0, 4.0, 15.0), 2000)
    assert np.quantile(values, [0.5, 0.05, 0.95]) == pytest.approx([10.0, 4.0, 15.0], rel=0.01)
    assert (np.diff(values) >= 0).all()


def test_the_shares_of_the_time_by_hand() -> None:
    context = a_context(
        law=KnownLaw(sd=1e-6), rates=KnownRates(sample=0.01, each_pass=0.02, wait=0.03)
    )
    one = context.candidate(PLACE)
    parts = time_shares(context, one)
    step, wait = KnownRates().seconds(PLACE), 0.03 * math.log2(12)
    needed = (1 + 8 / 64) / (
        1 + 72 / 64
    )  # epochs of the smallest batch with evidence, over those here
    assert parts["statistics"] == pytest.approx(1 - needed, rel=1e-4)
    assert parts["network"] == pytest.approx(needed * wait / step, rel=1e-4)
    assert sum(parts.values()) == pytest.approx(1)
    assert limited_by(parts, one.rate) == "statistics"


def test_evaluations_by_hand() -> None:
    """14 updates of 72 samples are an epoch of 1,000; with four evaluations of 5 s each it takes 20 s longer."""
    rates = KnownRates(sd=1e-6)
    without = a_context(law=KnownLaw(sd=1e-6), rates=rates)
    context = replace(without, rates=Evaluating(rates, 5.0), evaluations_per_epoch=4)
    epoch = 1000 / 72 * rates.seconds(PLACE)
    one, calm = context.candidate(PLACE), without.candidate(PLACE)
    assert one.evaluating == pytest.approx((epoch + 20) / epoch, rel=1e-4)
    assert one.seconds.median == pytest.approx(10 * (1 + 72 / 64) * (epoch + 20), rel=1e-4)
    assert one.expected_seconds / calm.expected_seconds == pytest.approx(one.evaluating)
    parts = time_shares(context, one)
    assert sum(parts.values()) == pytest.approx(1)
    assert parts["evaluation"] == pytest.approx(
        (1 - parts["statistics"]) * 20 / (epoch + 20), rel=1e-4
    )
    # at most one after each update, of which there are 1,000 / 72 in an epoch
    often = replace(context, evaluations_per_epoch=1000).candidate(PLACE)
    assert often.evaluating == pytest.approx(1 + 1000 / 72 * 5 / epoch, rel=1e-4)
    assert calm.evaluating == 1 and "evaluation" not in time_shares(without, calm)


def test_input_limits_a_plan_though_the_stall_is_the_smaller_part_of_a_step() -> None:
    parts = {"statistics": 0.1, "compute": 0.6, "input": 0.3}
    rate = KnownRates()(PLACE)
    assert limited_by(parts, rate) == "compute"
    assert limited_by(parts, replace(rate, limited_by="input")) == "input"
    mostly = {"statistics": 0.8, "compute": 0.15, "input": 0.05}
    assert limited_by(mostly, replace(rate, limited_by="input")) == "statistics"


def test_memory_limits_where_many_small_passes_cost_more_than_the_samples() -> None:
    context = a_context(
        law=KnownLaw(critical=1e6),
        rates=KnownRates(sample=0.001, each_pass=0.5, wait=1e-6),
        memory=memory_of(2),
    )
    one = context.candidate(Placement(4, 3, 12, 2))
    parts = time_shares(context, one)
    saved = 5 * 0.5 / KnownRates(0.001, 0.5, 1e-6).seconds(one.placement)
    assert parts["memory"] == pytest.approx(saved * (1 - parts["statistics"]), rel=1e-3)
    assert limited_by(parts, one.rate) == "memory" and sum(parts.values()) == pytest.approx(1)


def test_sensitivity_compares_with_the_best_of_other_node_counts() -> None:
    context = a_context()
    constraints = PlanConstraints(nodes=2, global_batch_size=72)
    found = choose_placement(context, constraints)
    assert found is not None
    changes = {each.what: each for each in plan_sensitivity(context, constraints, found.best)}
    assert set(changes) == {"half the nodes", "twice the nodes"}
    for what, nodes in (("half the nodes", 1), ("twice the nodes", 4)):
        other = choose_placement(context, PlanConstraints(nodes=nodes, global_batch_size=72))
        assert other is not None
        assert changes[what].time == pytest.approx(
            other.best.expected_seconds / found.best.expected_seconds
        )


def test_the_law_of_one_forecast_keeps_its_interval() -> None:
    law = IntervalEpochsLaw(64, Interval(20.0, 15.0, 30.0), 0.05)
    ends = law.at(64).interval
    assert (ends.median, ends.low, ends.high) == pytest.approx((20.0, 15.0, 30.0), rel=0.01)
    assert law.supported == (64, 64) and law.at(64).divergence == 0.05


def test_the_law_of_a_posterior_is_the_forecast_of_one_training() -> None:
    from hpo.extrapolation.forecast import forecast
    from hpo.extrapolation.inference.posterior import fit
    from tests.extrapolation.ladders import Truth, sweep

    posterior = fit(sweep(Truth(), np.random.default_rng(0)), rng=np.random.default_rng(0))
    law = PosteriorEpochsLaw(posterior, particles=10**6)
    made = forecast(posterior, 512)
    epochs = law.at(512)
    assert law.supported == (16, 16 * 128) and law.swept == 128
    assert epochs.interval.median == pytest.approx(made.epochs_to_target.median, rel=0.02)
    one, mean = epochs.interval, made.epochs_to_target
    assert (
        one.high / one.low > mean.high / mean.low
    )  # one training scatters more than a mean of five
    for chance in made.chances:
        within = float((epochs.values <= chance.epochs).mean()) * (1 - epochs.divergence)
        assert within == pytest.approx(chance.probability, abs=0.02)
    assert law.near(256).values == pytest.approx(law.at(256).values)
    assert law.near(360).interval.median == pytest.approx(law.at(360).interval.median, rel=0.03)
    few = PosteriorEpochsLaw(posterior, particles=300)
    assert few.at(512).interval.median == pytest.approx(epochs.interval.median, rel=0.05)
    whole = float(np.std(np.log(epochs.values)))
    assert (
        law.spread_after(512, 512)
        < law.spread_after(256, 512)
        < law.spread_after(64, 512)
        <= 1.05 * whole
    )


def test_the_rate_of_this_machine_is_what_the_sweep_did() -> None:
    rates = SweepRates(40.0)
    alone = rates(Placement(1, 1, 8, 8)).samples_per_second
    both = rates(Placement(1, 2, 4, 4)).samples_per_second
    assert (alone.median, alone.low, alone.high) == (40.0, 40.0, 40.0)
    assert (both.low, both.high) == (
        80.0 * LEAST_EFFICIENCY,
        80.0,
    ) and both.low < both.median < both.high
    assert rates(Placement(1, 1, 8, 8)).limited_by == ""
    seconds = seconds_to_target(Interval(10.0, 8.0, 15.0), 100, both)
    assert (seconds.low, seconds.high) == pytest.approx((8 * 100 / 80, 15 * 100 / 20))


def test_what_the_sweep_spent_on_decoding_limits_a_plan_of_this_machine() -> None:
    """40 samples a second of 20 ms of a core each take 80 % of one core, and 40 % of two."""
    for cores, share, limit in ((1, 0.8, "input"), (2, 0.4, "")):
        rate = SweepRates(40.0, host_seconds=0.02, cores=cores)(Placement(1, 2, 4, 4))
        assert rate.shares == pytest.approx({"input": share, "compute": 1 - share})
        assert rate.limited_by == limit
    assert SweepRates(40.0, 1.0).input_share == 1  # measured on a busier machine


def test_the_end_of_an_interval_is_where_a_normal_has_it() -> None:
    assert pytest.approx(0.95, abs=1e-6) == 0.5 * (1 + math.erf(END / math.sqrt(2)))
