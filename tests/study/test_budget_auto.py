"""``budget: auto``: the search ends by itself, and what the study file needs for that."""

import pytest

from hpo.errors import SpecError
from hpo.study.spec import MOST_TRIALS, StudySpec, parse_study

STUDY = {
    "name": "auto",
    "workload": "noisy_quadratic",
    "target": {"metric": "loss", "at_most": 0.1},
    "ladder": [16, 32, 64],
    "full_scale": {"global_batch_size": 256},
    "search": {"learning_rate": {"log_uniform": [0.01, 1.0], "role": "scaled"}},
}


@pytest.mark.parametrize(
    ("budget", "epochs"),
    [("auto", 90), ({"trials": "auto"}, 90), ({"trials": "auto", "epochs_per_trial": 40}, 40)],
)
def test_it_is_the_search_that_ends_by_itself(budget, epochs):
    spec = StudySpec.from_dict({**STUDY, "budget": budget})
    assert spec.sampler == "forecast" and spec.budget.ends_by_itself
    assert (spec.budget.trials, spec.budget.epochs_per_trial) == (MOST_TRIALS, epochs)
    assert spec.budget.counted(7) == "7 trials"
    assert spec.to_dict()["budget"]["trials"] == "auto"
    again = parse_study(spec.to_yaml())
    assert again == spec and again.budget.ends_by_itself


def test_a_budget_of_trials_is_none():
    spec = StudySpec.from_dict({**STUDY, "budget": {"trials": 100, "epochs_per_trial": 90}})
    assert spec.sampler == "forecast" and not spec.budget.ends_by_itself
    assert spec.budget.counted(7) == "7 of 100 trials"
    assert spec != StudySpec.from_dict({**STUDY, "budget": "auto", "sampler": "forecast"})


@pytest.mark.parametrize(
    ("word", "sampler"),
    [("{accumulation}", "forecast"), ("{micro_batch_size}", "forecast"), ("{epochs}", "tpe")],
)
def test_a_program_is_searched_at_full_scale_only_where_it_can_accumulate_gradients(word, sampler):
    program = {
        "command": ["python", "train.py", "{learning_rate}", "{global_batch_size}", word],
        "train_samples": 500,
        "report": {"metrics": {"top1": True}},
    }
    changes = {
        "workload": "program",
        "program": program,
        "budget": {"trials": 100, "epochs_per_trial": 90},
    }
    assert StudySpec.from_dict({**STUDY, **changes}).sampler == sampler


@pytest.mark.parametrize(
    ("changes", "sampler"),
    [
        ({}, "forecast"),
        ({"sampler": "tpe"}, "tpe"),
        ({"full_scale": None}, "tpe"),
        ({"budget": {"trials": 9, "epochs_per_trial": 90}}, "tpe"),
        ({"budget": {"trials": 10, "epochs_per_trial": 90}}, "forecast"),
        ({"ladder": [16, 32, 64, 512]}, "forecast"),
        ({"budget": {"trials": 100, "epochs_per_trial": 90, "race": 0}}, "tpe"),
        (
            {"target": {"metric": "loss", "best_within": {"epochs": 5}}, "budget": {"trials": 9}},
            "tpe",
        ),
        ({"search": {"learning_rate": {"log_uniform": [0.01, 1.0], "role": "shared"}}}, "tpe"),
        ({"search": {"warmup_epochs": {"uniform": [0, 5], "role": "scaled"}}}, "tpe"),
        (
            {
                "search": {
                    "learning_rate": {"log_uniform": [0.01, 1.0], "role": "scaled"},
                    "momentum": {"choice": [0.8, 0.9], "role": "scaled"},
                }
            },
            "tpe",
        ),
    ],
)
def test_a_study_is_searched_at_full_scale_unless_it_says_otherwise_or_cannot_be(changes, sampler):
    budget = {"trials": 100, "epochs_per_trial": 90}
    spec = StudySpec.from_dict(
        {key: value for key, value in {**STUDY, "budget": budget, **changes}.items() if value}
    )
    assert spec.sampler == sampler
    assert StudySpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "tpe"}, "needs a sampler that stops by itself .forecast., but got tpe"),
        (
            {"search": {"learning_rate": {"log_uniform": [0.01, 1.0], "role": "shared"}}},
            "needs a setting with role: scaled",
        ),
        (
            {"search": {"learning_rate": {"choice": [0.1, 0.2], "role": "scaled"}}},
            "learning_rate is a choice",
        ),
        ({"budget": "some"}, "budget must be a mapping"),
        ({"budget": {"trials": "some", "epochs_per_trial": 3}}, "budget.trials must be a whole"),
        ({"budget": {"trials": "auto", "ends_by_itself": True}}, "ends_by_itself"),
    ],
)
def test_what_it_cannot_end_says_the_rule_and_the_way_out(changes, message):
    with pytest.raises(SpecError, match=message):
        StudySpec.from_dict({**STUDY, "budget": "auto", **changes})
