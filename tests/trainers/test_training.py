import copy
import dataclasses
import math
import resource
import signal
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from search_spaces.settings import TrainingSettings
from trainers import CheckpointError, JobError, Target, TrainingJob, WorkloadError
from trainers.begin import begin_training, train
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop import checkpoint as checkpoints
from trainers.loop.synchronous import SynchronousTraining
from trainers.workloads import Workload

HERE = str(Path(__file__).parent)


def job(*, settings=None, **changes):
    values = {
        "workload": "resnet",
        "data": {"source": "digits"},
        "target": Target("top1", 0.9999),
        "settings": TrainingSettings(
            learning_rate=0.1, warmup_epochs=0.2, normalization_batch_size=8, **(settings or {})
        ),
        "global_batch_size": 64,
        "seed": 1,
        "epochs": 1,
    }
    return TrainingJob(**{**values, **changes})


class Quadratic(Workload):
    """Loss (w - x)^2 / 2 on points x of mean 3: every number of a training can be worked out by hand."""

    metrics: ClassVar = {"distance": False, "loss": False}

    def __init__(self, data):
        self.points = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
        self.train_samples, self.evaluation_samples = 5, 3
        self.seen = []

    def build_model(self, settings):
        model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        return model

    def training_batch(self, indices, epochs, seed):
        self.seen += zip(epochs.tolist(), indices.tolist(), strict=True)
        return (self.points[indices],)

    def loss(self, model, batch, settings):
        return (model.weight - batch[0]).square().mean() / 2

    def evaluation_batch(self, indices):
        return (indices,)

    def score(self, model, batch):
        distance = (model.weight.flatten() - 3).abs().expand(len(batch[0])) + batch[0]
        return {"distance": distance, "loss": distance.square()}


def quadratic(**changes):
    settings = TrainingSettings(
        learning_rate=changes.pop("learning_rate", 0.5), momentum=0.0, weight_decay=0.0
    )
    values = {
        "workload": "test",
        "data": {},
        "target": Target("distance", 0.5, higher_is_better=False),
        "settings": settings,
        "global_batch_size": 5,
        "seed": 0,
        "epochs": 3,
        "evaluations_per_epoch": 1,
    }
    changed = TrainingJob(**{**values, **changes})
    return SynchronousTraining(
        changed, SingleProcessCommunicator(torch.device("cpu")), workload=Quadratic({})
    )


def run(job, tmp_path=None):
    points = []
    path = None if tmp_path is None else tmp_path / "checkpoint.pt"
    return train(job, SingleProcessCommunicator(), points.append, checkpoint=path), points


def finish(training):
    points = []
    while not training.finished:
        points.append(training.advance())
    return points


@pytest.mark.parametrize("micro", [None, 2, 3])
def test_updates_and_evaluations_are_those_worked_out_by_hand(micro):
    training = quadratic(micro_batch_size=micro)
    points = finish(training)
    weights = [1.5, 2.25, 2.625]  # w moves half of the way to the mean of all points, which is 3
    assert [point.metric for point in points] == pytest.approx([abs(w - 3) + 1 for w in weights])
    assert [point.loss for point in points] == pytest.approx(
        [sum((abs(w - 3) + index) ** 2 for index in range(3)) / 3 for w in weights]
    )
    assert [point.train_loss for point in points] == pytest.approx(
        [(w - 3) ** 2 / 2 + 1 for w in (0, 1.5, 2.25)]
    )
    assert [(point.step, point.samples, point.epochs) for point in points] == [
        (1, 5, 1),
        (2, 10, 2),
        (3, 15, 3),
    ]
    assert training.outcome.state == "censored" and training.outcome.epochs_to_target is None
    assert training.outcome.best_metric == training.outcome.final_metric == pytest.approx(1.375)
    assert "budget of 3 epochs" in training.outcome.reason


def test_epochs_to_target_are_those_of_the_first_evaluation_that_reached_it():
    training = quadratic(
        target=Target("distance", 1.8, higher_is_better=False), global_batch_size=5, epochs=9
    )
    finish(training)
    outcome = training.outcome
    assert (outcome.state, outcome.epochs_to_target, outcome.steps, outcome.epochs) == (
        "reached",
        2,
        2,
        2,
    )
    assert "reached the target distance <= 1.8" in outcome.reason


def test_the_stream_straddles_epochs_and_the_batch_may_exceed_the_data():
    training = quadratic(global_batch_size=8, epochs=3)
    points = finish(training)
    assert [point.samples for point in points] == [8, 16]
    seen = training.workload.seen[:15]
    assert [epoch for epoch, _ in seen] == [0] * 5 + [1] * 5 + [2] * 5
    assert all({index for at, index in seen if at == epoch} == set(range(5)) for epoch in range(3))


