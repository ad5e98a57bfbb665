import dataclasses
from pathlib import Path

import pytest
import torch

from search_spaces import SCALING_RULES
from search_spaces.settings import TrainingSettings
from trainers import JobError, Target, TrainingJob
from trainers.distributed.sampling import SampleStream
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop.synchronous import SynchronousTraining
from trainers.schedules.adascale import AdaScale
from trainers.schedules.arithmetic import NUMBERS
from trainers.schedules.device_arithmetic import ON_DEVICE
from trainers.schedules.learning_rate import learning_rate

HERE = Path(__file__).parent


def measured(squared, trace, base, batch):
    """The norms that these true values are expected to give, with the samples of a chunk and of the batch."""
    norms = [squared + trace / base, squared + trace / batch]
    return torch.tensor(norms, dtype=torch.float64), base, batch


def job(settings=None, **changes):
    recipe = TrainingSettings(
        **{"learning_rate": 0.01, "momentum": 0.5, "adascale_batch_size": 16, **(settings or {})}
    )
    values = {
        "workload": "known_noise:Points",
        "data": {},
        "settings": recipe,
        "global_batch_size": 128,
        "seed": 5,
        "target": Target("loss", 1e-9, higher_is_better=False),
        "epochs": 128 * 12 / 20_000,
        "evaluations_per_epoch": 20_000 / 128,
        "search_path": str(HERE),
    }
    return TrainingJob(**{**values, **changes})


def finish(task):
    training = SynchronousTraining(task, SingleProcessCommunicator(torch.device("cpu")))
    points = []
    while not training.finished:
        points.append(training.advance())
    return training, points


@pytest.mark.parametrize(
    ("squared", "trace", "gain"),
    [
        (0.0, 5.0, 8.0),  # only noise: a batch of k times b0 is worth k updates
        (1.0, 1e-9, 1.0),  # no noise: it is worth one
        (1.0, 16.0, 2 / 1.125),  # (16 / 16 + 1) / (16 / 128 + 1)
        (-0.5, 5.0, 8.0),
        (1.0, -5.0, 1.0),  # estimates that no true value can have
    ],
)
@pytest.mark.parametrize("arithmetic", [NUMBERS, ON_DEVICE])
def test_the_gain_of_the_paper_at_its_limits(squared, trace, gain, arithmetic):
    scale = AdaScale(16, 128, 1000)
    scale.arithmetic = arithmetic
    scale.load_state_dict(scale.state_dict())
    scale.add(*measured(squared, trace, 16, 128))
    assert float(scale.gain) == pytest.approx(gain)
    scale.advance()
    scale.advance(torch.tensor(True))  # left out
    scale.advance(torch.tensor(False))
    assert float(scale.epochs) == pytest.approx(2 * gain * 16 / 1000)
    scale.add(torch.tensor([float("inf"), 1.0], dtype=torch.float64), 16, 128)
    assert float(scale.gain) == pytest.approx(gain)


def test_the_smoothing_is_that_of_the_paper():
    for base, smoothing in ((64, 0.999), (1, 0.936), (16, 0.996)):
        assert AdaScale(base, 64, 1000).smoothing == pytest.approx(smoothing)
    assert AdaScale(1, 4000, 10_000).smoothing == 0


def test_a_training_follows_the_algorithm_written_out():
    task = job({"warmup_epochs": 16 * 30 / 20_000, "decay": "cosine", "weight_decay": 0.0})
    training, points = finish(task)
    data, stream = training.workload.points, SampleStream(20_000, 5)
    weight, velocity, tau, keep = torch.zeros(8, dtype=torch.float64), 0.0, 0.0, 1 - 8 / 1000
    squared = variance = total = 0.0
    for number, point in enumerate(points):
        gradients = (weight - data[stream.take(128 * number, 128)[0]]).view(8, 16, 8).mean(1)
        mean = gradients.mean(0)
        each, whole = float(gradients.square().sum(1).mean()), float(mean.square().sum())
        squared = keep * squared + (1 - keep) * (8 * whole - each) / 7  # fairscale, adaptdl: k = 8
        variance = keep * variance + (1 - keep) * (each - whole) * 8 / 7
        total = keep * total + (1 - keep)
        gain = (variance / total + squared / total) / (variance / total / 8 + squared / total)
        rate = gain * learning_rate(task.settings, tau * 16 / 20_000, task.epochs)
        tau += gain
        velocity = 0.5 * velocity + mean
        weight = weight - rate * velocity
        assert 1 < gain < 8 and point.learning_rate == pytest.approx(rate)
    torch.testing.assert_close(training.model.weight[0].detach(), weight)
    assert float(training.adascale.scale_invariant_steps) == pytest.approx(tau)


@pytest.mark.parametrize(
    "changes", [{"micro_batch_size": 8}, {"micro_batch_size": 48}, {"micro_batch_size": 4}]
)
def test_micro_batches_change_nothing(changes):
    task = job()
    (one, first), (other, second) = finish(task), finish(dataclasses.replace(task, **changes))
    assert [point.learning_rate for point in first] == pytest.approx(
        [point.learning_rate for point in second]
    )
    torch.testing.assert_close(one.model.weight, other.model.weight)


def test_at_its_base_batch_it_is_the_plain_training():
    plain = job({"adascale_batch_size": None, "warmup_epochs": 0.02, "decay": "cosine"})
    scaled = dataclasses.replace(plain, settings=plain.settings.replace(adascale_batch_size=128))
    ours, theirs = (finish(task)[1] for task in (scaled, plain))
    for name in ("loss", "learning_rate"):
        assert [getattr(each, name) for each in ours] == pytest.approx(
            [getattr(each, name) for each in theirs]
        )


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        (
            {"adascale_batch_size": 256},
            {},
            "adascale_batch_size must be at most global_batch_size, but got 256 and 128",
        ),
        ({"gradient_reduction": "adasum"}, {}, "needs gradient_reduction 'mean', but got 'adasum'"),
        (
            {"adascale_batch_size": 24},
            {"workload": "resnet", "data": {"source": "digits"}, "target": Target("top1", 0.9)},
            "adascale_batch_size must be a whole number of normalization groups, but got 24 "
            "and normalization_batch_size 16",
        ),
    ],
)
def test_what_does_not_go_together_is_an_error(settings, changes, message):
    with pytest.raises(JobError, match=message):
        SynchronousTraining(job(settings, **changes), SingleProcessCommunicator())


def test_the_scaling_rule_keeps_the_first_base_batch():
    settings, rule = TrainingSettings(learning_rate=0.1), SCALING_RULES["adascale"]
    assert rule(settings, 256, 1024) == settings.replace(adascale_batch_size=256)
    assert rule(rule(settings, 256, 1024), 1024, 8192) == rule(settings, 256, 8192)
