"""The section ``constraints``: its syntax, and how a trial that breaks one counts."""

from __future__ import annotations

import pytest

from hpo.errors import SpecError
from hpo.study.spec import StudySpec, check_study_constraints, parse_study
from storage.records import Trial, TrialState
from trainers.job import HOW_SOON, Constraint, Question, Target

STUDY = """
name: digits
workload: resnet
data: {source: digits}
target: {metric: top1, at_least: 0.96}
ladder: [16, 32]
search: {optimizer: sgd, learning_rate: {log_uniform: [0.01, 1.28], role: scaled}}
budget: {trials: 8, epochs_per_trial: 4}
constraints: CONSTRAINTS
"""
PROGRAM = """
name: mine
workload: program
program:
  command: [python, train.py, --rate, "{learning_rate}", --batch, "{global_batch_size}"]
  train_samples: 1000
  report: {metrics: {top1: true, top5: true}PATTERN}
target: {metric: top1, at_least: 0.96}
ladder: [16, 32]
search: {learning_rate: {log_uniform: [0.01, 1.28], role: scaled}}
budget: {trials: 8, epochs_per_trial: 4}
constraints: CONSTRAINTS
"""
METRICS = {"top1": True, "top5": True, "loss": False}


def study(constraints: str) -> StudySpec:
    return parse_study(STUDY.replace("CONSTRAINTS", constraints))


def test_constraints_are_read_and_written_back() -> None:
    spec = study("{memory_gb: {at_most: 16}, top5: {at_least: 0.9}}")
    assert spec.constraints == (
        Constraint("memory_gb", 16.0),
        Constraint("top5", 0.9, at_most=False),
    )
    assert spec.question.constraints == spec.constraints
    assert parse_study(spec.to_yaml()) == spec
    assert "constraints" not in parse_study(STUDY.replace("constraints: CONSTRAINTS", "")).to_dict()


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ("{memory_gb: {at_mots: 16}}", "unknown key 'at_mots'; did you mean 'at_most'"),
        ("[memory_gb]", "must be a mapping, such as {memory_gb: {at_most: 16}}"),
        ("{top1: {at_least: 0.5}}", "must not be the target's metric"),
        ("{memory_gb: {at_least: 3}}", "at_most a number of gigabytes above 0, but got at_least 3"),
        ("{seconds_per_sample: {at_most: 0}}", "at_most a number of seconds above 0"),
        ("{loss: {at_most: 1, at_least: 0}}", "exactly one of at_most and at_least, but got both"),
        ("{loss: {}}", "but got neither"),
        ("{loss: {at_most: true}}", "must be a finite number, but got True"),
        ("{loss: 3}", "must be a mapping, such as {at_most: 16}, but got 3"),
    ],
)
def test_what_is_no_constraint_names_the_rule_and_its_line(constraints: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        study(constraints)
    assert message in str(raised.value)
    assert "line 9" in str(raised.value)


def test_a_workload_must_tell_what_it_is_held_to() -> None:
    with pytest.raises(SpecError, match=r"but got 'tpo5'; did you mean 'top5'"):
        check_study_constraints(study("{tpo5: {at_least: 0.9}}"), METRICS, memory=True)
    with pytest.raises(SpecError, match=r"top5\.at_least must be used with top5, which is better"):
        check_study_constraints(study("{top5: {at_most: 0.9}}"), METRICS, memory=True)
    with pytest.raises(SpecError, match=r"memory_gb must be measured, but workload 'resnet'"):
        check_study_constraints(study("{memory_gb: {at_most: 9}}"), METRICS, memory=False)
    check_study_constraints(
        study("{top5: {at_least: 0.9}, loss: {at_most: 2}, memory_gb: {at_most: 9}}"),
        METRICS,
        memory=True,
    )


def program(constraints: str, pattern: str = "") -> StudySpec:
    text = PROGRAM.replace("CONSTRAINTS", constraints)
    return parse_study(text.replace("PATTERN", f", pattern: '{pattern}'" if pattern else ""))


def test_a_program_must_report_what_it_is_held_to() -> None:
    assert program("{top5: {at_least: 0.9}, memory_gb: {at_most: 3}}").constraints
    with pytest.raises(SpecError, match=r"but got 'top6'; did you mean 'top"):
        program("{top6: {at_least: 0.9}}")
    pattern = "epoch (?P<epochs>[0-9.]+) top1 (?P<top1>[0-9.]+)"
    with pytest.raises(SpecError, match=r"pattern has no group \(\?P<memory_gb>\.\.\.\)"):
        program("{memory_gb: {at_most: 3}}", pattern)
    assert program("{memory_gb: {at_most: 3}}", f"{pattern} gb (?P<memory_gb>[0-9.]+)").constraints
    assert program("{seconds_per_sample: {at_most: 3}}", pattern).constraints


def test_memory_is_not_that_of_one_training_where_several_share_it() -> None:
    text = STUDY.replace("CONSTRAINTS", "{memory_gb: {at_most: 9}}")
    with pytest.raises(
        SpecError,
        match=r"with resources\.fused_trials trials share their "
        r"memory",
    ):
        parse_study(f"{text}\nresources: {{fused_trials: 4}}\n")


def trial(**values: object) -> Trial:
    known: dict[str, object] = {
        "id": 1,
        "study_id": 1,
        "number": 0,
        "state": TrialState.REACHED,
        "global_batch_size": 16,
        "seed": 0,
        "settings": {},
        "purpose": "sweep",
        "reason": "",
        "started_at": None,
        "finished_at": None,
        "epochs_to_target": 3.0,
        "epochs": 3.0,
        "seconds": 6.0,
        "samples": 3000,
        "memory_bytes": 2 * 10**9,
        "measures": {"top5": 0.91},
    }
    return Trial(**{**known, **values})  # type: ignore[arg-type]


def question(*constraints: Constraint) -> Question:
    return Question(Target("top1", 0.96), constraints=constraints)


def test_a_training_that_breaks_a_constraint_has_not_answered() -> None:
    assert HOW_SOON.need(trial()) == 3.0
    kept = question(
        Constraint("memory_gb", 2.0),
        Constraint("seconds_per_sample", 0.002),
        Constraint("top5", 0.91, at_most=False),
    )
    assert kept.need(trial()) == 3.0
    for constraint, said in (
        (Constraint("memory_gb", 1.9), "memory_gb 2 is not at most 1.9"),
        (Constraint("seconds_per_sample", 0.0019), "seconds_per_sample 0.002 is not at most"),
        (Constraint("top5", 0.92, at_most=False), "top5 0.91 is not at least 0.92"),
        (Constraint("top7", 0.92, at_most=False), "it did not report its top7"),
    ):
        assert question(constraint).need(trial()) is None
        assert said in question(constraint).broken(trial())


def test_within_a_fixed_budget_too() -> None:
    within = Question(Target.best("top1", higher_is_better=True), 3.0)
    ended = trial(state=TrialState.CENSORED, epochs_to_target=None, best_metric=0.8)
    assert within.need(ended) == pytest.approx(0.25)
    held = Question(within.target, 3.0, constraints=(Constraint("memory_gb", 1.0),))
    assert held.need(ended) is None
