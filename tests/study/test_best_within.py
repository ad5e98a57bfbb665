"""target: {best_within: ...}: the other question of a study, read from its file and checked."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hpo.errors import SpecError
from hpo.study.jobs import training_job
from hpo.study.spec import StudySpec, check_study_target, parse_study
from search_spaces.settings import TrainingSettings

PLAIN: dict[str, Any] = {
    "name": "best",
    "workload": "noisy_quadratic",
    "data": {"train_samples": 1000},
    "target": {"metric": "loss", "best_within": {"epochs": 20}},
    "ladder": [16, 32],
    "search": {"learning_rate": {"log_uniform": [0.01, 1], "role": "scaled"}},
    "budget": {"trials": 8},
}
PROGRAM = {
    "command": ["train", "--lr={learning_rate}", "--batch={global_batch_size}"],
    "train_samples": 500,
    "report": {"metrics": {"reward": True, "regret": False}},
}


def study(**changes: Any) -> StudySpec:
    values = copy.deepcopy(PLAIN)
    for key, value in changes.items():
        values[key] = {**values[key], **value} if key in ("target", "budget", "data") else value
    return StudySpec.from_dict(values)


def faults(**changes: Any) -> str:
    with pytest.raises(SpecError) as caught:
        study(**changes)
    return str(caught.value)


def test_every_training_goes_to_the_end_of_the_budget() -> None:
    spec = study()
    assert spec.budget.epochs_per_trial == 20
    assert spec.question.fixed and spec.question.epochs == 20
    job = training_job(spec, TrainingSettings(learning_rate=0.1), 16, seed=0)
    assert job.epochs == 20
    assert not job.target.ends and not job.target.reached(0.0)
    assert str(job.target) == "the best loss"


def test_it_survives_its_own_text() -> None:
    spec = study()
    again = parse_study(spec.to_yaml())
    assert again == spec and again.to_yaml() == spec.to_yaml()
    assert spec.to_dict()["target"] == {"metric": "loss", "best_within": {"epochs": 20.0}}


def test_samples_and_tokens_count_in_epochs_where_the_study_tells_their_number() -> None:
    assert study(target={"best_within": {"samples": 5000}}).budget.epochs_per_trial == 5
    spec = study(
        target={"best_within": {"tokens": 64_000}},
        data={"sequence_length": 32},
        workload="language",
    )
    assert spec.budget.epochs_per_trial == 2  # 1,000 sequences of 32 tokens in an epoch


def test_a_metric_of_a_program_that_is_no_name_is_a_fault() -> None:
    target = {"metric": ["reward"], "best_within": {"samples": 1000}}
    told = faults(workload="program", program=PROGRAM, target=target, data={})
    assert "target.metric must be text, but got ['reward']" in told


def test_a_program_says_itself_which_way_its_metric_is_better() -> None:
    for metric, higher in (("reward", True), ("regret", False)):
        target = {"metric": metric, "best_within": {"samples": 1000}}
        spec = study(workload="program", program=PROGRAM, target=target, data={})
        assert spec.target.higher_is_better is higher
        assert spec.budget.epochs_per_trial == 2
        assert parse_study(spec.to_yaml()) == spec


@pytest.mark.parametrize(
    ("metric", "higher"),
    [
        ("loss", False),
        ("top1", True),
        ("iou", True),
        ("eval_loss", False),
        ("bits_per_byte", False),
    ],
)
def test_the_name_of_a_metric_says_which_way_it_is_better(metric: str, higher: bool) -> None:
    assert study(target={"metric": metric}).target.higher_is_better is higher


def test_a_direction_says_it_where_the_name_does_not() -> None:
    assert not study(target={"metric": "distance", "direction": "minimize"}).target.higher_is_better


def test_a_direction_against_that_of_the_workload_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"direction must be minimize with distance.*write"):
        check_study_target(study(target={"metric": "distance"}), {"distance": False})
    check_study_target(study(), {"loss": False})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"at_most": 0.1}}, "got at_most and best_within; use a second study"),
        ({"target": {"at_least": 0.1}}, "got at_least and best_within"),
        ({"target": {"best_within": None}}, "exactly one of at_least and at_most, but got neither"),
        (
            {"target": {"best_within": {}}},
            "exactly one of epochs, samples and tokens, but got none",
        ),
        (
            {"target": {"best_within": {"epochs": 2, "samples": 3}}},
            "exactly one of epochs, samples and tokens, but got epochs and samples",
        ),
        ({"target": {"best_within": {"epochs": 0}}}, "epochs must be above 0"),
        ({"target": {"best_within": {"epochs": "many"}}}, "must be a number, but got 'many'"),
        ({"target": {"best_within": {"steps": 9}}}, "unknown key 'steps'"),
        (
            {"target": {"direction": "up"}},
            "direction must be one of maximize or minimize, but got 'up'",
        ),
        ({"budget": {"epochs_per_trial": 30}}, "the 20 epochs of target.best_within"),
        ({"sampler": "forecast"}, "sampler forecast needs a target that ends training"),
        ({"budget": "auto"}, "budget: auto needs a target that ends training"),
        ({"budget": {"race": 1000}}, "a race needs a target that ends training"),
        (
            {"target": {"best_within": {"samples": 31}}},
            "at least one update at every batch size of the study, but got 31 samples, which "
            "is less than one batch of 32",
        ),
        (
            {"target": {"best_within": {"tokens": 1000}}},
            "needs the number of tokens in an epoch (data: train_samples and sequence_length)",
        ),
    ],
)
def test_what_cannot_be_asked_is_one_clear_error(changes: dict[str, Any], message: str) -> None:
    if changes.get("budget") == "auto":
        values = {**copy.deepcopy(PLAIN), "budget": "auto"}
        with pytest.raises(SpecError) as caught:
            StudySpec.from_dict(values)
        said = str(caught.value)
    else:
        said = faults(**changes)
    assert message in said


def test_samples_of_a_data_set_of_unknown_size_are_an_error_with_the_way_out() -> None:
    values = {**copy.deepcopy(PLAIN), "data": {}, "budget": {"trials": 8, "epochs_per_trial": 3}}
    values["target"]["best_within"] = {"samples": 5000}
    with pytest.raises(SpecError, match=r"data: train_samples.*give best_within: \{epochs"):
        StudySpec.from_dict(values)


def test_a_direction_belongs_to_the_best_alone() -> None:
    with pytest.raises(SpecError, match="direction may be used only with best_within"):
        study(target={"best_within": None, "at_most": 0.1, "direction": "minimize"})


def test_nothing_is_raced_and_a_threshold_stays_what_it_was() -> None:
    full = {"global_batch_size": 64}
    assert study(full_scale=full).race_batch is None
    soon = study(
        full_scale=full,
        target={"best_within": None, "at_most": 0.1},
        budget={"epochs_per_trial": 9},
    )
    assert soon.race_batch == 64
    assert not soon.question.fixed and soon.to_dict()["target"] == {
        "metric": "loss",
        "at_most": 0.1,
    }
