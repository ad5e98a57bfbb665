"""A study that asks for the best within a fixed budget: what is sampled, repeated, stopped, forecast and planned."""

from __future__ import annotations

import dataclasses
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from test_strategy import a_trial

import hpo
from hpo.planning.plan import BUDGET_FACTOR
from hpo.runs.losses import lost_trials_advice
from hpo.runs.results import PlannedRun, best_settings, rung_candidates
from hpo.runs.verdict import mean_epochs_of_runs, rule_verdicts
from hpo.study.budgets import rung_budgets
from hpo.study.spec import StudySpec
from hpo.tuning.generation.samplers import LadderSampler
from hpo.tuning.generation.strategy import ExploreSettings, RepeatTraining, next_task
from search_spaces.space import SearchSpace
from storage.records import NewOutcome, Outcome, PlanKind, Trial, TrialState
from storage.store import Store
from trainers.job import Question, Target

SPACE = SearchSpace.parse({"learning_rate": {"log_uniform": [0.001, 10.0], "role": "scaled"}})
TOP1 = Question(Target.best("top1", higher_is_better=True), 10.0)


def ended(number: int, best: float | None, rate: float, state: str = "censored") -> Trial:
    trial = a_trial(number, 16, TrialState(state), learning_rate=rate, seed=number)
    whole = state == "censored"
    return dataclasses.replace(
        trial,
        epochs=10.0 if whole else 3.0,
        best_metric=best if whole else None,
        final_metric=best,
    )


def test_the_settings_with_the_best_metric_are_repeated_and_not_the_quickest() -> None:
    budgets = rung_budgets((16,), 8, 2)
    trials = [ended(number, 0.5 + number / 100, 0.1 * (number + 1)) for number in range(6)]
    task = next_task(budgets, trials, TOP1)
    assert isinstance(task, RepeatTraining)
    assert task.settings["learning_rate"] == pytest.approx(0.6)
    assert isinstance(next_task(budgets, trials), ExploreSettings)  # none has reached a target


def test_a_sampler_looks_where_the_metric_is_best() -> None:
    """A bowl about a rate of 0.3: after thirty trainings TPE asks near it, as it does for epochs to a target."""
    sampler = LadderSampler(SPACE, (16,), sampler="tpe", name="best", epochs=10, question=TOP1)
    asked = []
    for number in range(40):
        _, settings, ticket = sampler.suggest(16)
        miss = math.log10(settings.learning_rate / 0.3)
        asked.append(abs(miss))
        trial = ended(number, 0.95 - 0.2 * miss**2, settings.learning_rate)
        sampler.tell(dataclasses.replace(trial, settings=settings.to_dict()), ticket)
    assert sum(asked[-10:]) / 10 < 0.5 * sum(asked[:10]) / 10


def test_what_was_stopped_or_lost_counts_as_worse_than_what_was_not() -> None:
    sampler = LadderSampler(SPACE, (16,), sampler="tpe", name="best", epochs=10, question=TOP1)
    for number, best in enumerate((0.9, 0.7)):
        sampler.tell(ended(number, best, 0.1))
    good, stopped, diverged = (
        sampler._value(ended(number, best, 0.2, state))
        for number, best, state in (
            (3, 0.9, "censored"),
            (4, 0.95, "pruned"),
            (5, None, "diverged"),
        )
    )
    assert good is not None and stopped is not None and diverged is not None
    assert good <= stopped < diverged
    assert diverged > math.log(0.3 / 0.7)  # than the worst
    assert sampler._value(ended(6, None, 0.2, "failed")) is None


def test_the_best_of_a_rung_is_that_with_the_best_metric_over_its_seeds() -> None:
    trials = [
        ended(0, 0.90, 0.1),
        ended(1, 0.92, 0.2),
        ended(2, 0.70, 0.2),  # the same settings, another seed
        ended(3, 0.99, 0.3, "pruned"),
    ]
    trials[2] = dataclasses.replace(trials[2], settings=trials[1].settings)
    found = rung_candidates(trials, 16, TOP1)
    assert [each.settings.learning_rate for each in found] == [0.1, 0.2]
    assert TOP1.told(found[0].need) == pytest.approx(0.90)
    best = best_settings(trials, TOP1)
    assert best is not None and best.runs == 2  # several seeds before a lucky one
    assert best_settings(trials) is None


STUDY = {
    "name": "best",
    "workload": "noisy_quadratic",
    "data": {"train_samples": 2048},
    "target": {"metric": "loss", "best_within": {"epochs": 12}},
    "ladder": [16, 32, 64],
    "full_scale": {"global_batch_size": 256},
    "search": {
        "optimizer": "sgd",
        "learning_rate": {"log_uniform": [0.001, 1], "role": "scaled"},
        "momentum": 0.9,
    },
    "budget": {"trials": 27},
    "seeds": 2,
}


