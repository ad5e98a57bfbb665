"""Linear scaling as a rival model, the outlier among the rows, trust, and the parts of a run's time."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from benchmarks.throughput.learn import learn_walk
from benchmarks.throughput.parts import PartLaw, PartSeconds, fit_part, run_seconds
from hpo.errors import EvidenceError
from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.machines import load_machine
from hpo.planning.throughput import Measurement, fit_throughput, linear
from hpo.planning.throughput.posterior import ODD_ODDS, ODD_SD, _log2_node_sizes, _odd_systems
from hpo.planning.throughput.priors import PRIORS, WalkPriors

pytestmark = pytest.mark.medium

WALK = WalkPriors(-2.0, -1.5, -4.0)


def rows_of(*rows: tuple[int, int, float], per_node: int = 8) -> list[Measurement]:
    return [Measurement(n, b, speed, nodes=-(-n // per_node)) for n, b, speed in rows]


def test_the_walk_continues_linear_scaling_from_the_largest_scale() -> None:
    rows = rows_of((8, 2048, 8e3), (16, 4096, 15e3), (32, 8192, 28e3))
    exact = WalkPriors(-2.0, -1.5, -12.0)
    for n in (64, 1024):
        mean, sd = linear.log_throughput(rows, exact, n, 256 * n)
        assert np.exp(mean) == pytest.approx(28e3 * n / 32, rel=1e-4)
        assert sd**2 == pytest.approx(
            np.exp(-4.0) * np.log(n / 32), rel=1e-3
        )  # Brownian motion's variance


def test_the_walks_evidence_is_the_density_of_the_increments() -> None:
    rows = rows_of((8, 2048, 8e3), (16, 2048, 13e3), (64, 8192, 50e3))
    logs = np.log([row.samples_per_second / row.accelerators for row in rows])
    at = np.log([[row.accelerators, row.local_batch_size] for row in rows])
    steps = np.abs(np.diff(at, axis=0)) @ np.exp(
        2 * np.array([WALK.log_accelerators, WALK.log_local_batch])
    )
    noise = np.exp(2 * WALK.log_scatter)

    def density(scale: float) -> float:
        covariance = np.diag(steps) + noise * (2 * np.eye(2) - np.eye(2, k=1) - np.eye(2, k=-1))
        return float(multivariate_normal(np.zeros(2), covariance).logpdf(np.diff(logs) * scale))

    faster = [
        Measurement(
            row.accelerators, row.global_batch_size, row.accelerators * float(np.exp(2 * log))
        )
        for row, log in zip(rows, logs, strict=True)
    ]
    gained = linear.log_evidence(faster, WALK) - linear.log_evidence(rows, WALK)
    assert gained == pytest.approx(density(2.0) - density(1.0), abs=1e-3)


@pytest.mark.slow
def test_the_walks_spreads_are_learnt_back() -> None:
    rng = np.random.default_rng(3)
    series = []
    for _ in range(150):
        log, rows = 0.0, []
        for n, b in ((8, 2048), (64, 16384), (64, 1024), (512, 8192)):
            if rows:
                last = rows[-1]
                gaps = np.abs(np.log([n / last.accelerators, b / n / last.local_batch_size]))
                log += rng.standard_normal() * np.sqrt(gaps @ np.exp([-4.0, -3.0]))
            rows.append(Measurement(n, b, n * float(np.exp(log))))
        series.append(rows)
    found = learn_walk(series)
    assert found.log_accelerators == pytest.approx(-2.0, abs=0.15)
    assert found.log_local_batch == pytest.approx(-1.5, abs=0.15)


def test_rows_that_scale_linearly_give_linear_scaling_more_weight_than_rows_that_lose_to_the_batch() -> (
    None
):
    straight = rows_of(*((n, 256 * n, 1e3 * n) for n in (8, 16, 32, 64)))
    fixed = rows_of(*((n, 4096, 4096 / (4096 / n / 1e3 + 0.02)) for n in (8, 16, 32, 64, 128, 256)))
    assert fit_throughput(straight).linear_weight > fit_throughput(fixed).linear_weight
    assert fit_throughput(fixed).linear_weight < PRIORS.linear_share


def test_the_odds_of_an_odd_system_are_those_of_the_two_densities() -> None:
    rng = np.random.default_rng(0)
    root = rng.standard_normal((4, 4))
    covariance, log_scatter = root @ root.T + np.eye(4), np.array([-3.0])
    gaps = 0.1 * rng.standard_normal((1, 4))
    log_odds, offsets, variances = _odd_systems(gaps, np.linalg.inv(covariance), log_scatter)
    usual = np.exp(-6.0) * covariance
    for place in range(4):
        unit = np.eye(4)[place]
        odd = usual + ODD_SD**2 * np.outer(unit, unit)
        ratio = multivariate_normal(np.zeros(4), odd).logpdf(gaps[0]) - multivariate_normal(
            np.zeros(4), usual
        ).logpdf(gaps[0])
        assert log_odds[0, place] == pytest.approx(np.log(ODD_ODDS) + ratio)
        gain = ODD_SD**2 * unit @ np.linalg.inv(odd)  # the conditional mean of a normal pair
        assert offsets[0, place] == pytest.approx(gain @ gaps[0])
        assert variances[0, place] == pytest.approx(ODD_SD**2 - gain @ unit * ODD_SD**2)
    assert (log_odds[0, 4], offsets[0, 4], variances[0, 4]) == (0.0, 0.0, 0.0)


ODD = rows_of((8, 2048, 8e3), (16, 4096, 16e3), (32, 8192, 0.8 * 32e3), (64, 16384, 63e3))


def test_a_slow_system_between_faster_ones_counts_for_less_and_is_named() -> None:
    found = fit_throughput(ODD).at(128, 32768)
    assert found.samples_per_second.median == pytest.approx(126e3, rel=0.06)
    assert "the row on 32 accelerators" in found.reason
    assert "slower than the others suggest" in found.reason
    clean = fit_throughput([row for row in ODD if row.accelerators != 32]).at(128, 32768)
    assert "suggest" not in clean.reason


def test_node_sizes_are_at_least_what_one_node_was_seen_to_hold() -> None:
    quantiles = np.linspace(-3.5, 3.5, 201)
    for least in (0.0, 3.0, 7.0):
        sizes = _log2_node_sizes(quantiles, least)
        assert (np.diff(sizes) >= 0).all()
        assert sizes[0] >= least
    assert _log2_node_sizes(np.zeros(1), 0.0)[0] == pytest.approx(3.0, abs=0.15)  # a node of 8
    assert _log2_node_sizes(np.zeros(1), 7.0)[0] > 9.0  # 128 in one: a pod, growing on


def trusts(rows: Sequence[Measurement], *asked: int) -> list[str]:
    model = fit_throughput(rows)
    return [model.at(n, 256 * n).trust for n in asked]


def test_one_node_asked_for_several_is_low_trust_and_wider() -> None:
    one = rows_of(*((n, 256 * n, 1e3 * n) for n in (1, 2, 4, 8)))
    several = rows_of(*((n, 256 * n, 1e3 * n) for n in (2, 4, 8, 16)))
    found, known = fit_throughput(one).at(32, 8192), fit_throughput(several).at(32, 8192)
    assert found.trust == "low"
    assert "no row uses more than one node" in found.reason
    assert "no row uses more than one node" not in known.reason
    width = [each.samples_per_second.high / each.samples_per_second.low for each in (found, known)]
    assert width[0] > 1.3 * width[1]


def test_a_machine_tells_that_rows_without_nodes_lie_in_one_node() -> None:
    rows = [Measurement(n, 256 * n, 1e3 * n) for n in (1, 2, 4, 6)]
    summit = load_machine("summit")  # 6 accelerators a node
    assert "no row uses more than one node" in fit_throughput(rows, summit).at(12, 3072).reason
    assert "no row uses more than one node" not in fit_throughput(rows, summit).at(5, 1280).reason


def test_trust_falls_with_the_distance() -> None:
    rows = rows_of(*((n, 256 * n, 990.0 * n) for n in (8, 16, 32, 64)))
    order = ["high", "medium", "low"]
    found = [order.index(each) for each in trusts(rows, 64, 128, 512, 2048, 16384)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 2)
    assert trusts(rows[:1], 64) == ["low"]


def test_the_parts_of_a_run_are_recovered_and_never_negative() -> None:
    law = PartLaw(2.0, 800.0)
    rows = [PartSeconds(n, law.at(n)) for n in (8, 64, 256)]
    assert fit_part(rows).at(1024) == pytest.approx(law.at(1024))
    assert fit_part([PartSeconds(8, 1.0), PartSeconds(64, 5.0)]).shared == 0.0
    assert fit_part([PartSeconds(8, 0.0), PartSeconds(64, 0.0)]) == PartLaw(0.0, 0.0)
    assert fit_part([PartSeconds(8, 3.0)]).at(64) == 3.0
    waits = [fit_part([PartSeconds(8, 9.0), PartSeconds(32, 4.0)]).at(n) for n in (8, 32, 128, 512)]
    assert all(later <= earlier for earlier, later in pairwise(waits))
    with pytest.raises(EvidenceError, match="at least one measured row"):
        fit_part([])
    with pytest.raises(EvidenceError, match="finite seconds of 0 or more, but got -1"):
        fit_part([PartSeconds(8, -1.0)])


def test_a_run_takes_the_sum_of_its_parts_and_a_faster_rate_less() -> None:
    found = run_seconds(
        10.0,
        1000,
        Interval(100.0, 80.0, 125.0),
        start_seconds=5.0,
        evaluations=4.0,
        seconds_per_evaluation=2.5,
    )
    assert (found.median, found.low, found.high) == (115.0, 95.0, 140.0)
