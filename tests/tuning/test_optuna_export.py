"""The Optuna database, read back with Optuna: every trial has its state, value and curve."""

import itertools
import math
import sqlite3

import optuna
import pytest
from optuna.trial import TrialState as OptunaState

from hpo.errors import ExportError, StorageUnavailableError
from hpo.runs.exports.optuna_database import write_optuna
from hpo.runs.exports.optuna_study import wide_enough
from hpo.study.spec import parse_study
from search_spaces.settings import TrainingSettings
from storage.records import ConvergencePoint, NewStudy, NewTrial, TrialResult, TrialState
from storage.store import Store

pytestmark = pytest.mark.medium

SPEC = """name: bowl
workload: noisy_quadratic
target: {metric: loss, at_most: 0.1}
ladder: [16, 32]
search:
  optimizer: sgd
  learning_rate: {log_uniform: [0.01, 1.0], role: scaled}
  momentum: {uniform: [0.5, 0.9]}
  normalization_batch_size: {choice: [1, 4]}
  nesterov: {choice: [true, false]}
budget: {trials: 20, epochs_per_trial: 20}
"""
ENDS = {
    TrialState.REACHED: OptunaState.COMPLETE,
    TrialState.CENSORED: OptunaState.PRUNED,
    TrialState.PRUNED: OptunaState.PRUNED,
    TrialState.DIVERGED: OptunaState.FAIL,
    TrialState.FAILED: OptunaState.FAIL,
    TrialState.QUEUED: OptunaState.WAITING,
    TrialState.RUNNING: OptunaState.RUNNING,
}


def points(count):
    return [
        ConvergencePoint(
            step=10 * i,
            samples=160 * i,
            epochs=0.5 * i,
            seconds=0.1 * i,
            train_loss=1.0,
            loss=1 / (i + 1),
            metric=math.nan if i == 1 else 1 / (i + 1),
            learning_rate=0.1,
            global_batch_size=16,
        )
        for i in range(count)
    ]


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "hpo.db")) as store:
        study = store.create_study(
            NewStudy(
                name="bowl",
                workload="noisy_quadratic",
                metric="loss",
                threshold=0.1,
                higher_is_better=False,
                spec=SPEC,
            )
        )
        new = [
            NewTrial(
                global_batch_size=16 * (1 + number % 2),
                seed=number,
                settings=TrainingSettings(
                    learning_rate=0.01 * (number + 1),
                    momentum=0.6,
                    normalization_batch_size=4,
                    nesterov=True,
                ).to_dict(),
            )
            for number in range(len(ENDS))
        ]
        for trial, state in zip(store.add_trials(study.id, new), ENDS, strict=True):
            if state is not TrialState.QUEUED:
                store.start_trials([trial.id])
            if state.finished:
                epochs = 3.5 if state is TrialState.REACHED else None
                store.finish_trial(
                    trial.id,
                    TrialResult(
                        state=state,
                        epochs_to_target=epochs,
                        epochs=4.0,
                        reason="why" if state is TrialState.FAILED else "",
                    ),
                    points(0 if state is TrialState.FAILED else 5),
                )
        yield store


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/optuna.db"


def write(store, url, **options):
    study = store.study("bowl")
    return write_optuna(store, study, parse_study(study.spec), url, **options)


