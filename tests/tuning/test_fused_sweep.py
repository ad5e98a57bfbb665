"""A sweep of fused trials stores what a sweep of the same trials one by one stores."""

import dataclasses

import pytest

import hpo
from hpo.errors import SpecError
from storage.records import TrialState
from storage.store import Store

pytestmark = pytest.mark.medium

STUDY = """\
name: fused
workload: tests.trainers.small_network:InOneProcess
data: {source: digits}
target: {metric: top1, at_least: 0.8}
ladder: [48, 96]
search:
  optimizer: sgd
  learning_rate: {log_uniform: [0.001, 0.5], role: scaled}
  momentum: {uniform: [0.5, 0.95]}
  normalization_batch_size: 16
budget: {trials: 8, epochs_per_trial: 4, evaluations_per_epoch: 2}
sampler: random
"""


def swept(folder, study):
    folder.mkdir()
    (folder / "study.yaml").write_text(study)
    storage = f"sqlite:///{folder}/hpo.db"
    result = hpo.run_study(hpo.load_study(folder / "study.yaml"), storage, folder=folder / ".hpo")
    with Store.open(storage) as store:
        study_id = store.study("fused").id
        trials = store.trials(study_id, purpose="sweep")
        return result, {each.number: (each, store.points(each.id)) for each in trials}


def same(point, other):
    for name, value in dataclasses.asdict(point).items():
        if name != "seconds" and value is not None:
            assert value == pytest.approx(getattr(other, name), rel=1e-9), name


def test_a_fused_sweep_stores_the_same_records(tmp_path):
    alone_result, alone = swept(tmp_path / "alone", STUDY)
    fused_result, fused = swept(tmp_path / "fused", STUDY + "resources: {fused_trials: 3}\n")
    assert alone_result.complete and fused_result.complete
    assert alone.keys() == fused.keys() and len(fused) == 8
    ended_alike = 0
    for number, (trial, points) in fused.items():
        other, its = alone[number]
        assert (trial.settings, trial.seed, trial.global_batch_size) == (
            other.settings,
            other.seed,
            other.global_batch_size,
        )
        for point, expected in zip(points, its, strict=False):  # one may have been stopped earlier
            same(point, expected)
        if TrialState.PRUNED not in (trial.state, other.state):
            assert (trial.state, trial.epochs_to_target) == (other.state, other.epochs_to_target)
            assert len(points) == len(its)
            ended_alike += 1
    assert ended_alike >= 3
    assert any(trial.state is TrialState.PRUNED for trial, _ in fused.values())


def test_a_setting_that_cannot_be_fused_fails_its_trials_with_what_to_do(tmp_path):
    with pytest.raises(
        hpo.HpoError, match=r"must have gradient_lag 0.*leave resources.fused_trials out"
    ):
        swept(
            tmp_path / "lag",
            STUDY.replace("search:", "search:\n  gradient_lag: 1")
            + "resources: {fused_trials: 3}\n",
        )


def test_fused_trials_have_one_worker_each(tmp_path):
    (tmp_path / "study.yaml").write_text(
        STUDY + "resources: {fused_trials: 3, workers_per_node: 2}\n"
    )
    with pytest.raises(SpecError, match="one worker each"):
        hpo.load_study(tmp_path / "study.yaml")
