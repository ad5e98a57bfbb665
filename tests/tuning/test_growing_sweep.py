"""A sweep over sizes that ends by itself: what it trains, why it continues, and when nothing is worth its cost."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpo
from hpo.dashboard import figures
from hpo.dashboard.page import rungs_table
from hpo.dashboard.points import metric_of_trial
from hpo.errors import SpecError
from hpo.extrapolation.inference.information import TrainingInformation
from hpo.runs.designs import design_name
from hpo.runs.exports.optuna_study import optuna_study
from hpo.runs.exports.tracking import tracked_parameters, tracked_rung_name
from hpo.runs.notebook import study_html
from hpo.study.sizes import cost_share_of_sizes, points, sizes_of_settings
from hpo.study.spec import StudySpec
from hpo.tuning.generation.growing import FIRST, MOST_COST, GrowingStrategy
from hpo.tuning.generation.strategy import ExploreSettings, SweepDone, WaitForTrainings
from storage.records import Trial, TrialPurpose, TrialState

STUDY: dict[str, Any] = {
    "name": "growing",
    "workload": "noisy_quadratic",
    "data": {"train_samples": 2048},
    "target": {"metric": "loss", "best_within": {"samples": 65536}},
    "ladder": {"global_batch_size": [16, 32, 64], "samples": [4096, 8192, 16384]},
    "full_scale": {"global_batch_size": 128, "samples": 65536},
    "search": {
        "optimizer": "sgd",
        "learning_rate": {"log_uniform": [0.001, 1], "role": "scaled"},
        "momentum": 0.9,
    },
    "budget": "auto",
}


def study(**changes: Any) -> StudySpec:
    return StudySpec.from_dict({**STUDY, **changes})


def ended(number: int, task: ExploreSettings, state: TrialState = TrialState.CENSORED) -> Trial:
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        global_batch_size=task.global_batch_size,
        seed=number,
        settings={"learning_rate": 0.1, **dict(task.sizes)},
        state=state,
        purpose=TrialPurpose.SWEEP,
        reason="",
        started_at=None,
        finished_at=None,
        epochs=dict(task.sizes)["training_samples"] / 2048,
        best_metric=1.0,
    )


def telling(agenda: GrowingStrategy, rungs: int, information: np.ndarray, worth: float) -> None:
    """Let the laws be one unknown, of which each rung tells so much, and the full scale's settings hang on it."""
    told = TrainingInformation(
        np.ones((1, 1, 1)),
        information.reshape(1, rungs, 1, 1),
        np.ones((1, 1)),
        [(np.ones((1, 1)), np.array([2 * worth]))],
        np.zeros(1),
    )
    agenda._told = lambda trials, answered, counts: told  # type: ignore[method-assign, assignment]


def run(agenda: GrowingStrategy, most: int = 200) -> list[Trial]:
    """The trials of a sweep whose trainings end one by one."""
    trials = list[Trial]()
    while len(trials) < most:
        task = agenda.next(trials)
        if isinstance(task, SweepDone):
            return trials
        assert isinstance(task, ExploreSettings)
        trials.append(ended(len(trials), task))
    raise AssertionError("it does not end")


def test_the_file_says_auto_and_keeps_a_sampler_that_trains_rung_by_rung():
    spec = study()
    assert spec.sampler == "tpe" and spec.budget.ends_by_itself
    assert spec.budget.epochs_per_trial == 32 and spec.to_dict()["budget"]["trials"] == "auto"
    with pytest.raises(
        SpecError, match="or a ladder of several sizes, but got best_within with one size"
    ):
        study(ladder=[16, 32], full_scale={"global_batch_size": 128})


def test_it_begins_with_the_cheapest_size_and_its_neighbour():
    spec = study()
    agenda = GrowingStrategy(spec)
    telling(agenda, 9, np.zeros(9), 0.0)
    counted = Counter(
        (sizes_of_settings(spec, each.settings), each.global_batch_size) for each in run(agenda)
    )
    cheapest, neighbour, dearest = points(spec)
    assert counted == {
        **{(cheapest, batch): FIRST for batch in spec.ladder},
        **{(neighbour, batch): 1 for batch in spec.ladder},
    }
    assert dearest not in {point for point, _ in counted}


def test_nothing_is_decided_while_trainings_run():
    agenda = GrowingStrategy(study())
    telling(agenda, 9, np.zeros(9), 0.0)
    trials = run(agenda)
    running = dataclasses.replace(trials[-1], state=TrialState.RUNNING)
    assert isinstance(GrowingStrategy(study()).next([*trials[:-1], running]), WaitForTrainings)
    assert isinstance(agenda.next(trials), SweepDone)
    assert "ended by itself after 15 trials" in agenda.why_ended


def test_it_goes_on_where_a_training_saves_more_than_it_costs_and_says_so():
    """All that matters is told by the dearest size: it is trained until one more costs more than it saves."""
    spec, said = study(), list[str]()
    agenda = GrowingStrategy(spec, said.append)
    cost = cost_share_of_sizes(spec, points(spec)[-1])
    telling(agenda, 9, np.array([0, 0, 0, 0, 0, 0, 0, 0, 2.0]), 1.0)
    trials = run(agenda)
    dear = sum(
        sizes_of_settings(spec, each.settings) == points(spec)[-1] and each.global_batch_size == 64
        for each in trials
    )

    def regret(trainings: float) -> float:
        witnesses = trainings / (1 + trainings / 50)
        return min(1 / (1 + 2.0 * witnesses), float(np.log(3)))

    expected = 0
    while regret(expected) - regret(expected + 1) > cost:
        expected += 1
    assert dear == expected > 0
    assert "at 64, samples 16384 next: 0.25 of the training at full scale" in said[0]
    assert "one more at 64, samples 16384 costs 0.25" in agenda.why_ended


