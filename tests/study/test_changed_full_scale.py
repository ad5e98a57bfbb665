"""A study over model sizes whose full scale is changed later: its plans, their outcomes, its race and its cost stay
those of the model that was trained.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from hpo.errors import SpecError, TuningError
from hpo.planning.plan import Plan, planned_job
from hpo.runs import repository, study_forecast
from hpo.runs.results import StudyResult
from hpo.study.spec import StudySpec, load_study
from hpo.tuning.generation.race import RaceCourse
from hpo.tuning.generation.strategy import SweepDone
from hpo.tuning.race import Race
from hpo.tuning.sweep import Sweep
from search_spaces.settings import TrainingSettings
from storage.records import (
    NewOutcome,
    NewTrial,
    PlanKind,
    Study,
    TrialPurpose,
    TrialResult,
    TrialState,
)
from storage.store import Store

ROOT = Path(__file__).parents[2]
SETTINGS = TrainingSettings(optimizer="adamw", learning_rate=0.01)


def study_of(width: int) -> StudySpec:
    return StudySpec.from_dict(
        {
            "name": "grown",
            "workload": "language",
            "data": {"source": "python", "sequence_length": 16, "train_samples": 64},
            "target": {"metric": "loss", "at_most": 3.0},
            "ladder": {"global_batch_size": [16, 32], "width": [16, 32]},
            "full_scale": {"global_batch_size": 64, "width": width},
            "search": {
                "optimizer": "adamw",
                "learning_rate": {"log_uniform": [0.001, 0.1], "role": "scaled"},
            },
            "budget": {"trials": 20, "epochs_per_trial": 4},
        }
    )


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/hpo.db") as store:
        yield store


def ended(store: Store, study: Study, batch: int, width: int, purpose: TrialPurpose) -> None:
    """A trial at this batch size and width that reached the target."""
    settings = {**SETTINGS.to_dict(), "own": {"width": width}}
    (trial,) = store.add_trials(
        study.id,
        [NewTrial(global_batch_size=batch, seed=0, settings=settings, purpose=purpose)],
    )
    store.finish_trial(
        trial.id,
        TrialResult(state=TrialState.REACHED, epochs=2.0, epochs_to_target=2.0, steps=8),
    )


def result_of(store: Store, spec: StudySpec) -> StudyResult:
    return repository.read_result(store, spec.name, "sqlite:///hpo.db", spec)


def test_a_plan_and_its_outcome_keep_the_width_of_a_built_in_workload(store, tmp_path):
    spec, larger = study_of(64), study_of(128)
    study = repository.enter_study(store, spec)
    plan = Plan(
        study=spec.name,
        kind=PlanKind.NO_SCALING,
        machine="local",
        nodes=1,
        workers=1,
        job=planned_job(spec, SETTINGS, 64, None),
        epochs=None,
        seconds=None,
        trust="",
        reason="",
    )
    made: Any = types.SimpleNamespace(spec=spec, study_id=study.id, id=None)
    kept = repository.keep_plan(store, made, plan, tmp_path / "plan", "torch")
    store.add_outcome(
        NewOutcome(
            plan_id=kept.id or 0,
            seed=1,
            backend="torch",
            workers=1,
            state=TrialState.REACHED,
            epochs_to_target=2.0,
            seconds=1.0,
            epochs=2.0,
        )
    )
    store.update_spec(study.id, larger.text)
    (run,) = result_of(store, larger).runs
    assert run.plan.job.data["width"] == 64
    assert run.plan.job.digest() == plan.job.digest()
    assert repository.holds_plan(run.plan, tmp_path / "plan")
    (outcome,) = result_of(store, larger).evidence()
    assert outcome.settings["width"] == 64
    assert planned_job(larger, SETTINGS, 64, None).data["width"] == 128


def test_only_runs_of_the_full_scale_model_count_as_a_race_there(store, monkeypatch):
    spec, asked = study_of(64), {}
    study = repository.enter_study(store, spec)
    ended(store, study, 64, 16, TrialPurpose.SWEEP)  # the ladder had this batch size before
    ended(store, study, 64, 32, TrialPurpose.RACE)  # when this was the full scale
    ended(store, study, 64, 64, TrialPurpose.RACE)

    def forecast_from(*_: Any, **options: Any) -> None:
        asked.update(options)
        raise LookupError

    monkeypatch.setattr(study_forecast, "forecast_from", forecast_from)
    with pytest.raises(LookupError):
        study_forecast.forecast(result_of(store, spec), 64, posterior=object())  # type: ignore[arg-type]
    assert [each.settings["width"] for each in asked["race"]] == [64]
    assert not asked["searched"]


def test_a_race_does_not_continue_with_the_runs_of_another_model(store, tmp_path):
    spec = study_of(64)
    study = repository.enter_study(store, spec)
    ended(store, study, 64, 32, TrialPurpose.RACE)
    ended(store, study, 64, 64, TrialPurpose.RACE)
    race = Race(
        spec,
        study,
        store,
        RaceCourse(64, (SETTINGS.to_dict(),), 2.0, 4.0, 10.0),
        checkpoints=tmp_path / "checkpoints" / "1",
        progress=lambda *_: None,
    )
    assert [trial.settings["width"] for trial in race.trials] == [64]


def test_a_study_is_not_continued_with_other_model_sizes(store):
    """Nothing would say with which depth, or which widths, the trials so far were trained."""
    spec = study_of(64)
    repository.enter_study(store, spec)
    plain = spec.to_dict()
    ladder, full = plain["ladder"], plain["full_scale"]
    deeper = {**plain, "ladder": {**ladder, "depth": [1, 2]}, "full_scale": {**full, "depth": 4}}
    flat = {**plain, "ladder": [16, 32], "full_scale": {"global_batch_size": 64}}
    for other, told in ((deeper, "width, and now depth and width"), (flat, "width, and now none")):
        with pytest.raises(SpecError, match=f"it varied {told}"):
            repository.enter_study(store, StudySpec.from_dict(other))
    wider = {**plain, "ladder": {**ladder, "width": [16, 32, 48]}}
    assert repository.enter_study(store, StudySpec.from_dict(wider)).name == spec.name


def test_a_trial_that_no_trainer_can_train_ends_the_sweep_with_the_reason(store, tmp_path):
    """As in a study that was stored before its warmup was checked."""
    plain = study_of(64).to_dict()
    plain["search"] |= {"decay": "cosine", "warmup_epochs": 4.0}
    plain["ladder"], plain["full_scale"] = [16, 32], {"global_batch_size": 64}
    spec = StudySpec.from_dict(plain)
    store.update_spec(repository.enter_study(store, study_of(64)).id, spec.text)
    sweep = Sweep(
        spec,
        store.study(spec.name),
        store,
        checkpoints=tmp_path / "checkpoints" / "1",
        progress=lambda *_: None,
    )
    assert isinstance(sweep.next_config("one"), SweepDone)
    with pytest.raises(TuningError, match=r"cannot be trained: .* needs warmup_epochs below"):
        _ = sweep.ending


@pytest.mark.medium
def test_the_cost_of_a_sample_follows_the_full_scale(store):
    study = repository.enter_study(store, study_of(64))
    assert repository.measure_cost(store, study, study_of(64)) == ""
    small = store.cost(study.id)
    assert repository.measure_cost(store, study, study_of(64)) == ""
    assert store.cost(study.id) == small  # with the host's time as it was first measured
    assert repository.measure_cost(store, study, study_of(128)) == ""
    large = store.cost(study.id)
    assert small is not None and large is not None
    assert large.parameters > 3 * small.parameters


@pytest.mark.medium
def test_the_cost_of_a_class_that_reads_its_width_is_that_of_the_full_scale(store):
    spec = load_study(ROOT / "examples" / "own_workload" / "growing.yaml")
    study = repository.enter_study(store, spec)
    assert repository.measure_cost(store, study, spec) == ""
    cost = store.cost(study.id)
    assert cost is not None
    assert cost.parameters == (30 + 1) * 64 + (64 + 1) * 64 + (64 + 1) * 2
