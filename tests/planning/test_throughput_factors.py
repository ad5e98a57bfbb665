"""The log-linear factor model: recovery of known effects, missing pairs, unknown levels, bad rows."""

import numpy as np
import pytest

from benchmarks.throughput.learn import read_reference_throughputs
from hpo.errors import EvidenceError
from hpo.planning.throughput.factors import FactorRow, fit_factors

pytestmark = pytest.mark.fit


def made_up(seed: int, scatter: float = 0.05) -> list[FactorRow]:
    rng = np.random.default_rng(seed)
    machines, workloads = rng.normal(0.0, 1.0, 5), rng.normal(0.0, 1.5, 6)
    rows = []
    for i, machine in enumerate(machines):
        for j, workload in enumerate(workloads):
            count = int(2 ** rng.integers(0, 8))
            log = 5.0 + machine + workload + 0.9 * np.log(count) + scatter * rng.standard_normal()
            rows.append(
                FactorRow(
                    {"machine": f"m{i}", "workload": f"w{j}"},
                    {"accelerators": count},
                    float(np.exp(log)),
                )
            )
    return rows


def test_pairs_that_were_left_out_are_recovered_within_their_intervals() -> None:
    errors, held = [], []
    for seed in range(6):
        rows = made_up(seed)
        out = set(np.random.default_rng(seed).choice(len(rows), 8, replace=False))
        model = fit_factors([row for place, row in enumerate(rows) if place not in out])
        for place in out:
            found = model.at(rows[place].factors, rows[place].numbers)
            errors.append(abs(found.median / rows[place].samples_per_second - 1))
            held.append(found.low <= rows[place].samples_per_second <= found.high)
    assert np.median(errors) < 0.1
    assert 0.8 <= np.mean(held) <= 1.0


def test_a_measured_pair_is_known_better_than_one_left_out_and_far_better_than_a_new_level() -> (
    None
):
    rows = made_up(3)

    def width(without: int, machine: str) -> float:
        model = fit_factors([row for place, row in enumerate(rows) if place != without])
        found = model.at({"machine": machine, "workload": "w0"}, {"accelerators": 16})
        return found.high / found.low

    assert width(29, "m0") < width(0, "m0") < 0.3 * width(29, "never measured")


def test_numbers_enter_as_powers() -> None:
    rows = [FactorRow({"machine": "a"}, {"threads": n}, 10.0 * n**0.8) for n in (1, 2, 4, 8, 16)]
    found = fit_factors(rows).at({"machine": "a"}, {"threads": 64})
    assert found.median == pytest.approx(10.0 * 64**0.8, rel=0.05)


def test_the_unit_of_the_samples_does_not_matter() -> None:
    rows = made_up(1)[:12]
    tenfold = [FactorRow(row.factors, row.numbers, 10.0 * row.samples_per_second) for row in rows]
    asked = ({"machine": "m1", "workload": "w5"}, {"accelerators": 8})
    one, ten = (fit_factors(each).at(*asked) for each in (rows, tenfold))
    assert [ten.median, ten.low, ten.high] == pytest.approx(
        [10 * one.median, 10 * one.low, 10 * one.high], rel=1e-3
    )


def test_frameworks_and_models_measured_apart_predict_each_other() -> None:
    rows = []
    for series in read_reference_throughputs():
        model, framework, *local = series.name.split(" / ")
        if (
            series.origin == "dlperf_v1"
            and local in ([], ["32 per device"])
            and model != "GPT 1536x16"
        ):
            rows += [
                FactorRow(
                    {"model": model, "framework": framework},
                    {"accelerators": row.accelerators},
                    row.samples_per_second,
                )
                for row in series.rows
            ]
    pairs = sorted(
        {
            (row.factors["model"], row.factors["framework"])
            for row in rows
            if "tf2" not in str(row.factors) and "pytorch" not in str(row.factors)
        }
    )
    errors = []
    for pair in pairs:
        model = fit_factors([row for row in rows if tuple(row.factors.values()) != pair])
        errors += [
            abs(model.at(row.factors, row.numbers).median / row.samples_per_second - 1)
            for row in rows
            if tuple(row.factors.values()) == pair
        ]
    assert len(pairs) == 8
    assert np.median(errors) < 0.25


def test_one_row_alone_gives_a_wide_interval_around_it() -> None:
    row = FactorRow({"machine": "a", "workload": "b"}, {}, 1000.0)
    found = fit_factors([row]).at({"machine": "a", "workload": "c"})
    assert found.low < 700 < 1000 * 1.05 > found.median > 950
    assert found.high > 1400


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "at least one measured row"),
        (
            [FactorRow({"a": "x"}, {}, 1.0), FactorRow({"b": "x"}, {}, 1.0)],
            "row 2: the factors must be a",
        ),
        (
            [FactorRow({"a": "x"}, {"n": 0.0}, 1.0)],
            "row 1: n must be a finite number above 0, but got 0.0",
        ),
        (
            [FactorRow({"a": "x"}, {}, float("nan"))],
            "row 1: samples_per_second must be a finite number above 0",
        ),
    ],
)
def test_rows_that_cannot_be_are_named(rows: list[FactorRow], said: str) -> None:
    with pytest.raises(EvidenceError, match=said):
        fit_factors(rows)


def test_a_question_must_name_the_factors_of_the_rows() -> None:
    model = fit_factors([FactorRow({"a": "x"}, {"n": 2.0}, 1.0)])
    with pytest.raises(
        EvidenceError, match="asked: the factors must be a, like those of the first row, but got b"
    ):
        model.at({"b": "x"}, {"n": 2.0})
    with pytest.raises(EvidenceError, match="asked: the numbers must be n"):
        model.at({"a": "x"})