class Endless(TrainingInformation):
    """Each round it seems as if every training saved a third of the one at full scale."""

    def regret(self, counts):
        return 9.0 - 0.34 * sum(counts)


def test_it_never_costs_more_than_its_bound():
    spec = study()
    agenda = GrowingStrategy(spec)
    nothing = Endless(np.ones((1, 1, 1)), np.zeros((1, 9, 1, 1)), np.ones((1, 1)), [], np.zeros(1))
    agenda._told = lambda trials, answered, counts: nothing  # type: ignore[method-assign, assignment]
    trials = run(agenda)
    cost = sum(cost_share_of_sizes(spec, sizes_of_settings(spec, each.settings)) for each in trials)
    assert MOST_COST - cost_share_of_sizes(spec, points(spec)[0]) < cost <= MOST_COST
    assert f"and may cost {MOST_COST:g}" in agenda.why_ended


def test_where_nothing_has_arrived_the_next_size_is_tried():
    spec, said = study(), list[str]()
    agenda = GrowingStrategy(spec, said.append)
    trials = list[Trial]()
    while True:
        task = agenda.next(trials)
        if isinstance(task, SweepDone):
            break
        assert isinstance(task, ExploreSettings)
        trials.append(ended(len(trials), task, TrialState.DIVERGED))
    assert {sizes_of_settings(spec, each.settings) for each in trials} == set(points(spec))
    assert "no run has given a result at smaller sizes yet" in said[0]
    assert agenda.why_ended == "the sweep has ended: no run gave a result at any size of the ladder"


class Heard(hpo.Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.slow
def test_a_study_ends_by_itself_and_tells_what_its_trainings_are_worth(tmp_path: Path):
    heard, storage = Heard(), f"sqlite:///{tmp_path / 'hpo.db'}"
    result = hpo.run_study(study(), storage, folder=tmp_path, progress=heard)
    assert result.complete and 15 <= len(result.trials) <= 100
    assert "the sweep has ended" in result.study.message
    assert any("the sweep has ended" in line for line in heard.lines)
    made = result.forecast
    assert made is not None and made.numbers.best is not None

    found = hpo.designs(result, made)
    ends = made.numbers.best.interval
    assert (found.own.interval.low, found.own.interval.high) == pytest.approx((ends.low, ends.high))
    assert found.own.trainings == len(result.trials)
    spent = sum((trial.epochs or 0) / 32 for trial in result.trials)
    assert found.own.cost == pytest.approx(spent)
    for name in {design_name(each) for each in found.all}:
        same = [each for each in found.all if design_name(each) == name and not each.own]
        factors = [each.factor for each in sorted(same, key=lambda each: each.trainings)]
        assert factors == sorted(factors, reverse=True)  # more trainings never a wider interval
        costs = [each.cost for each in sorted(same, key=lambda each: each.trainings)]
        assert costs == sorted(costs)
    best = [each for each in found.worthwhile() if not each.own]
    assert [each.cost for each in best] == sorted(each.cost for each in best)
    assert [each.factor for each in best] == sorted((e.factor for e in best), reverse=True)

    drawn = figures.cost_against_interval(result, found)
    [star] = [trace for trace in drawn.data if trace.name == "this study"]
    assert (star.x[0], star.y[0]) == (found.own.cost, found.own.factor)
    ladder = figures.ladder(result, made.posterior)
    titles = [each.text for each in ladder.layout.annotations]
    assert titles[0] == "samples 4096" and titles[-1] == "full scale: samples 65536"
    [forecast] = [trace for trace in ladder.data if trace.name == "forecast, 90 % interval"]
    assert list(forecast.y) == [ends.median]
    shown = [number for trace in ladder.data for number in trace.customdata or ()]
    assert sorted(shown) == [
        trial.number for trial in result.trials if metric_of_trial(trial) is not None
    ]
    rates = figures.setting_against_batch(result, "learning_rate", made.posterior)
    assert any(trace.name == "law with 90 % band" for trace in rates.data)

    # every face names the length of a trial
    table = rungs_table(result)
    assert table.columns[:2] == ("samples", "batch size")
    assert [row[:2] for row in table.rows[:3]] == [("4,096", str(each)) for each in (16, 32, 64)]
    document = result.to_dict()
    assert document["study"]["sizes"] == {"samples": [4096, 8192, 16384]}
    assert document["rungs"][0]["sizes"] == {"samples": 4096}
    assert sum(rung["trials"] for rung in document["rungs"]) == len(result.trials)
    assert ">samples</th>" in study_html(document, ["learning_rate"])
    trial = result.trials[0]
    assert tracked_rung_name(result.spec, trial) == "batch-16-samples-4096"
    assert tracked_parameters(result.study, result.spec, trial)["training_samples"] == 4096
    exported = optuna_study(result.study, result.spec, result.trials)
    assert exported.trials[0].params["training_samples"] == 4096
