"""A training that is resumed from a checkpoint equals one that was never interrupted, bit for bit on a CPU."""

import pytest
import torch

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.begin import begin_training
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop import checkpoint as checkpoints
from trainers.loop.synchronous import SynchronousTraining

COMMON = {
    "gradient_lag": 1,
    "loss_scaling": "dynamic",
    "loss_scale": 1024.0,
    "loss_scale_growth_updates": 5,
    "gradient_clip_norm": 2.0,
    "warmup_epochs": 0.2,
    "warmup_shape": "quadratic",
    "normalization_batch_size": 8,
}
RECIPES = {
    "grow": {
        **COMMON,
        "batch_control": "grow",
        "decay": "step",
        "decay_milestones": (0.4, 0.8),
        "decay_factor": 0.5,
        "batch_limit_factor": 2.0,
        "optimizer": "lars",
        "learning_rate": 2.0,
    },
    "piecewise": {
        **COMMON,
        "batch_control": "piecewise",
        "batch_milestones": (0.3, 0.7),
        "batch_factors": (4.0, 2.0),
        "batch_rate_rule": "sqrt",
        "precision": "bf16",
        "reduced_weights": True,
    },
    "adascale": {**COMMON, "adascale_batch_size": 16, "decay": "cosine"},
}


def job(recipe, **changes):
    settings = TrainingSettings(**{"learning_rate": 0.05, **RECIPES[recipe]})
    values = {
        "workload": "resnet",
        "data": {"source": "digits"},
        "target": Target("top1", 0.9999),
        "settings": settings,
        "global_batch_size": 32,
        "seed": 1,
        "epochs": 1.2,
        "evaluations_per_epoch": 6,
    }
    return TrainingJob(**{**values, **changes})


def finish(training):
    points = []
    while not training.finished:
        points.append(training.advance())
    return points


def told(points):
    return [{**vars(point), "seconds": None} for point in points]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_everything_at_once_resumes_bit_for_bit_from_any_checkpoint(tmp_path, recipe):
    torch.set_num_threads(1)
    task = job(recipe)
    straight = SynchronousTraining(task, SingleProcessCommunicator(torch.device("cpu")))
    expected = []
    while not straight.finished:
        checkpoints.save(tmp_path / f"{len(expected)}.pt", straight.state_dict())
        expected.append(straight.advance())
    assert expected[-1].gradient_noise_scale is not None and straight.outcome.state == "censored"
    if recipe != "adascale":
        assert (
            len({point.global_batch_size for point in expected})
            == len(straight.batch_schedule.phases)
            > 1
        )
    for halt in (1, len(expected) // 2, len(expected) - 1):
        resumed = SynchronousTraining(task, SingleProcessCommunicator(torch.device("cpu")))
        resumed.load_state_dict(checkpoints.load(tmp_path / f"{halt}.pt"))
        assert told(finish(resumed)) == told(expected[halt:])
        check_equal(resumed.state_dict(), straight.state_dict())


def check_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert set(one) == set(other)
        for name in one:
            if name not in ("seconds", "memory_bytes"):
                check_equal(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            check_equal(first, second)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other or repr(one) == repr(other) == "nan"


@pytest.mark.parametrize("sampled", [False, True])
def test_the_noisy_quadratic_resumes_across_phases(tmp_path, sampled):
    settings = TrainingSettings(
        learning_rate=0.02,
        batch_control="piecewise",
        batch_milestones=(0.6, 1.5),
        batch_factors=(4.0, 2.0),
        batch_rate_rule="linear",
    )
    task = TrainingJob(
        workload="noisy_quadratic",
        data={"train_samples": 512, "sampled": sampled},
        settings=settings,
        target=Target("loss", 1e-9, higher_is_better=False),
        global_batch_size=16,
        seed=0,
        epochs=3,
    )
    expected = finish(begin_training(task))
    assert len({point.global_batch_size for point in expected}) == 3
    for halt in range(1, len(expected)):
        broken = begin_training(task)
        for _ in range(halt):
            broken.advance()
        checkpoints.save(tmp_path / "half.pt", broken.state_dict())
        resumed = begin_training(task)
        resumed.load_state_dict(checkpoints.load(tmp_path / "half.pt"))
        assert finish(resumed) == expected[halt:]
