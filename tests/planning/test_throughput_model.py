"""Throughput fitted to a few scales: recovery of an independent simulator, laws, limits, degenerate evidence."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hpo.errors import EvidenceError
from hpo.planning.throughput import Measurement, fit_throughput
from hpo.planning.throughput.step_model import (
    ReferenceRow,
    ThroughputPoints,
    log_throughput,
    step_terms,
)

pytestmark = pytest.mark.fit

PER_NODE = 8


def simulator(rng: np.random.Generator) -> Callable[[int, int], float]:
    """Samples per second of one machine and workload, step by step: jittering workers, then two rings of messages.

    The ring inside a node and the ring of nodes each send 2 (p - 1) messages of 1/p of the gradients, as the algorithm
    does; the slowest of the workers decides when the reduction begins.
    """
    per_sample, fixed = rng.uniform(2e-4, 2e-3), rng.uniform(1e-3, 8e-3)
    jitter, megabytes = rng.uniform(0.002, 0.02), rng.uniform(20, 200)
    latency, inside, between = (
        rng.uniform(2e-6, 2e-5),
        rng.uniform(5e4, 2e5),
        rng.uniform(1e4, 5e4),
    )  # s, MB/s, MB/s
    retuning = rng.uniform(0.0, 0.02)

    def ring(members: int, volume: float, rate: float) -> float:
        return sum(latency + volume / members / rate for _ in range(2 * (members - 1)))

    def samples_per_second(accelerators: int, batch: int) -> float:
        compute = fixed + per_sample * batch / accelerators
        slowest = np.mean(
            [compute * np.exp(jitter * rng.standard_normal(accelerators)).max() for _ in range(5)]
        )
        local = min(accelerators, PER_NODE)
        step = slowest + ring(local, megabytes, inside)
        if accelerators > PER_NODE:
            step += ring(accelerators // PER_NODE, megabytes, between)
        return float(batch / step * np.exp(retuning * rng.standard_normal()))

    return samples_per_second


def measured(
    speed: Callable[[int, int], float], configurations: Sequence[tuple[int, int]]
) -> list[Measurement]:
    return [Measurement(n, b, speed(n, b), nodes=max(n // PER_NODE, 1)) for n, b in configurations]


def test_an_independent_simulator_is_recovered_within_its_intervals() -> None:
    errors, inside = [], []
    for seed in range(12):
        speed = simulator(np.random.default_rng(seed))
        model = fit_throughput(measured(speed, [(8, 1024), (16, 2048), (32, 2048), (64, 8192)]))
        for n, b in ((128, 16384), (256, 16384), (512, 32768)):
            truth, predicted = speed(n, b), model.at(n, b).samples_per_second
            errors.append(abs(predicted.median / truth - 1))
            inside.append(predicted.low <= truth <= predicted.high)
    assert np.median(errors) < 0.05
    assert max(errors) < 0.3
    assert np.mean(inside) >= 0.8


def test_intervals_of_rows_drawn_from_the_model_hold() -> None:
    rng = np.random.default_rng(5)
    held = []
    for _ in range(25):
        small, growth, scatter = np.exp(rng.normal(-3.4, 1.4)), np.exp(rng.normal(-4.5, 1.0)), 0.02

        def speed(
            n: int, b: int, small: float = small, growth: float = growth, scatter: float = scatter
        ) -> float:
            step = b / n / 128 + small + growth * np.log2(n)
            return float(1000 * b / step * np.exp(scatter * rng.standard_normal()))

        model = fit_throughput(
            [Measurement(n, b, speed(n, b)) for n, b in ((8, 1024), (32, 2048), (128, 8192))]
        )
        predicted = model.at(512, 16384).samples_per_second
        held.append(predicted.low <= speed(512, 16384) <= predicted.high)
    assert np.mean(held) >= 0.8


def random_parameters(rng: np.random.Generator, count: int = 200) -> dict[str, np.ndarray]:
    names = (
        "log_fixed",
        "fixed_logit",
        "log_intra",
        "log_inter",
        "log_latency",
        "log_straggler",
        "log_shared",
    )
    return {name: rng.normal(-3.0, 2.0, count) for name in names} | {
        "log2_node_size": rng.normal(3.0, 0.7, count)
    }


def formula(
    accelerators: Sequence[float], batches: Sequence[float], node_size: float
) -> np.ndarray:
    n, b = np.array(accelerators, dtype=float), np.array(batches, dtype=float)
    points = ThroughputPoints(n, b, np.full(len(n), node_size), np.ones(len(n)))
    values = random_parameters(np.random.default_rng(1))
    return np.exp(log_throughput(step_terms(values, points, ReferenceRow(8.0, 128.0)), points))


@pytest.mark.parametrize("node_size", [4.0, 8.0, float("nan")])
def test_at_a_fixed_local_batch_efficiency_never_grows_with_accelerators(node_size: float) -> None:
    n = 2.0 ** np.arange(0, 15)
    per_accelerator = formula(n, 64 * n, node_size) / n
    assert (np.diff(per_accelerator, axis=1) <= 1e-9 * per_accelerator[:, :-1]).all()


@pytest.mark.parametrize("node_size", [4.0, 8.0, float("nan")])
def test_on_fixed_accelerators_a_larger_batch_is_never_slower(node_size: float) -> None:
    b = 256 * 2.0 ** np.arange(0, 12)
    speed = formula(np.full(len(b), 256.0), b, node_size)
    assert (np.diff(speed, axis=1) >= -1e-9 * speed[:, :-1]).all()


def linear_rows(counts: Sequence[int] = (8, 16, 64)) -> list[Measurement]:
    return [Measurement(n, 256 * n, 3000.0 * n) for n in counts]


def test_perfect_scaling_is_carried_on_and_never_beaten() -> None:
    model = fit_throughput(linear_rows())
    for factor in (2, 8, 32):
        found = model.at(64 * factor, 256 * 64 * factor)
        linear = 3000.0 * 64 * factor
        assert found.samples_per_second.median <= 1.01 * linear
        assert found.samples_per_second.median >= 0.8 * linear
    assert model.at(128, 256 * 128).limited_by == "compute"


def test_the_interval_widens_with_the_distance_and_narrows_with_evidence() -> None:
    def width(rows: Sequence[Measurement], n: int) -> float:
        found = fit_throughput(rows).at(n, 256 * n).samples_per_second
        return found.high / found.low

    few, many = linear_rows((8, 16)), linear_rows((8, 16, 32, 64, 128))
    assert width(few, 16) < width(few, 64) < width(few, 512) < width(few, 4096)
    assert width(many, 512) < width(few, 512)
    assert width(many, 4096) < width(few, 4096)


def test_the_unit_of_the_samples_does_not_matter() -> None:
    rows = [
        Measurement(8, 2048, 9000.0),
        Measurement(64, 8192, 60000.0),
        Measurement(256, 8192, 150000.0),
    ]
    larger = [
        Measurement(row.accelerators, row.global_batch_size, 7.0 * row.samples_per_second)
        for row in rows
    ]
    one, seven = (
        fit_throughput(each).at(1024, 32768).samples_per_second for each in (rows, larger)
    )
    assert [seven.median, seven.low, seven.high] == pytest.approx(
        [7 * one.median, 7 * one.low, 7 * one.high]
    )


def test_order_and_repetition_of_rows_do_not_matter() -> None:
    rows = linear_rows()
    once = fit_throughput(rows).at(256, 65536)
    assert fit_throughput(rows[::-1]).at(256, 65536) == once
    runs = [
        Measurement(row.accelerators, row.global_batch_size, row.samples_per_second * factor)
        for row in rows
        for factor in (0.9, 1.0, 1.0)
    ]
    median = [
        Measurement(row.accelerators, row.global_batch_size, row.samples_per_second, runs=3)
        for row in rows
    ]
    assert fit_throughput(runs).at(256, 65536) == fit_throughput(median).at(256, 65536)


@pytest.mark.parametrize("rows", [linear_rows((8,)), linear_rows((8,)) * 3])
def test_one_configuration_gives_a_wide_interval_about_less_than_linear_scaling(
    rows: list[Measurement],
) -> None:
    found = fit_throughput(rows).at(512, 512 * 256).samples_per_second
    assert found.high / found.low > 1.5
    assert 0.4 < found.median / (3000.0 * 512) <= 1.0
    assert found.low > 0


def test_configurations_that_contradict_each_other_widen_the_interval() -> None:
    torn = [
        Measurement(8, 2048, 1000.0, nodes=1),
        Measurement(8, 2048, 3000.0, nodes=2),
        *linear_rows((16,)),
    ]
    calm = linear_rows((8, 16))
    assert np.ptp(np.log(ends(torn))) > np.ptp(np.log(ends(calm)))


def ends(rows: Sequence[Measurement]) -> tuple[float, float]:
    found = fit_throughput(rows).at(128, 32768).samples_per_second
    return found.low, found.high


LIMITS = {
    "compute": lambda n, b: b / n + 100.0,
    "network": lambda n, b: b / n + (40.0 + 4.0 * np.log2(n) if n > 8 else 0.0),
    "input": lambda n, b: b / n + b / 400.0,
    "control": lambda n, b: b / n * (1.0 + 0.2 * np.log2(n / 8)),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_the_term_that_grew_is_named(limit: str) -> None:
    # one accelerator reduces nothing: without such rows a reduction within the node looks like a cost of every step
    grid = [
        (1, 256),
        (1, 64),
        (8, 2048),
        (8, 512),
        (16, 4096),
        (16, 512),
        (64, 16384),
        (64, 2048),
        (256, 65536),
        (256, 8192),
    ]
    rows = [Measurement(n, b, b / LIMITS[limit](n, b), nodes=max(n // 8, 1)) for n, b in grid]
    assert fit_throughput(rows).at(1024, 65536).limited_by == limit


def test_more_accelerators_are_never_predicted_to_be_slower_where_scaling_was_seen() -> None:
    for seed in range(4):
        speed = simulator(np.random.default_rng(100 + seed))
        model = fit_throughput(measured(speed, [(8, 1024), (32, 4096), (128, 16384)]))
        medians = [
            model.at(n, 128 * n).samples_per_second.median
            for n in (128, 256, 512, 1024, 2048, 4096)
        ]
        assert medians == sorted(medians)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "at least one measured row"),
        ([(0, 8, 1.0)], "accelerators must be a whole number of 1 or more, but got 0"),
        ([(8, 2.5, 1.0)], "global_batch_size must be a whole number of 1 or more, but got 2.5"),
        ([(8, 8, float("nan"))], "samples_per_second must be a finite number above 0"),
        ([(8, 8, -1.0)], "samples_per_second must be a finite number above 0"),
    ],
)
def test_figures_that_cannot_be_are_named(rows: list[tuple[int, int, float]], said: str) -> None:
    with pytest.raises(EvidenceError, match=said):
        fit_throughput([Measurement(*row) for row in rows])


@pytest.mark.parametrize("asked", [(0, 8), (8, 0), (-1, 8), (8, float("inf")), (8, 10**400)])
def test_a_question_without_accelerators_or_samples_is_refused(asked: tuple[int, int]) -> None:
    with pytest.raises(EvidenceError, match="must be 1 or more"):
        fit_throughput(linear_rows()).at(*asked)