def test_every_trial_is_there(store, url):
    made = write(store, url)
    assert made.trials == {"COMPLETE": 1, "PRUNED": 2, "FAIL": 2, "WAITING": 1, "RUNNING": 1}
    study = optuna.load_study(study_name="bowl", storage=url)
    assert study.direction == optuna.study.StudyDirection.MINIMIZE
    assert study.user_attrs["target"] == "loss <= 0.1"
    assert study.user_attrs["fixed_settings"] == {"optimizer": "sgd"}
    for ours, theirs in zip(store.trials(1), study.trials, strict=True):
        assert (theirs.number, theirs.state) == (ours.number, ENDS[ours.state])
        assert theirs.value == ours.epochs_to_target
        assert theirs.params == {
            "global_batch_size": ours.global_batch_size,
            "nesterov": True,
            "momentum": 0.6,
            "learning_rate": ours.settings["learning_rate"],
            "normalization_batch_size": 4,
        }
        assert (theirs.user_attrs["state"], theirs.user_attrs["seed"]) == (
            str(ours.state),
            ours.seed,
        )
        measured = {
            point.step: point.metric
            for point in store.points(ours.id)
            if not math.isnan(point.metric)
        }
        assert theirs.intermediate_values == measured
        if ours.finished_at:
            assert theirs.datetime_complete.astimezone() == ours.finished_at
    assert study.trials[0].distributions["learning_rate"] == optuna.distributions.FloatDistribution(
        0.01, 1.0, log=True
    )
    assert study.trials[0].distributions["normalization_batch_size"].choices == (1, 4)
    assert study.best_trial.user_attrs["epochs_to_target"] == 3.5


def test_optuna_can_go_on_from_it(store, url):
    write(store, url)
    study = optuna.load_study(
        study_name="bowl", storage=url, sampler=optuna.samplers.TPESampler(seed=1)
    )
    trial = study.ask(study.trials[0].distributions)
    study.tell(trial, 3.0)
    assert study.best_value == 3.0


def test_long_curves_are_thinned_evenly(store, url):
    (trial,) = store.add_trials(
        1, [NewTrial(global_batch_size=16, seed=99, settings=store.trials(1)[0].settings)]
    )
    store.record({trial.id: points(1000)})
    write(store, url, points=10)
    steps = sorted(
        optuna.load_study(study_name="bowl", storage=url).trials[trial.number].intermediate_values
    )
    assert len(steps) == 10
    assert (steps[0], steps[-1]) == (0, 9990)
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    assert max(gaps) - min(gaps) <= 20


def test_a_value_outside_the_range(store, url):
    settings = TrainingSettings(
        learning_rate=5.0, momentum=0.6, normalization_batch_size=8
    ).to_dict()
    store.add_trials(1, [NewTrial(global_batch_size=64, seed=0, settings=settings)])
    write(store, url)
    trial = optuna.load_study(study_name="bowl", storage=url).trials[-1]
    assert (trial.params["learning_rate"], trial.params["global_batch_size"]) == (5.0, 64)
    assert "normalization_batch_size" not in trial.params
    assert trial.user_attrs["normalization_batch_size"] == 8
    choices = optuna.distributions.CategoricalDistribution([1, 2])
    assert wide_enough(choices, 3) is None


def test_a_second_export_replaces_only_on_demand(store, url):
    write(store, url)
    with pytest.raises(
        ExportError, match="already has a study 'bowl'; give another database, or --replace"
    ):
        write(store, url)
    write(store, url, replace=True)
    assert optuna.get_all_study_names(url) == ["bowl"]
    assert len(optuna.load_study(study_name="bowl", storage=url).trials) == len(ENDS)


def test_our_own_database_is_not_written_to(store, tmp_path):
    before = store.trials(1)
    with pytest.raises(ExportError, match="must not go into the largebatch database"):
        write(store, f"sqlite:///{tmp_path}/hpo.db")
    assert store.trials(1) == before


def test_databases_that_cannot_be(store, tmp_path):
    with pytest.raises(
        ExportError, match=r"must be a database URL, but got 'optuna.db'; write sqlite:///optuna.db"
    ):
        write(store, "optuna.db")
    with pytest.raises(StorageUnavailableError, match="does not exist; create it"):
        write(store, f"sqlite:///{tmp_path}/no/such/optuna.db")
    sqlite3.connect(tmp_path / "text.db").close()
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(StorageUnavailableError):
        write(store, f"sqlite:///{tmp_path}/text.db")