@pytest.mark.parametrize(
    ("batch", "per_epoch", "steps"), [(1, 1, 5), (1, 2, 2), (2, 1, 2), (4, 4, 1)]
)
def test_evaluations_come_every_so_many_updates(batch, per_epoch, steps):
    points = finish(quadratic(global_batch_size=batch, evaluations_per_epoch=per_epoch, epochs=4))
    assert [point.step for point in points[:3]] == [steps, 2 * steps, 3 * steps]
    assert points[-1].samples >= 20 and points[-1].samples - batch < 20


@pytest.mark.parametrize("rate", [4.0, 1e200])
def test_a_loss_that_grows_beyond_three_times_the_first_has_diverged(rate):
    training = quadratic(learning_rate=rate, epochs=50)
    points = finish(training)
    outcome = training.outcome
    assert outcome.state == "diverged" and outcome.epochs_to_target is None and outcome.epochs < 10
    first = points[0].train_loss
    assert first == pytest.approx(5.5) and all(
        point.train_loss <= 3 * first for point in points[:-1]
    )
    assert not points[-1].train_loss <= 3 * first
    assert "3 times the first update's 5.5" in outcome.reason


def test_a_loss_that_is_no_number_has_diverged():
    training = quadratic(learning_rate=1e308, epochs=50)
    assert not math.isfinite(finish(training)[-1].train_loss)
    assert training.outcome.state == "diverged"


def test_a_finished_training_goes_no_further_and_a_running_one_has_no_outcome():
    training = quadratic()
    with pytest.raises(JobError, match="once it is finished"):
        _ = training.outcome
    finish(training)
    with pytest.raises(JobError, match="the training is finished: the budget"):
        training.advance()


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        (Target("top2", 0.9), WorkloadError, "no metric 'top2'; did you mean 'top"),
        (Target("loss", 0.1), JobError, "a lower loss is better, but the target is loss >= 0.1"),
    ],
)
def test_a_target_that_the_workload_lacks_is_an_error(target, error, message):
    with pytest.raises(error, match=message):
        SynchronousTraining(job(target=target), SingleProcessCommunicator())


def test_groups_that_do_not_fit_the_batch_are_an_error():
    with pytest.raises(
        JobError, match=r"normalization_batch_size 8 .*choose global_batch_size 40 or 48"
    ):
        SynchronousTraining(job(global_batch_size=44), SingleProcessCommunicator())


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_accumulation_does_not_change_the_weights(optimizer):
    settings = {"optimizer": optimizer, "weight_decay": 1e-3, "nesterov": True}
    whole, parts = (
        begin_training(
            job(
                settings=settings,
                micro_batch_size=micro,
                workload="double_digits:DoubleDigits",
                search_path=HERE,
            )
        )
        for micro in (64, 16)
    )
    first, second = whole.advance(), parts.advance()
    ours, theirs = ([*each.replica.statistics, *each.replica.parameters] for each in (whole, parts))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert first.loss == pytest.approx(second.loss, rel=1e-9)
    assert first.train_loss == pytest.approx(second.train_loss, rel=1e-9)


def test_seeds_differ_and_one_seed_repeats():
    losses = [
        SynchronousTraining(job(seed=seed), SingleProcessCommunicator()).advance().loss
        for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1] != losses[2]


def test_a_training_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    SynchronousTraining(job(), SingleProcessCommunicator()).advance()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(tmp_path, optimizer):
    task = job(settings={"optimizer": optimizer})
    straight = SynchronousTraining(task, SingleProcessCommunicator())
    expected = finish(straight)
    broken = SynchronousTraining(task, SingleProcessCommunicator())
    points = [broken.advance(), broken.advance()]
    checkpoints.save(tmp_path / "half.pt", broken.state_dict())
    resumed = SynchronousTraining(task, SingleProcessCommunicator())
    resumed.load_state_dict(checkpoints.load(tmp_path / "half.pt"))
    points += finish(resumed)

    def timeless(point):
        return dataclasses.replace(point, seconds=0.0)

    assert list(map(timeless, points)) == list(map(timeless, expected))
    assert points[2].seconds > points[1].seconds
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


@pytest.mark.medium
def test_train_goes_on_from_its_checkpoint_and_repeats_no_finished_training(tmp_path):
    outcome, points = run(job(), tmp_path)
    assert len(points) == 4 and outcome.state == "censored"
    again, repeated = run(job(), tmp_path)
    assert again == outcome and repeated == []


