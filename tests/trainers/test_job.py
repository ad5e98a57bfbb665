import dataclasses
import json
import math
import re
import types

import pytest

from search_spaces.settings import TrainingSettings
from trainers import JobError, Target, TrainingJob


def job(**changes):
    values = {
        "workload": "resnet",
        "data": {"source": "digits"},
        "target": Target("top1", 0.96),
        "settings": TrainingSettings(decay="step", decay_milestones=(3.0, 5.0)),
        "global_batch_size": 64,
        "seed": 3,
        "epochs": 10,
    }
    return TrainingJob(**{**values, **changes})


def test_a_job_survives_its_file(tmp_path):
    original = job(micro_batch_size=16, search_path="/somewhere")
    original.save(tmp_path / "job.json")
    assert TrainingJob.load(tmp_path / "job.json") == original


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"global_batchsize": 4},
            "a job has no key 'global_batchsize'; did you mean 'global_batch_size'",
        ),
        (
            {"target": {"metric": "top1", "treshold": 1}},
            "target.treshold.*did you mean 'threshold'",
        ),
        ({"target": {"metric": "top1"}}, "needs the key 'target.threshold'"),
        ({"target": 0.9}, "target must be a mapping"),
        ({"settings": {"learning_rat": 1}}, "settings: .*did you mean 'learning_rate'"),
        ({"global_batch_size": 0}, "global_batch_size must be a whole number.*got 0"),
        ({"global_batch_size": True}, "global_batch_size must be a whole number"),
        ({"micro_batch_size": 2.5}, "micro_batch_size must be a whole number"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"epochs": 0}, "epochs must be a positive number"),
        ({"evaluations_per_epoch": math.inf}, "evaluations_per_epoch must be a positive number"),
        (
            {"settings": {"decay": "cosine", "warmup_epochs": 12.0}},
            "needs warmup_epochs below epochs",
        ),
    ],
)
def test_a_bad_value_is_named(change, message):
    with pytest.raises(JobError, match=message):
        TrainingJob.from_dict({**job().to_dict(), **change})


def test_a_missing_key_is_named():
    values = job().to_dict()
    del values["seed"]
    with pytest.raises(JobError, match="needs the key 'seed'"):
        TrainingJob.from_dict(values)


def test_a_bad_file_is_named(tmp_path):
    with pytest.raises(JobError, match="cannot read the job file"):
        TrainingJob.load(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(JobError, match="is not JSON"):
        TrainingJob.load(tmp_path / "broken.json")


def test_a_job_is_plain_values():
    assert json.loads(json.dumps(job().to_dict())) == job().to_dict()
    assert set(job().to_dict()) == {knob.name for knob in dataclasses.fields(TrainingJob)}


def test_a_target_is_reached_at_its_threshold_and_never_by_nan():
    accuracy, loss = Target("top1", 0.96), Target("loss", 0.2, higher_is_better=False)
    assert accuracy.reached(0.96) and accuracy.reached(0.97) and not accuracy.reached(0.9599)
    assert loss.reached(0.2) and loss.reached(0.1) and not loss.reached(0.21)
    assert not accuracy.reached(math.nan) and not loss.reached(math.nan)
    assert accuracy.better(0.1, 0.2) == 0.2 and loss.better(0.1, 0.2) == 0.1
    assert accuracy.better(math.nan, 0.2) == 0.2 and accuracy.better(0.2, math.nan) == 0.2


def ended(state="censored", epochs=10.0, best=0.9, reached=None):
    return types.SimpleNamespace(
        state=state, epochs=epochs, best_metric=best, epochs_to_target=reached
    )


def test_how_soon_is_the_epochs_to_the_target():
    question = job().question
    assert not question.fixed
    assert question.need(ended("reached", reached=4.0)) == 4.0
    assert question.need(ended()) is None
    assert question.told(4.0) == 4.0


def test_the_best_within_a_budget_is_what_a_training_lacks_after_it():
    share = job(target=Target.best("top1", higher_is_better=True)).question
    loss = job(target=Target.best("loss", higher_is_better=False)).question
    assert share.fixed and share.epochs == 10
    assert share.need(ended(best=0.9)) == pytest.approx(1 / 9)  # the odds against it
    assert loss.need(ended(best=2.5)) == 2.5
    for question, value in ((share, 0.37), (loss, 1.7)):
        assert question.told(question.need(ended(best=value))) == pytest.approx(value)
    assert share.need(ended(best=0.8)) > share.need(ended(best=0.9))


@pytest.mark.parametrize(
    "training",
    [
        ended("diverged"),
        ended("pruned"),
        ended("failed"),
        ended(epochs=6.0),  # an import that ended early
        ended(best=None),
        ended(best=math.nan),
        ended(best=37.0),  # in per cent: no share
    ],
)
def test_a_training_that_did_not_come_to_the_end_of_its_budget_answers_nothing(training):
    question = job(target=Target.best("top1", higher_is_better=True)).question
    assert question.need(training) is None


def test_a_training_that_leaves_out_incomplete_batches_comes_to_the_end_of_its_budget():
    """Ten epochs of 10,000 samples at a batch of 512 have 19 complete batches each: 97,280 samples."""
    question = job(target=Target.best("top1", higher_is_better=True)).question
    training = ended(epochs=9.728)
    assert question.need(training) is None
    training.global_batch_size, training.samples = 512, 97_280
    assert question.need(training) == pytest.approx(1 / 9)
    training.epochs, training.samples = 9.216, 92_160  # the last epoch is missing
    assert question.need(training) is None


@pytest.mark.parametrize(
    ("higher", "value", "fault"),
    [
        (True, 69.6, "m was 69.6, .* between 0 and 1: report shares instead of per cent"),
        (False, -2.1, "m was -2.1, .* are at least 0: report a loss or an error of at least 0"),
        (True, 0.696, ""),
        (True, 1.0, ""),
        (False, 0.0, ""),
        (False, 69.6, ""),
        (True, math.nan, ""),
        (True, None, ""),
    ],
)
def test_a_metric_outside_of_the_range_that_can_be_forecast_says_the_range(higher, value, fault):
    question = job(target=Target.best("m", higher_is_better=higher)).question
    assert re.fullmatch(f"{fault}.*" if fault else "", question.metric_fault(value))


def test_perfect_is_as_near_as_can_be_told():
    question = job(target=Target.best("top1", higher_is_better=True)).question
    assert 0 < question.need(ended(best=1.0)) < 0.001
    assert question.need(ended(best=0.0)) > 1000