def new_outcome(seed: int, best: float) -> dict[str, Any]:
    return {
        "seed": seed,
        "backend": "torch",
        "workers": 1,
        "state": TrialState.CENSORED,
        "epochs": 12.0,
        "seconds": 3.0,
        "best_metric": best,
    }


def outcome(seed: int, best: float) -> Outcome:
    return Outcome(id=seed, plan_id=1, created_at=datetime.now(UTC), **new_outcome(seed, best))


@pytest.mark.parametrize(
    ("direction", "values", "said"),
    [
        ("maximize", (69.6, 65.0), "top1 was 69.6, .* between 0 and 1: report shares instead"),
        ("minimize", (-2.1, -1.0), "top1 was -2.1, .* at least 0: report a loss or an error"),
    ],
)
def test_trials_whose_metric_has_no_shortfall_say_so_and_not_that_ranges_are_too_narrow(
    tmp_path: Path, direction: str, values: tuple[float, ...], said: str
) -> None:
    spec = StudySpec.from_dict(
        {
            "name": "out of range",
            "workload": "program",
            "program": {
                "command": ["train", "{learning_rate}", "{global_batch_size}"],
                "train_samples": 640,
                "report": {"metrics": {"top1": direction == "maximize"}},
            },
            "target": {"metric": "top1", "best_within": {"epochs": 2}, "direction": direction},
            "ladder": [16, 32],
            "full_scale": {"global_batch_size": 64},
            "search": {"learning_rate": {"log_uniform": [0.001, 10.0], "role": "scaled"}},
            "budget": {"trials": 2},
            "sampler": "random",
        }
    )
    storage = f"sqlite:///{tmp_path / 'hpo.db'}"
    with hpo.ask_tell(spec, storage) as study:
        for value in values:
            trial = study.ask()
            assert trial is not None
            with trial:
                for epochs in (1, 2):
                    trial.report(epochs=epochs, metric=value, steps=20 * epochs)
            assert trial.state == TrialState.CENSORED
        assert study.ask() is None
        assert re.search(f"no trial trained to the end .*: no forecast; {said}", study.message)
    result = hpo.read_study("out of range", storage)
    assert re.search(said, result.trials[0].reason)
    with pytest.raises(hpo.HpoError, match=said) as refused:
        hpo.forecast(result, 64)
    assert "learning rates" not in str(refused.value)
    with pytest.raises(hpo.HpoError, match=said):  # as `hpo forecast` does first
        hpo.fit_posterior(result, [64])
    advice = lost_trials_advice(spec.question, result.trials)
    assert re.match(said, advice) and advice.endswith("; then run the study under another name")
    assert "lower learning rates" in lost_trials_advice(spec.question, [])


@pytest.mark.slow
def test_a_study_from_its_file_to_its_outcomes(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'hpo.db'}"
    result = hpo.run_study(StudySpec.from_dict(STUDY), storage, folder=tmp_path)
    assert result.complete
    states = {trial.state for trial in result.trials}
    assert TrialState.REACHED not in states and TrialState.PRUNED in states
    assert all(trial.epochs == 12 for trial in result.trials if trial.state is TrialState.CENSORED)
    made = result.forecast
    assert made is not None and made.numbers.best is not None
    told = made.numbers.best.interval
    assert 0 < told.low < told.median < told.high
    assert result.plan is not None
    plan = result.plan.plan
    assert plan.best == made.numbers.best
    rule = dataclasses.replace(plan, kind=PlanKind.NO_SCALING, best=None, epochs=None)
    run = PlannedRun(plan, tuple(outcome(seed, told.median * 1.01) for seed in range(3)))
    worse = PlannedRun(rule, tuple(outcome(seed, told.median * 1.5) for seed in range(3)))
    assert run.plan.job.epochs == 12 < BUDGET_FACTOR * 12  # a budget is a budget
    assert not run.plan.job.target.ends
    assert run.observed_epochs is None
    assert run.observed_best == pytest.approx(told.median * 1.01) and run.inside
    assert PlannedRun(plan, (outcome(0, told.high * 1.1),)).inside is False
    assert worse.inside is None
    mean = mean_epochs_of_runs(run)
    assert mean is not None and mean.epochs == pytest.approx(told.median * 1.01)
    assert rule_verdicts(run, [worse]) == [
        "against no scaling: the forecast leaves 33 % less loss (without scatter)"
    ]
    document = result.to_dict()
    assert document["study"]["target"] == {
        "metric": "loss",
        "threshold": None,
        "higher_is_better": False,
    }
    assert document["rungs"][0]["best_epochs_to_target"] is None
    assert document["rungs"][0]["best_metric"] > 0
    again = hpo.run_study(StudySpec.from_dict(STUDY), storage, folder=tmp_path)
    assert len(again.trials) == len(result.trials)
    with Store.open(storage) as store:
        store.add_outcome(NewOutcome(plan_id=plan.id or 0, **new_outcome(0, told.median)))
    (row,) = hpo.calibration(storage)
    assert row.inside is None and row.predicted_epochs_median is None  # no forecast of the epochs
