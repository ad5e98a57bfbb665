"""Failures of nodes: the published formulas, their limits, and an independent simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpo.errors import PlanError
from hpo.planning.placement.optimise import PlanConstraints
from hpo.planning.placement.planner import plan_placement
from hpo.planning.timing.failures import NodeFailures
from tests.planning.planning_contexts import KnownLaw, a_context, a_machine


def one_run(
    training: float,
    interval: float,
    failures: NodeFailures,
    between: float,
    rng: np.random.Generator,
) -> float:
    """A run by the clock: the next failure is drawn once, and again after each."""
    clock, done, following = 0.0, 0.0, rng.exponential(between)
    while done < training:
        stretch = min(interval, training - done)
        end = clock + stretch + failures.checkpoint_seconds
        if following >= end:
            clock, done = end, done + stretch
            continue
        clock = following
        while True:
            following = clock + rng.exponential(between)
            if following >= clock + failures.restart_seconds:
                clock += failures.restart_seconds
                break
            clock = following
    return clock


@pytest.mark.parametrize(
    ("node_hours", "interval"), [(2000.0, 900.0), (500.0, 300.0), (200.0, 600.0)]
)
def test_expected_seconds_agree_with_a_simulation_by_the_clock(
    node_hours: float, interval: float
) -> None:
    failures, nodes, training = (
        NodeFailures(node_hours, restart_seconds=120, checkpoint_seconds=20),
        512,
        7200.0,
    )
    rng = np.random.default_rng(1)
    between = failures.seconds_between(nodes)
    simulated = np.array([one_run(training, interval, failures, between, rng) for _ in range(3000)])
    error = simulated.std() / math.sqrt(len(simulated))
    # the last checkpoint ends the run in the simulation; Daly's formula counts all of them, too
    assert failures.expected_seconds(training, nodes, interval) == pytest.approx(
        simulated.mean(), abs=4 * error
    )


def test_the_interval_is_the_best_of_all() -> None:
    failures, nodes, day = (
        NodeFailures(20_000, restart_seconds=300, checkpoint_seconds=30),
        4560,
        86_400.0,
    )
    best = failures.checkpoint_interval(nodes)
    assert best == pytest.approx(
        math.sqrt(2 * 30 * failures.seconds_between(nodes)) - 30, rel=0.02
    )  # Young 1974
    grid = np.geomspace(best / 5, best * 5, 401)
    found = grid[np.argmin([failures.expected_seconds(day, nodes, interval) for interval in grid])]
    assert best == pytest.approx(found, rel=0.02)


def test_limits() -> None:
    never = NodeFailures(checkpoint_seconds=10)
    assert never.expected_seconds(5000, 1000) == 5000
    assert never.expected_seconds(5000, 1000, interval=1000) == 5050
    assert never.checkpoint_interval(1000) == math.inf
    rare = NodeFailures(1e9, checkpoint_seconds=10)
    assert rare.expected_seconds(5000, 1, interval=1000) == pytest.approx(5050, rel=1e-4)
    assert NodeFailures(0.001).expected_seconds(1e6, 4560, interval=1e5) == math.inf


def test_more_nodes_and_worse_nodes_take_longer() -> None:
    times = [
        NodeFailures(hours).expected_seconds(3600, nodes)
        for hours, nodes in ((50_000, 100), (50_000, 1000), (50_000, 4560), (5_000, 4560))
    ]
    assert times == sorted(times)
    assert len(set(times)) == 4


def test_the_slowdown_of_a_long_run_is_that_of_its_stretches() -> None:
    failures = NodeFailures(5000, restart_seconds=120, checkpoint_seconds=20)
    day = failures.expected_seconds(864_000, 1000)
    assert failures.slowdown(1000) == pytest.approx(day / 864_000)
    assert failures.slowdown(1000) > failures.slowdown(10) > 1
    assert NodeFailures().slowdown(1000) == 1


def test_a_run_saves_only_at_its_evaluations() -> None:
    failures = NodeFailures(5000, restart_seconds=120, checkpoint_seconds=20)
    best = failures.checkpoint_interval(1000)
    assert failures.saving_interval(1000, 0.0) == best
    assert failures.saving_interval(1000, 3 * best) == 3 * best
    assert failures.saving_interval(1000, 0.4 * best) == pytest.approx(1.2 * best)
    assert NodeFailures().saving_interval(1000, 60.0) == math.inf
    late = failures.slowdown(1000, 3 * best)
    assert late == pytest.approx(failures.expected_seconds(864_000, 1000, 3 * best) / 864_000)
    assert late > failures.slowdown(1000)


@pytest.mark.filterwarnings("error")
def test_a_run_that_always_fails_takes_forever() -> None:
    failures = NodeFailures(1.0)  # a failure every 0.37 s on 9,856 nodes, and a restart takes 300 s
    assert failures.expected_seconds(3600, 9856) == math.inf
    assert failures.slowdown(9856) == math.inf
    machine = a_machine(9856)
    context = a_context(machine=machine, law=KnownLaw(supported=(8, 2**17)), failures=failures)
    best = plan_placement(context, PlanConstraints(nodes=9856, global_batch_size=2 * 9856)).best
    assert best.seconds.low == best.expected_seconds == math.inf


@pytest.mark.parametrize(
    "values",
    [
        {"node_hours": 0.0},
        {"node_hours": math.nan},
        {"restart_seconds": -1.0},
        {"checkpoint_seconds": 0.0},
    ],
)
def test_figures_that_cannot_be_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(PlanError, match=next(iter(values))):
        NodeFailures(**values)