def test_a_checkpoint_of_another_job_is_refused_but_not_one_of_another_micro_batch(tmp_path):
    run(job(epochs=0.3), tmp_path)
    run(job(epochs=0.3, micro_batch_size=16), tmp_path)
    with pytest.raises(CheckpointError, match="its seed is 1, but this job's is 2"):
        run(job(epochs=0.3, seed=2), tmp_path)


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointError, match="not a checkpoint of a training"):
        run(job(), tmp_path)
    torch.save({"model": Quadratic}, path)  # a pickled class: reading it would run its module
    with pytest.raises(CheckpointError, match="not a checkpoint of a training"):
        checkpoints.load(path)
    checkpoints.save(path, {"something": 1})
    with pytest.raises(CheckpointError, match="not a checkpoint of a training"):
        run(job(), tmp_path)
    with pytest.raises(CheckpointError, match="cannot write"):
        checkpoints.save(tmp_path / "absent" / "checkpoint.pt", {})


def test_a_checkpoint_of_other_settings_names_the_first_that_differs():
    training = quadratic()
    saved = training.state_dict()
    saved["job"] = copy.deepcopy(saved["job"])
    del saved["job"]["settings"]["decay_bias"]  # as if written before this setting existed
    quadratic().load_state_dict(saved)
    saved["job"]["settings"]["momentum"] = 0.25
    with pytest.raises(
        CheckpointError, match=r"its settings\.momentum is 0\.25, but this job's is"
    ):
        quadratic().load_state_dict(saved)
    saved["job"]["settings"] |= {"momentum": training.job.settings.momentum, "own": {"width": 8}}
    with pytest.raises(CheckpointError, match=r"its settings\.own is {'width': 8}, but .* is None"):
        quadratic().load_state_dict(saved)


def test_a_full_disk_is_an_error_of_the_checkpoint_and_leaves_the_old_file(tmp_path):
    """PyTorch hides the system's error behind one of its own, which it raises when it closes the file."""
    path = tmp_path / "checkpoint.pt"
    checkpoints.save(path, {"w": torch.zeros(10)})
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(
            CheckpointError, match=r"cannot write the checkpoint .*: File too large"
        ):
            checkpoints.save(path, {"w": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


def test_any_damaged_bytes_are_a_checkpoint_error(tmp_path):
    path = tmp_path / "checkpoint.pt"
    for content in (b"", b"0", b".", b"a.", b"\x80\x02.", b"\x80\x02h\x07.", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="it is damaged"):
            checkpoints.load(path)


@pytest.mark.parametrize("change", ["shape", "name"])
def test_the_checkpoint_of_another_model_is_refused(change):
    training = quadratic()
    training.advance()
    saved = training.state_dict()
    saved["model"] = {"weight": torch.ones(2, 1)} if change == "shape" else {"other": torch.ones(1)}
    with pytest.raises(
        CheckpointError, match=r"has other parameters than this model \(.*; delete it to start over"
    ):
        quadratic().load_state_dict(saved)


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.pt"
    checkpoints.save(path, {"value": 1})
    with pytest.raises(AttributeError):
        checkpoints.save(path, {"value": lambda: None})
    assert checkpoints.load(path) == {"value": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.medium
def test_the_digits_reach_96_percent():
    task = job(target=Target("top1", 0.96), epochs=15, global_batch_size=64)
    outcome, points = run(task)
    assert outcome.state == "reached" and 1 < outcome.epochs_to_target < 12
    assert points[-1].metric >= 0.96 > max(point.metric for point in points[:-1])


class Looked(Workload):
    """A table of words, whose gradient is sparse if the data say so."""

    metrics: ClassVar = {"loss": False}

    def __init__(self, data):
        self.sparse = data["sparse"]
        self.train_samples = self.evaluation_samples = 16

    def build_model(self, settings):
        return nn.Sequential(nn.Embedding(16, 3, sparse=self.sparse), nn.Linear(3, 2))

    def training_batch(self, indices, epochs, seed):
        return (indices,)

    def loss(self, model, batch, settings):
        return model(batch[0]).square().mean()

    def evaluation_batch(self, indices):
        return (indices,)

    def score(self, model, batch):
        return {"loss": model(batch[0]).square().mean(1)}


def test_a_sparse_embedding_is_trained_like_a_dense_one():
    def losses(*, sparse):
        training = SynchronousTraining(
            job(
                target=Target("loss", 1e-9, higher_is_better=False),
                global_batch_size=8,
                settings={"gradient_clip_norm": 0.1, "gradient_lag": 1},
            ),
            SingleProcessCommunicator(torch.device("cpu")),
            workload=Looked({"sparse": sparse}),
        )
        return [point.loss for point in finish(training)]

    assert losses(sparse=True) == losses(sparse=False) != []
