"""``budget: auto``: the search ends by itself, and what the study file must say for that."""

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
    assert spec.sampler == "tpe" and not spec.budget.ends_by_itself
    assert spec.budget.counted(7) == "7 of 100 trials"
    assert spec != StudySpec.from_dict({**STUDY, "budget": "auto", "sampler": "forecast"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "tpe"}, "needs a sampler that ends by itself .forecast., but got tpe"),
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
