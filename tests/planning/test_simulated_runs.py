"""Simulated runs against known results: extreme values, sums, and Daly's expected time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from benchmarks.simulated_machine.simulation import simulate, slowest_of
from hpo.planning.timing.failures import NodeFailures

pytestmark = pytest.mark.medium


@pytest.mark.parametrize("ranks", [1, 16, 1000])
def test_the_slowest_of_many_ranks_is_the_largest_of_as_many_draws(ranks: int) -> None:
    rng = np.random.default_rng(0)
    drawn = slowest_of(ranks, 0.05, 4000, rng)
    counted = 1 + 0.05 * rng.standard_normal((4000, ranks)).max(axis=1)
    assert drawn.mean() == pytest.approx(counted.mean(), abs=4 * counted.std() / math.sqrt(2000))
    assert drawn.std() == pytest.approx(counted.std(), rel=0.08)


def test_a_run_without_scatter_and_failures_is_a_sum() -> None:
    run = simulate(
        500,
        rank_seconds=0.2,
        other_seconds=0.05,
        ranks=64,
        nodes=16,
        coefficient_of_variation=0.0,
        failures=NodeFailures(),
        rng=np.random.default_rng(0),
    )
    assert run.seconds == pytest.approx(125.0)
    assert (run.failures, run.lost_updates) == (0, 0)


def test_its_mean_is_the_expected_time_with_failures() -> None:
    failures, nodes, updates = (
        NodeFailures(1500, restart_seconds=90, checkpoint_seconds=5),
        512,
        20_000,
    )
    rng = np.random.default_rng(3)
    runs = [
        simulate(
            updates,
            rank_seconds=0.4,
            other_seconds=0.1,
            ranks=nodes,
            nodes=nodes,
            coefficient_of_variation=0.0,
            failures=failures,
            rng=rng,
        )
        for _ in range(1500)
    ]
    seconds = np.array([run.seconds for run in runs])
    interval = round(failures.checkpoint_interval(nodes) / 0.5) * 0.5
    expected = failures.expected_seconds(0.5 * updates, nodes, interval)
    assert seconds.mean() == pytest.approx(expected, rel=0.03)
    mean_failures = np.mean([run.failures for run in runs])
    assert mean_failures == pytest.approx(seconds.mean() / failures.seconds_between(nodes), rel=0.1)
    assert min(run.lost_updates for run in runs) == 0 < max(run.lost_updates for run in runs)


def test_scatter_slows_every_update_by_the_extreme_value() -> None:
    run = simulate(
        20_000,
        rank_seconds=1.0,
        other_seconds=0.0,
        ranks=27_360,
        nodes=4560,
        coefficient_of_variation=0.02,
        failures=NodeFailures(),
        rng=np.random.default_rng(1),
    )
    # E max of N standard normals, N = 27,360, by numerical integration: 4.1
    maximum, _ = integrate.quad(
        lambda x: x * 27_360 * stats.norm.pdf(x) * math.exp(27_359 * stats.norm.logcdf(x)), 2, 8
    )
    assert run.seconds / 20_000 == pytest.approx(1 + 0.02 * maximum, rel=1e-3)
