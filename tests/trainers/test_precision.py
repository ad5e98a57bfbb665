"""Loss scaling, clipping, gradient lag and reduced types, each against the same updates written out."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from search_spaces.settings import TrainingSettings
from trainers import JobError, Target, TrainingJob
from trainers.distributed.sampling import SampleStream
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop.synchronous import SynchronousTraining
from trainers.numerics.normalization import GhostBatchNorm, GhostBatchNormReLU
from trainers.numerics.precision import LossScale

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
UPDATES = 40


def points_job(settings):
    recipe = TrainingSettings(
        **{"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.0, **settings}
    )
    return TrainingJob(
        workload="known_noise:Points",
        data={},
        settings=recipe,
        global_batch_size=64,
        seed=5,
        target=Target("loss", 1e-9, higher_is_better=False),
        epochs=64 * UPDATES / 20_000,
        evaluations_per_epoch=20_000 / (64 * UPDATES),
        search_path=str(HERE),
    )


def digits_job(**settings):
    """Half an epoch: a processor takes ten times as long for a product in fp16."""
    return TrainingJob(
        workload="resnet",
        data={"source": "digits"},
        target=Target("top1", 0.9999),
        seed=1,
        epochs=0.5,
        settings=TrainingSettings(learning_rate=0.1, normalization_batch_size=32, **settings),
        global_batch_size=64,
        evaluations_per_epoch=2,
    )


def advance(task):
    training = SynchronousTraining(task, SingleProcessCommunicator(torch.device("cpu")))
    return training, training.advance()


def weights_by_hand(training, change):
    """Heavy ball on the mean gradient of each batch, as ``change`` gives it to the update."""
    data, stream = training.workload.points, SampleStream(20_000, 5)
    weight, velocity = torch.zeros(8, dtype=torch.float64), 0.0
    for number in range(UPDATES):
        velocity = 0.9 * velocity + change(weight - data[stream.take(64 * number, 64)[0]].mean(0))
        weight = weight - 0.1 * velocity
    return weight


def clipped(gradient):
    return gradient * min(1.0, 0.3 / float(gradient.norm()))


class Lag:
    def __init__(self):
        self.last = torch.zeros(8, dtype=torch.float64)

    def __call__(self, gradient):
        self.last, due = gradient, self.last
        return due


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({}, lambda gradient: gradient),
        ({"gradient_clip_norm": 0.3}, clipped),
        ({"gradient_clip_norm": 0.3, "loss_scaling": "static", "loss_scale": 512.0}, clipped),
        ({"loss_scaling": "static", "loss_scale": 0.1}, lambda gradient: gradient),
        ({"loss_scaling": "dynamic", "loss_scale_growth_updates": 7}, lambda gradient: gradient),
        ({"gradient_lag": 1}, Lag()),
        ({"gradient_lag": 1, "loss_scaling": "dynamic", "loss_scale_growth_updates": 7}, Lag()),
    ],
)
def test_updates_are_those_written_out(settings, change):
    training, _ = advance(points_job(settings))
    torch.testing.assert_close(training.model.weight[0].detach(), weights_by_hand(training, change))


def test_the_first_lagged_update_moves_nothing():
    training = SynchronousTraining(
        points_job({"gradient_lag": 1}), SingleProcessCommunicator(torch.device("cpu"))
    )
    training._updates(0, 1)
    assert not training.model.weight.any()
    assert float(training.gradients.state_dict()["lagging"][0].norm()) > 0


def test_clipping_sees_the_whole_gradient_once_per_update():
    training, _ = advance(digits_job(gradient_clip_norm=1e-3))
    training.replica.set_gradients(None)
    micro_batches = itertools.islice(training.loader.micro_batches(1), 1)
    training.gradients.compute(micro_batches, None)
    norm = torch.stack([gradient.norm() for gradient in training.replica.gradients()]).norm()
    assert float(norm) == pytest.approx(1e-3, rel=1e-4)


def test_a_dynamic_scale_doubles_after_so_many_updates_and_halves_at_an_overflow():
    scale = LossScale(
        TrainingSettings(loss_scaling="dynamic", loss_scale=8.0, loss_scale_growth_updates=3)
    )
    values = []
    for overflowed in (False, False, False, False, True, True, False, False, False):
        scale.update(torch.tensor(overflowed))
        values.append(float(scale.value))
    assert values == [8, 8, 16, 16, 8, 4, 4, 4, 8]


@pytest.mark.parametrize("lag", [0, 1])
def test_an_update_that_overflows_is_left_out(lag):
    task = points_job({"loss_scaling": "dynamic", "loss_scale": 4.0, "gradient_lag": lag})
    training = SynchronousTraining(task, SingleProcessCommunicator(torch.device("cpu")))
    take = training.workload.training_batch

    def overflow(indices, epochs, seed):  # in the third update
        (points,) = take(indices, epochs, seed)
        return (points * (1e300 if taken.pop(0) else 1.0),)

    taken = [
        number == 3 for number in range(UPDATES + 2)
    ]  # the measured update 0 has two micro batches
    training.workload.training_batch = overflow
    weights = []
    for number in range(6):
        training._updates(number, number + 1)
        weights.append(training.model.weight.detach().clone())
    still = [torch.equal(before, after) for before, after in itertools.pairwise(weights)]
    assert still == [number == 1 + lag for number in range(5)]
    assert training.gradients.loss_scale.value == 2.0
    assert all(weight.isfinite().all() for weight in weights)


@pytest.mark.parametrize(
    ("precision", "scaling"), [("bf16", "none"), ("fp16", "dynamic"), ("fp16", "static")]
)
@pytest.mark.parametrize("reduced", [False, True])
def test_reduced_precision_trains_almost_as_fp32_does(precision, scaling, reduced):
    _, exact = advance(digits_job())
    training, point = advance(
        digits_job(
            precision=precision, loss_scaling=scaling, loss_scale=1024.0, reduced_weights=reduced
        )
    )
    kinds = {
        type(module): module.weight.dtype
        for module in training.model.modules()
        if hasattr(module, "weight")
    }
    stored = (
        {"bf16": torch.bfloat16, "fp16": torch.float16}[precision] if reduced else torch.float32
    )
    norms = {GhostBatchNorm: torch.float32, GhostBatchNormReLU: torch.float32}
    assert kinds == {nn.Conv2d: stored, nn.Linear: stored, **norms}
    assert (
        point.train_loss == pytest.approx(exact.train_loss, rel=0.02)
        and point.train_loss != exact.train_loss
    )
    assert point.loss < 0.9 * exact.train_loss


def test_the_products_are_computed_in_the_reduced_type():
    training = SynchronousTraining(
        digits_job(precision="bf16"), SingleProcessCommunicator(torch.device("cpu"))
    )
    seen = []
    training.model.classifier.register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    training.advance()
    assert set(seen) == {torch.bfloat16}  # in training and in evaluation


def test_gradients_of_reduced_weights_do_not_vanish_when_they_are_unscaled():
    task = digits_job(
        precision="fp16", reduced_weights=True, loss_scaling="static", loss_scale=2.0**16
    )
    training, _ = advance(task)
    training.replica.set_gradients(None)
    training.gradients.compute(itertools.islice(training.loader.micro_batches(1), 1), None)
    gradients = training.replica.gradients()
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    reduced = [
        gradient
        for gradient, parameter in zip(gradients, training.replica.parameters, strict=True)
        if parameter.dtype == torch.float16
    ]
    # one micro batch's gradient is an fp16 number over 2^16; as fp16 again some of it would lose its digits
    assert all(
        torch.equal((gradient * 2.0**16).half().float(), gradient * 2.0**16) for gradient in reduced
    )
    assert any(not torch.equal(gradient.half().float(), gradient) for gradient in reduced)


def test_zero_gamma_and_normalization_momentum_reach_the_model():
    for zero_gamma, first in ((None, 1.0), (True, 0.0), (False, 1.0)):
        task = digits_job(zero_gamma=zero_gamma, normalization_momentum=0.7)
        training = SynchronousTraining(task, SingleProcessCommunicator(torch.device("cpu")))
        assert {
            float(block.last_norm.weight.detach()[0])
            for block in training.model.convolutions
            if hasattr(block, "last_norm")
        } == {first}
        assert {norm.momentum for norm in training.replica.norms} == {0.7}


def test_class_weights_are_refused_where_classes_are_balanced():
    with pytest.raises(JobError, match="class_weighting is a setting of segmentation"):
        SynchronousTraining(digits_job(class_weighting="inverse_sqrt"), SingleProcessCommunicator())


def test_sample_images_are_computed_in_the_precision_of_the_training():
    training = SynchronousTraining(
        digits_job(precision="bf16", reduced_weights=True),
        SingleProcessCommunicator(torch.device("cpu")),
    )
    assert training.sample_images() is None
    batch = training.workload.evaluation_batch(torch.arange(4))
    images = training.workload.prepare(batch)[0]

    def sample_images(model):
        return {"classes": model(images).argmax(1).tolist(), "training": model.training}

    training.workload.sample_images = sample_images
    shown = training.sample_images()
    assert len(shown["classes"]) == 4 and shown["training"] is False


def test_weights_in_the_reduced_type_ask_for_a_pytorch_that_can(monkeypatch):
    from trainers.numerics import precision

    monkeypatch.setattr(precision, "torch", SimpleNamespace(Tensor=object, __version__="2.9.1"))
    with pytest.raises(
        JobError, match=r"reduced_weights needs PyTorch 2\.10 or later.* but this is 2\.9\.1; leave"
    ):
        precision.store_reduced(
            nn.Linear(2, 2), TrainingSettings(precision="bf16", reduced_weights=True)
        )
