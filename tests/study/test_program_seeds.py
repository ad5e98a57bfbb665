"""When a program must read its seed: if a configuration is trained with several seeds, and where that happens."""

from typing import Any

import pytest

from hpo.errors import SpecError
from hpo.runs.checks import check_full_scale
from hpo.study.spec import StudySpec

STUDY: dict[str, Any] = {
    "name": "own",
    "workload": "program",
    "program": {
        "command": ["python", "train.py", "{learning_rate}", "{global_batch_size}"],
        "train_samples": 500,
        "report": {"metrics": {"top1": True}},
    },
    "target": {"metric": "top1", "at_least": 0.9},
    "ladder": [16, 32],
    "search": {"learning_rate": {"log_uniform": [0.01, 1.0], "role": "scaled"}},
    "budget": {"trials": 4, "epochs_per_trial": 10},
}
WITHOUT_RACE = {"trials": 4, "epochs_per_trial": 10, "race": 0}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"full_scale": {"global_batch_size": 256}, "budget": WITHOUT_RACE},
        {"full_scale": {"global_batch_size": 32}},
    ],
    ids=["no full scale", "no race", "full scale is swept"],
)
def test_where_nothing_is_repeated_the_seed_need_not_be_read(changed):
    assert StudySpec.from_dict({**STUDY, **changed}).repeated == ""


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"seeds": 2}, "seeds: 2 repeats the best settings"),
        (
            {
                "full_scale": {"global_batch_size": 256, "machine": "local", "validate": True},
                "budget": WITHOUT_RACE,
            },
            "trains the plan with several seeds",
        ),
    ],
    ids=["seeds", "validation"],
)
def test_what_repeats_says_why_the_seed_must_be_read(changed, why):
    with pytest.raises(SpecError, match=r"the command must contain \{seed\}") as refused:
        StudySpec.from_dict({**STUDY, **changed})
    assert why in str(refused.value)
    read = {**STUDY["program"], "command": [*STUDY["program"]["command"], "{seed}"]}
    assert StudySpec.from_dict({**STUDY, **changed, "program": read}).repeated


def test_a_race_asks_for_the_seed_where_the_study_is_run_and_not_where_it_only_takes_past_runs():
    """What is read and imported into is a study; only what trains needs its repetitions to differ."""
    raced = {"full_scale": {"global_batch_size": 256}}
    searched = StudySpec.from_dict({**STUDY, **raced, "sampler": "forecast"})
    check_full_scale(searched)  # the search repeats nothing
    spec = StudySpec.from_dict({**STUDY, **raced})
    with pytest.raises(
        SpecError, match=r"must contain \{seed\}: the race at 256 .*budget: \{race: 0\}"
    ):
        check_full_scale(spec)
    read = {**STUDY["program"], "command": [*STUDY["program"]["command"], "{seed}"]}
    check_full_scale(StudySpec.from_dict({**spec.to_dict(), "program": read}))
