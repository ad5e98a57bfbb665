"""A sweep, a race and a search of a study with constraints: trials that break one do not guide what is tried next."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_strategy import a_trial

import hpo
from hpo.extrapolation.evidence.stored import trial_as_counted
from hpo.runs.results import best_settings
from hpo.study.budgets import rung_budgets
from hpo.tuning.generation.race import RaceCourse, next_race_entry
from hpo.tuning.generation.samplers import LadderSampler
from hpo.tuning.generation.strategy import RepeatTraining, next_task
from search_spaces.space import SearchSpace
from storage.records import Trial, TrialState
from trainers.job import Constraint, Question, Target

SPACE = SearchSpace.parse({"learning_rate": {"log_uniform": [0.01, 1.0], "role": "scaled"}})
HELD = Question(Target("top1", 0.9), constraints=(Constraint("top5", 0.95, at_most=False),))


def reached(number: int, rate: float, epochs: float, top5: float | None) -> Trial:
    trial = a_trial(number, 16, TrialState.REACHED, epochs=epochs, learning_rate=rate, seed=number)
    return dataclasses.replace(
        trial,
        final_metric=0.91,
        measures=None if top5 is None else {"top5": top5},
        settings={**trial.settings, "learning_rate": rate},
    )


def asked(sampler: str, question: Question, count: int = 40) -> list[float]:
    """The rates that a sampler asks for where the epochs fall with the rate, and top5 is lost above 0.2."""
    made = LadderSampler(SPACE, (16,), sampler=sampler, name="held", epochs=40, question=question)
    rates = []
    for number in range(count):
        _, settings, ticket = made.suggest(16)
        rate = settings.learning_rate
        trial = reached(number, rate, 3.0 / math.sqrt(rate), 0.95 - 0.1 * math.log(rate / 0.2))
        made.tell(
            trial_as_counted(dataclasses.replace(trial, settings=settings.to_dict()), question),
            ticket,
        )
        rates.append(rate)
    return rates


@pytest.mark.parametrize("sampler", ["tpe", pytest.param("gp", marks=pytest.mark.slow), "cmaes"])
def test_samplers_look_for_the_best_that_keeps_the_constraint(sampler: str) -> None:
    free, held = (
        asked(sampler, question) for question in (dataclasses.replace(HELD, constraints=()), HELD)
    )
    assert sum(rate > 0.3 for rate in free[-12:]) >= 9
    assert sum(rate <= 0.25 for rate in held[-12:]) >= 8, "a Gaussian process asks at the very edge"
    assert max(rate for rate in held if rate <= 0.2) > 0.15


def test_a_resumed_sampler_knows_what_broke_the_constraint() -> None:
    """What is told without a ticket reaches Optuna's own records of constraints."""
    sampler = LadderSampler(SPACE, (16,), sampler="tpe", name="held", epochs=40, question=HELD)
    for number, (rate, top5) in enumerate(((0.5, 0.9), (0.1, 0.96), (0.2, None))):
        sampler.tell(trial_as_counted(reached(number, rate, 4.0, top5), HELD))
    told = [trial.constraints["top5"] for trial in sampler._rungs[16].trials]
    assert told[0] > 0 >= told[1]
    assert told[2] > 0


def test_the_best_settings_that_keep_it_are_repeated_and_used() -> None:
    trials = [reached(n, 0.1 * (n + 1), 10.0 - n, 0.96 if n < 3 else 0.9) for n in range(6)]
    task = next_task(rung_budgets((16,), 8, 2), trials, HELD)
    assert isinstance(task, RepeatTraining)
    assert task.settings["learning_rate"] == pytest.approx(0.3)
    best = best_settings(trials, HELD)
    assert best is not None and best.settings.learning_rate == pytest.approx(0.3)


def test_a_race_repeats_no_settings_that_break_it() -> None:
    def entry(rate: float) -> dict[str, Any]:
        return {**a_trial(0, 16, TrialState.REACHED).settings, "learning_rate": rate}

    rates = (0.2, 0.1, 0.4)
    course = RaceCourse(
        16, tuple(entry(r) for r in rates), epochs=9.0, limit_epochs=20, most_epochs=500
    )
    trials = [
        trial_as_counted(dataclasses.replace(reached(n, rate, epochs, top5), purpose="race"), HELD)
        for n, (rate, epochs, top5) in enumerate(
            ((0.2, 6.0, 0.96), (0.1, 8.0, 0.97), (0.4, 4.0, 0.9))
        )
    ]
    following = next_race_entry(course, trials)
    assert isinstance(following, dict)
    assert following["learning_rate"] == 0.2


CELLS = """\
name: held
workload: slow_workload:Here
data: {{log: {log}, seconds: 0}}
target: {{metric: accuracy, at_least: 0.9}}
ladder: [8, 16]
search:
  learning_rate: {{log_uniform: [0.05, 2.0], role: scaled}}
  normalization_batch_size: 1
budget: {{trials: 14, epochs_per_trial: 20, race: 0}}
seeds: 2
constraints: {{{constraints}}}
sampler: {sampler}
"""


def swept(folder: Path, constraints: str, sampler: str = "tpe") -> hpo.StudyResult:
    (folder / "slow_workload.py").write_bytes(
        (Path(__file__).parent / "slow_workload.py").read_bytes()
    )
    text = CELLS.format(log=folder / "log", constraints=constraints, sampler=sampler)
    (folder / "study.yaml").write_text(text)
    return hpo.run_study(
        hpo.load_study(folder / "study.yaml"), storage=f"sqlite:///{folder / 'hpo.db'}"
    )


def repeated(trials: Sequence[Trial]) -> list[Trial]:
    keys = [trial.settings_key for trial in trials]
    return [trial for trial in trials if keys.count(trial.settings_key) > 1]


def test_a_sweep_keeps_what_its_trainings_tell_and_repeats_what_keeps_the_constraints(
    tmp_path: Path,
) -> None:
    result = swept(tmp_path, "memory_gb: {at_most: 100}, loss: {at_most: 0.35}")
    ended = [trial for trial in result.trials if trial.state is TrialState.REACHED]
    assert ended
    for trial in ended:
        assert trial.measures is not None and 0 < trial.measures["loss"] < 5
        assert trial.memory_bytes is not None and 2e7 < trial.memory_bytes < 1e11
    broken = [trial for trial in ended if trial.measures and trial.measures["loss"] > 0.35]
    assert broken, "the bound is such that some break it"
    question = result.spec.question
    first = repeated(result.trials)
    assert any(question.need(trial) is not None for trial in first)
    best = best_settings(result.trials, question)
    assert best is not None
    used = [t for t in ended if t.settings["learning_rate"] == best.settings.learning_rate]
    assert all(not question.broken(trial) for trial in used)
    memory, loss = result.keeping
    assert memory.broken == 0 and loss.broken == len(broken) + sum(
        trial.state is TrialState.CENSORED and (trial.measures or {})["loss"] > 0.35
        for trial in result.trials
    )


def test_a_study_none_of_whose_trainings_keep_the_constraints_says_which(tmp_path: Path) -> None:
    result = swept(tmp_path, "memory_gb: {at_most: 0.001}")
    assert not result.answered
    with pytest.raises(
        hpo.HpoError, match=r"reached the target within the constraints \(memory_gb"
    ):
        hpo.forecast(result, 32)
