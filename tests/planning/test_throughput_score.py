"""The score on published runs with their rounds left out of the priors; the shipped priors; the scoring itself."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from benchmarks.throughput.__main__ import Result
from benchmarks.throughput.clock import read_clock
from benchmarks.throughput.families import (
    GENERATIONS,
    cases,
    generation,
    read_series,
    scored,
    unseen,
)
from benchmarks.throughput.forecasters import least_squares, linear, step_model
from benchmarks.throughput.learn import ThroughputSeries, learn, read_reference_throughputs
from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.throughput import Measurement
from hpo.planning.throughput.priors import PRIORS, StepPriors

pytestmark = pytest.mark.fit

FAMILY = ThroughputSeries(
    "made up",
    "nowhere",
    [Measurement(n, 256 * n, 900.0 * n / (1 + 0.02 * np.log2(n))) for n in (8, 16, 64)],
)


def test_every_prefix_of_two_scales_predicts_every_larger_one() -> None:
    rows = [*FAMILY.rows, Measurement(64, 4096, 50000.0), Measurement(128, 4096, 80000.0)]
    found = list(cases(ThroughputSeries("made up", "nowhere", rows)))
    assert [(len(case.seen), case.asked.accelerators, case.horizon) for case in found] == [
        (2, 64, 4.0),
        (2, 64, 4.0),
        (2, 128, 8.0),
        (4, 128, 2.0),
    ]


def test_families_are_formed_as_the_benchmark_says(tmp_path: Path) -> None:
    columns = (
        "benchmark,round,submitter,accelerator_model,division,n_accelerators,n_nodes,global_batch_size,"
        "train_examples_per_second"
    )
    lines = [
        f"resnet,v9,us,gpu,closed,{n},{n // 8},{32 * n},{speed}"
        for n, speed in ((8, 10), (8, 30), (8, 11), (16, 20), (64, 70))
    ]
    lines += [
        "resnet,v9,them,gpu,closed,8,1,256,10",
        "resnet,v9,them,gpu,closed,32,4,256,30",
        "resnet,v9,us,gpu,closed,128,16,4096,",
        "resnet,v9,us,,closed,0,1,256,5",
        "resnet,v9,us,gpu,open,8,1,256,9",
    ]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([columns, *lines]))
    series = read_series(path)
    assert [one.name for one in series] == [
        "resnet / v9 / them / gpu / closed",
        "resnet / v9 / us / gpu / closed",
    ]
    assert scored(series) == series[1:]
    assert series[1].rows[0] == Measurement(8, 256, 11.0, nodes=1, runs=3)


def test_the_baselines_find_what_they_assume() -> None:
    perfect = [Measurement(n, 100 * n, 500.0 * n) for n in (2, 4, 8, 64)]
    case = next(cases(ThroughputSeries("perfect", "nowhere", perfect)))
    assert linear(case).median == pytest.approx(case.asked.samples_per_second)
    amdahl = [Measurement(n, 100 * n, 100 * n / (2.0 + 0.3 * np.log2(n))) for n in (2, 4, 8, 64)]
    case = list(cases(ThroughputSeries("amdahl", "nowhere", amdahl)))[1]
    assert least_squares(case).median == pytest.approx(case.asked.samples_per_second, rel=1e-6)
    assert linear(case).median > 1.1 * case.asked.samples_per_second


def test_a_result_knows_its_error_and_whether_it_was_covered() -> None:
    case = next(cases(FAMILY))
    truth = case.asked.samples_per_second
    result = Result(case, Interval(1.1 * truth, truth, 1.5 * truth))
    assert (result.error, result.covered, result.width) == (
        pytest.approx(0.1),
        True,
        pytest.approx(1.5),
    )
    assert not Result(case, Interval(truth, 1.01 * truth, 2 * truth)).covered


def test_generations_are_told_by_the_names_of_accelerators() -> None:
    reference = read_reference_throughputs()
    found = {one.name: generation(one) for one in reference}
    assert set(found.values()) <= set(GENERATIONS)
    assert found["resnet / training_v0.6 / Google / tpu-v3 / closed"] == "TPU[ -]?v3"
    assert found["resnet / training_v2.0 / Google / TPU-v4 / closed"] == "TPU"
    assert (
        found["resnet / training_v0.7 / NVIDIA / NVIDIA V100-SXM3-32GB (450W) / closed"] == "V100"
    )
    assert found["GPT 1536x16 / megatron"] == "V100"
    new = ThroughputSeries("resnet / v9 / us / NVIDIA H100-SXM5-80GB / closed", "v9", [])
    assert "H100" in generation(new)
    assert generation(ThroughputSeries("resnet / v9 / us / Abacus / closed", "v9", [])) == "Abacus"


def test_a_submitter_is_unseen_in_all_its_families_or_in_none() -> None:
    by_submitter: dict[str, set[bool]] = {}
    for one in read_reference_throughputs():
        if not one.origin.startswith("dlperf"):
            by_submitter.setdefault(one.name.split(" / ")[2], set()).add(unseen(one))
    assert all(len(each) == 1 for each in by_submitter.values())
    assert {who for who, each in by_submitter.items() if each == {True}} == {
        "SIAT",
        "Intel-HabanaLabs",
        "Graphcore",
        "LBNL",
        "Nettrix",
    }


def test_the_parts_of_a_run_are_read_and_their_sum_is_its_time(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "benchmark,round,submitter,accelerator_model,division,n_accelerators,n_nodes,global_batch_size,train_samples,"
        "train_examples_per_second,run_seconds,last_epoch,pre_train_seconds,staging_in_run_seconds,n_evals,eval_seconds"
        "\nresnet,v9,us,gpu,closed,8,1,256,1000,50,226,10,6,,5,20\nresnet,v9,us,gpu,closed,8,1,256,1000,,226,10,6,,5,20\n"
    )
    runs = read_clock(path)["resnet / v9 / us / gpu / closed"][8, 256]
    assert (
        runs.seconds,
        runs.epochs,
        runs.start_seconds,
        runs.evaluations,
        runs.seconds_per_evaluation,
    ) == ([226.0], [10.0], [6.0], [5.0], [4.0])
    assert 6.0 + 10 * runs.samples_per_epoch / 50.0 + 5 * 4.0 == 226.0


@pytest.mark.slow
def test_generations_left_out_are_predicted_as_well_as_by_the_plainest_rules_and_intervals_hold() -> (
    None
):
    reference = read_reference_throughputs()
    families = [one for one in scored(reference) if one.name.startswith("resnet / ")]
    way = step_model(reference, lambda one, asked: generation(one) == generation(asked))
    every = [case for series in families for case in cases(series)]
    assert (len(families), len(every)) == (14, 56)
    results = [Result(case, way(case)) for case in every[::4]]  # all take minutes
    error = np.median([abs(one.error) for one in results])
    assert error <= 0.08
    for plain in (linear, least_squares):
        assert error <= np.median(
            [
                abs(plain(one.case).median / one.case.asked.samples_per_second - 1.0)
                for one in results
            ]
        )
    assert np.mean([one.covered for one in results]) >= 0.85
    assert np.median([one.width for one in results]) < 1.6


@pytest.mark.slow  # it learns them again
def test_the_shipped_beliefs_are_what_the_shipped_table_gives() -> None:
    reference = read_reference_throughputs()
    learnt = learn(reference, rng=np.random.default_rng(0))
    for one in fields(StepPriors):
        shipped, found = getattr(PRIORS.step, one.name), getattr(learnt.step, one.name)
        assert (found.mean, found.sd) == pytest.approx((shipped.mean, shipped.sd), abs=0.1), (
            one.name
        )
    for name in ("log_accelerators", "log_local_batch", "log_scatter"):
        assert getattr(learnt.walk, name) == pytest.approx(getattr(PRIORS.walk, name), abs=0.02)
