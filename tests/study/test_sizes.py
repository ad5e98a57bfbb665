"""A ladder of several sizes and lengths: read from its file, checked, and what its trials train."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from hpo.errors import SpecError
from hpo.planning.plan import planned_job
from hpo.runs.checks import check_workload
from hpo.runs.results import worker_throughput
from hpo.study.jobs import training_job, workload_data
from hpo.study.sizes import (
    budgets_by_sizes,
    cost_share_of_sizes,
    full_scale_sizes,
    points,
    relative_cost,
    rung_in_words,
    sample_cost_share,
)
from hpo.study.spec import StudySpec, parse_study
from search_spaces.settings import TrainingSettings
from storage.records import Trial, TrialPurpose, TrialState
from trainers.cost import workload_cost
from trainers.errors import WorkloadError
from trainers.workloads import load_workload
from trainers.workloads.program.files import ProgramFiles
from trainers.workloads.program.training import ProgramPlace, trial_values

PLAIN: dict[str, Any] = {
    "name": "sized",
    "workload": "language",
    "data": {"source": "python", "train_samples": 2048, "sequence_length": 32},
    "target": {"metric": "loss", "best_within": {"samples": 16384}},
    "ladder": {"global_batch_size": [16, 32], "width": [32, 64], "samples": [2048, 8192]},
    "full_scale": {"global_batch_size": 128, "width": 128, "samples": 16384},
    "search": {
        "optimizer": "adamw",
        "learning_rate": {"log_uniform": [0.001, 0.1], "role": "scaled"},
    },
    "budget": {"trials": 40},
}
HOW_SOON = {
    "target": {"metric": "loss", "at_most": 2.5},
    "ladder": {"global_batch_size": [16, 32], "width": [32, 64]},
    "full_scale": {"global_batch_size": 128, "width": 128},
    "budget": {"trials": 40, "epochs_per_trial": 10},
}


def study(**changes: Any) -> StudySpec:
    return StudySpec.from_dict({**copy.deepcopy(PLAIN), **changes})


def faults(**changes: Any) -> str:
    with pytest.raises(SpecError) as caught:
        study(**changes)
    return str(caught.value)


def test_the_file_is_read_back_as_it_was_written():
    spec = study()
    assert spec.ladder == (16, 32)
    assert spec.sizes == {"width": (32, 64), "samples": (2048, 8192)}
    assert spec.to_dict()["ladder"] == PLAIN["ladder"]
    assert "sizes" not in spec.to_dict()
    assert parse_study(spec.to_yaml()) == spec
    assert study(**HOW_SOON, data={"source": "python"}).sizes == {"width": (32, 64)}


def test_every_combination_is_trained_the_cheapest_first():
    spec = study()
    found = points(spec)
    assert found[0] == (("width", 32), ("training_samples", 2048))
    assert [relative_cost(each) / relative_cost(found[0]) for each in found] == [1, 4, 4, 16]
    assert rung_in_words(16, found[-1]) == "16, width 64, samples 8192"
    assert rung_in_words(16, ()) == "16"


def test_cheap_sizes_get_more_of_the_trainings_by_one_over_the_root_of_their_cost():
    budgets = budgets_by_sizes(study())
    shares = [sum(rung.trainings for rung in rungs.values()) for rungs in budgets.values()]
    assert sum(shares) == 40
    free = 40 - 2 * 4  # one for each rung
    weights = [1, 1 / 2, 1 / 2, 1 / 4]
    assert shares[1:] == [2 + int(free * weight / sum(weights)) for weight in weights[1:]]
    plain = study(
        ladder=[16, 32],
        full_scale={"global_batch_size": 128},
        data={"source": "python", "train_samples": 2048, "sequence_length": 32},
    )
    assert list(budgets_by_sizes(plain)) == [()]


def test_a_trial_trains_its_own_sizes_and_a_plan_those_of_the_full_scale():
    spec = study()
    settings = TrainingSettings(
        optimizer="adamw",
        learning_rate=0.01,
        warmup_epochs=0,
        own={"width": 32, "training_samples": 2048},
    )
    job = training_job(spec, settings, 16, seed=0)
    assert job.data["width"] == 32 and job.epochs == 1.0
    assert job.settings.own == {}  # the model's width stands in its data
    plan = planned_job(spec, settings, 128, None)
    assert plan.data["width"] == 128 and plan.epochs == 8.0
    assert workload_data(spec)["width"] == 128


PROGRAM: dict[str, Any] = {
    "command": ["train", "{learning_rate}", "{global_batch_size}", "{width}"],
    "train_samples": 500,
    "report": {"metrics": {"loss": False}},
    "cost": "6 * 12 * {width}**2",
}
OF_PROGRAM = {"workload": "program", "data": {}, **HOW_SOON}


def program(**changes: Any) -> dict[str, Any]:
    its = {**copy.deepcopy(PROGRAM), **changes}
    return {name: value for name, value in its.items() if value is not None}


def test_a_program_reads_its_size_as_a_setting():
    spec = study(**OF_PROGRAM, program=program())
    settings = TrainingSettings(learning_rate=0.01, own={"width": 32})
    assert training_job(spec, settings, 16, seed=0).settings.own == {"width": 32}
    assert planned_job(spec, settings, 128, None).settings.own == {"width": 128}


def test_a_training_of_a_shorter_length_has_answered_at_its_own_end():
    question = study().question

    class Ended:
        state, epochs_to_target, best_metric = "censored", None, 2.5

        def __init__(self, epochs: float, samples: int) -> None:
            self.epochs, self.settings = epochs, {"training_samples": samples}

    assert question.need(Ended(1.0, 2048)) == 2.5
    assert question.need(Ended(1.0, 8192)) is None
    assert question.need(Ended(4.0, 8192)) == 2.5


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ladder": {"width": [32]}}, "ladder must give its batch sizes"),
        (
            {"ladder": {**PLAIN["ladder"], "widht": [32]}},
            "ladder has no size 'widht'; did you mean 'width'?",
        ),
        ({"ladder": {**PLAIN["ladder"], "width": []}}, "ladder.width must be a list of sizes"),
        ({"ladder": {**PLAIN["ladder"], "width": [0.5]}}, "must hold whole numbers of 1 or more"),
        ({"ladder": {**PLAIN["ladder"], "width": [64, 32]}}, "ladder.width must increase"),
        ({"full_scale": None}, "full_scale must give its width"),
        (
            {"full_scale": {"global_batch_size": 128, "width": 32, "samples": 16384}},
            "full_scale.width must be at least the largest of the ladder, 64, but got 32",
        ),
        (
            {"full_scale": {**PLAIN["full_scale"], "depth": 4}},
            "full_scale.depth needs a ladder with smaller values",
        ),
        ({"data": {**PLAIN["data"], "width": 128}}, "remove it from data"),
        ({"sampler": "forecast"}, "needs a sampler that trains rung by rung, but got forecast"),
        (
            {
                "budget": "auto",
                "search": {"optimizer": "adamw", "learning_rate": {"log_uniform": [0.001, 0.1]}},
            },
            "budget: auto needs a setting with role: scaled",
        ),
        ({"budget": {"trials": 7}}, "budget.trials must be at least 8"),
        ({"resources": {"fused_trials": 2}}, "fused trials must have the same model size"),
        (
            {"target": {"metric": "loss", "best_within": {"samples": 20000}}},
            "best_within must equal the samples of full_scale, 16384",
        ),
        (
            {
                "target": {"metric": "loss", "at_most": 2.5},
                "budget": {"trials": 40, "epochs_per_trial": 8},
            },
            "samples give the length of training runs with a fixed budget",
        ),
        (
            {"ladder": {**PLAIN["ladder"], "samples": [16, 8192]}},
            "ladder.samples must allow at least one update",
        ),
        (
            {"workload": "noisy_quadratic", "data": {"train_samples": 2048}},
            "workload 'noisy_quadratic' has no option width",
        ),
        ({"sizes": {"width": [32]}}, "unknown key 'sizes'"),
    ],
)
def test_what_does_not_go_together_says_the_rule_and_the_way_out(
    changes: dict[str, Any], told: str
):
    assert told in faults(**changes)


def test_the_keys_that_a_study_may_have_are_those_of_its_file():
    told = faults(laddder=[16])
    assert "did you mean 'ladder'" in told and "sizes" not in faults(zzz=1)


def test_a_command_that_does_not_read_the_size_is_told():
    command = ["train", "{learning_rate}", "{global_batch_size}"]
    told = faults(**OF_PROGRAM, program=program(command=command))
    assert "the command must contain {width}" in told


IN_ALL = {
    "ladder": {"global_batch_size": [16, 32], "width": [8, 16], "depth": [2], "samples": [64, 256]},
    "full_scale": {"global_batch_size": 64, "width": 32, "depth": 4, "samples": 1000},
    "target": {"metric": "loss", "best_within": {"samples": 1000}},
    "workload": "program",
    "data": {},
}
READS_ALL = [*PROGRAM["command"], "{depth}", "{samples}"]


def test_a_training_of_a_program_costs_by_its_formula():
    """At a width of 8 of 32, a depth of 2 of 4 and 64 of 1,000 samples, by hand."""
    of_sample = "{depth} * (12 * {width}**2 + 100 * width)"
    one = study(**IN_ALL, program=program(command=READS_ALL, cost=of_sample))
    point = points(one)[0]
    assert dict(point) == {"width": 8, "depth": 2, "training_samples": 64}
    expected = 2 * (12 * 64 + 800) / (4 * (12 * 1024 + 3200))
    assert cost_share_of_sizes(one, point) == pytest.approx(expected * 64 / 1000)
    assert sample_cost_share(one, point) == pytest.approx(expected)
    whole = study(
        **IN_ALL, program=program(command=READS_ALL, cost=f"({of_sample}) * {{samples}} + 5e4")
    )
    told = (2 * 1568 * 64 + 5e4) / (4 * 15488 * 1000 + 5e4)
    assert cost_share_of_sizes(whole, point) == pytest.approx(told)


def test_the_formula_decides_which_sizes_are_cheap_and_get_more_trials():
    turned = study(**OF_PROGRAM, program=program(cost="1 / {width}"))
    assert [dict(point)["width"] for point in points(turned)] == [64, 32]
    shares = [
        sum(rung.trainings for rung in rungs.values())
        for rungs in budgets_by_sizes(turned).values()
    ]
    free, weights = 40 - 2 * 2, [64**0.5, 32**0.5]
    assert shares[1] == 2 + int(free * weights[1] / sum(weights))


FIGURES = {
    "parameters": "12 * {width}**2",
    "gradient_tensors": 20,
    "flops_per_sample": "72 * {width}**2",
    "activation_bytes_per_sample": "400 * {width}",
    "sample_bytes": 0.0,
}


def test_a_plan_has_the_figures_of_the_full_scale():
    spec = study(**OF_PROGRAM, program=program(cost=FIGURES))
    assert workload_data(spec)["cost"] == {
        **FIGURES,
        "parameters": 12 * 128**2,
        "flops_per_sample": 72 * 128**2,
        "activation_bytes_per_sample": 51200,
    }
    assert cost_share_of_sizes(spec, points(spec)[0]) == pytest.approx(1 / 16)
    cost = workload_cost(load_workload("program", workload_data(spec)))
    assert (cost.parameters, cost.flops_per_sample) == (12 * 128**2, 72 * 128**2)
    assert parse_study(spec.to_yaml()) == spec
    with pytest.raises(WorkloadError, match="a program's cost cannot be measured"):
        workload_cost(load_workload("program", program()))


def test_a_program_is_told_its_length_in_samples():
    spec = study(**IN_ALL, program=program(command=READS_ALL, cost="{depth} * {width}"))
    settings = TrainingSettings(learning_rate=0.01, own=dict(points(spec)[0]))
    job = training_job(spec, settings, 16, seed=0)
    assert spec.program is not None
    here = Path("here")
    values = trial_values(job, spec.program.options, ProgramPlace(here), ProgramFiles(here))
    assert values["samples"] == 64 and values["width"] == 8


@pytest.mark.parametrize(
    ("cost", "told"),
    [
        (
            None,
            "cost must give the cost of a sample for every model size, as a formula of {width}, which the ladder "
            "varies, but there is none; add cost: '{width}**2' if that fits",
        ),
        ({**FIGURES, "flops_per_sample": 1e9}, "but its flops_per_sample is a number or missing"),
        ("{widht}**2", "but in '{widht}**2' 'widht' is not allowed; did you mean 'width'?"),
        ("7", "cost must contain {width}, which varies over the ladder, but got '7'; add it"),
        ("{width} * {depth}", "but '{width} * {depth}' contains {depth}; write its value"),
        ({**FIGURES, "parameters": "{depth}*2"}, "contains {depth}; write its value"),
        ({**FIGURES, "parameters": "{samples}"}, "numbers, {width}, {depth}, + - * / ** and paren"),
        (
            "{width} - 40",
            "a cost must be a finite number above 0 at every size, but '{width} - 40' is -8 at width 32",
        ),
        ("{width} / (128 - {width})", "not a number at width 128"),
        ("({width} - 40)**0.5", "not a number at width 32"),
        ("{width}**9999", "not a number at width 32"),
        ("__import__('os').system('true')", "is not allowed"),
        ("width.real", "'width.real' is not allowed"),
        ("{width} if 1 else 2", "is not allowed"),
        ("{width} // 2", "is not allowed"),
        ("~{width}", "is not allowed"),
        ("'a' * {width}", "'a' is not a number"),
        ("2j * {width}", "2j is not a number"),
        ("True * {width}", "True is not a number"),
        ("{width} *", "in '{width} *' the syntax is invalid"),
        ("", "in '' the syntax is invalid"),
        ("(" * 240 + "{width}" + ")" * 240, "the syntax is invalid"),
        ("{width}" + "+1" * 300, "a cost must have at most 500 characters, but has 607"),
    ],
)
def test_a_cost_that_is_none_says_the_rule_and_the_way_out(cost: Any, told: str):
    assert told in faults(**OF_PROGRAM, program=program(cost=cost))


def test_a_cost_reads_no_size_where_nothing_grows():
    plain = {
        "ladder": [16, 32],
        "full_scale": {"global_batch_size": 64},
        "budget": {"trials": 9, "epochs_per_trial": 9},
        "target": HOW_SOON["target"],
    }
    its = program(command=PROGRAM["command"][:-1])
    told = faults(**{**OF_PROGRAM, **plain}, program=its)
    assert (
        "cost may contain only what varies over the ladder, nothing, but '6 * 12 * {width}**2' "
        "contains" in told
    )
    assert study(**{**OF_PROGRAM, **plain}, program={**its, "cost": "3 * (2 + 1)"})


def test_a_program_that_only_trains_longer_needs_no_cost():
    within = {
        "ladder": {"global_batch_size": [16, 32], "samples": [64, 256]},
        "full_scale": {"global_batch_size": 64, "samples": 1000},
        "target": {"metric": "loss", "best_within": {"samples": 1000}},
    }
    command = PROGRAM["command"][:-1]
    spec = study(workload="program", data={}, **within, program=program(command=command, cost=None))
    assert cost_share_of_sizes(spec, points(spec)[0]) == pytest.approx(0.064)


def test_a_width_that_the_network_cannot_have_is_told_before_anything_is_trained():
    pytest.importorskip("torch")
    spec = study(ladder={**PLAIN["ladder"], "width": [24, 64]})
    with pytest.raises(SpecError, match=r"at width 24, samples 2048: .*head_size"):
        check_workload(spec)


def test_lengths_are_shares_of_the_epochs_of_the_full_scale():
    spec = study()
    (full,) = {dict(full_scale_sizes(spec))["training_samples"]}
    epochs = [
        training_job(spec, TrainingSettings(own=dict(point), warmup_epochs=0), 16, seed=0).epochs
        for point in points(spec)
    ]
    assert sorted(set(epochs)) == [2048 / full * 8, 8192 / full * 8]
    assert math.isclose(spec.budget.epochs_per_trial, 8.0)


def test_the_speed_of_the_large_model_is_that_of_the_largest_timed_over_its_cost():
    spec = study()

    def trial(width: int, batch: int, seconds: float) -> Trial:
        return Trial(
            id=1,
            study_id=1,
            number=0,
            global_batch_size=batch,
            seed=0,
            settings={"width": width, "training_samples": 2048},
            state=TrialState.CENSORED,
            purpose=TrialPurpose.SWEEP,
            reason="",
            started_at=None,
            finished_at=None,
            epochs=1.0,
            seconds=seconds,
        )

    trials = [trial(32, 32, 1.0), trial(64, 16, 8.0), trial(64, 32, 4.0)]

    def operations(width: int) -> float:  # of 32 positions: 6 a weight, and 12 n a layer and width
        return 6 * (12 * 2 * width**2 + 256 * width) + 12 * 2 * 32 * width

    share = operations(64) / operations(128)
    assert 0.25 < share < 0.3  # the output over the bytes grows as the width alone
    assert worker_throughput(trials, 2048, spec) == pytest.approx(
        2048 / 4 * share
    )  # 512 a second there
    assert (
        worker_throughput(trials, 2048) == (2048 + 512) / 2
    )  # of all that were timed at the largest batch


def test_a_new_study_must_not_warm_up_for_longer_than_its_shortest_run():
    """The shortest run has 2,048 of the 2,048 samples of an epoch."""

    def new(warmup: Any, **others: Any) -> None:
        search = {**PLAIN["search"], "warmup_epochs": warmup, "decay": "cosine", **others}
        study(search=search).check_new()

    with pytest.raises(SpecError, match=r"of every run, .* up to 2 and runs of 1 epochs"):
        new({"uniform": [0, 2]})
    with pytest.raises(SpecError, match="up to 1 and runs of 1 epochs"):
        new(1.0)
    new({"uniform": [0, 1]})
    new(0.5)
    new({"uniform": [0, 2]}, decay_epochs=8.0)
    new({"uniform": [0, 2]}, decay="constant")
