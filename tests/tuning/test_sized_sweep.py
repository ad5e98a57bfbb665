"""A sweep over trainings of several lengths and its forecast for a longer one; the workload is simulated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import hpo
from hpo.runs.ask_tell_study import AskTellStudy
from hpo.runs.repository import enter_study
from hpo.runs.study_forecast import evidence_of_study
from hpo.study.sizes import budgets_by_sizes, sizes_of_settings
from hpo.study.spec import StudySpec
from storage.records import TrialState
from storage.store import Store

STUDY: dict[str, Any] = {
    "name": "lengths",
    "workload": "noisy_quadratic",
    "data": {"train_samples": 2048},
    "target": {"metric": "loss", "best_within": {"samples": 32768}},
    "ladder": {"global_batch_size": [16, 32, 64], "samples": [4096, 8192]},
    "full_scale": {"global_batch_size": 128, "samples": 32768},
    "search": {
        "optimizer": "sgd",
        "learning_rate": {"log_uniform": [0.001, 1], "role": "scaled"},
        "momentum": 0.9,
    },
    "budget": {"trials": 40},
}


def swept(folder: Path, progress: hpo.Progress | None = None) -> hpo.StudyResult:
    spec = StudySpec.from_dict(STUDY)
    storage = f"sqlite:///{folder / 'hpo.db'}"
    return hpo.run_study(spec, storage, folder=folder, progress=progress)


@pytest.mark.slow
def test_every_length_is_swept_and_the_longest_forecast(tmp_path: Path):
    result = swept(tmp_path)
    spec = result.spec
    assert result.complete and len(result.trials) == 40
    counted = Counter(
        (sizes_of_settings(spec, trial.settings), trial.global_batch_size)
        for trial in result.trials
    )
    assert counted == {
        (point, batch): rung.trainings
        for point, rungs in budgets_by_sizes(spec).items()
        for batch, rung in rungs.items()
    }
    for trial in result.trials:
        length = trial.settings["training_samples"]
        assert (trial.epochs or 0) <= length / 2048 + 1e-9
        if trial.state is TrialState.CENSORED:
            assert trial.epochs == pytest.approx(length / 2048)
            assert spec.question.need(trial) == pytest.approx(trial.best_metric)
    evidence = evidence_of_study(result)
    assert evidence.full_scale == {"training_samples": 32768}
    assert [setting.name for setting in evidence.tuned] == ["learning_rate"]
    made = result.forecast
    assert made is not None and made.numbers.best is not None
    told, best = made.numbers.best, made.numbers.best.interval
    longest = min(
        trial.best_metric
        for trial in result.trials
        if trial.global_batch_size == 64 and trial.best_metric is not None
    )
    assert told.epochs == 16 and best.low < longest
    assert made.settings.own == {"training_samples": 32768}
    assert "training_samples is 4 times the largest that was trained" not in made.reason
    assert "only two values of training_samples were trained" in made.reason
    assert result.plan is not None and result.plan.plan.job.epochs == 16


@pytest.mark.slow
def test_a_sweep_over_lengths_goes_on_where_it_was(tmp_path: Path):
    class Interrupt(hpo.Progress):
        def sweep(self, spec, trials, running):
            if sum(trial.state.finished for trial in trials) >= 25:
                raise KeyboardInterrupt

    first = swept(tmp_path, progress=Interrupt())
    finished = [trial for trial in first.trials if trial.state.finished]
    assert not first.complete and 25 <= len(finished) < 40
    again = swept(tmp_path)
    assert again.complete and len(again.trials) == 40
    assert [trial for trial in again.trials if trial.number < len(finished)] == finished
    lengths = Counter(trial.settings["training_samples"] for trial in again.trials)
    assert lengths == {
        dict(point)["training_samples"]: sum(rung.trainings for rung in rungs.values())
        for point, rungs in budgets_by_sizes(again.spec).items()
    }


def test_a_trial_at_a_size_that_left_the_ladder_is_trained_to_its_end(tmp_path: Path):
    ladder = {**STUDY["ladder"], "samples": [8192, 16384]}
    with Store.open(f"sqlite:///{tmp_path / 'hpo.db'}") as store:
        study = enter_study(store, StudySpec.from_dict(STUDY))
        before = AskTellStudy(store, study)
        first = before.ask("first", "me", 60)
        before.release(first.number, "first")
        store.update_spec(study.id, StudySpec.from_dict({**STUDY, "ladder": ladder}).text)
        asked = AskTellStudy(store, store.study_by_id(study.id))
        again = asked.ask("second", "me", 60)
        assert (again.number, again.job.epochs) == (first.number, 2)
        assert asked.end(again.number, "second", state="failed").state is TrialState.FAILED
        assert asked.ask("third", "me", 60).job.epochs == 4
