"""The estimators against a known covariance, and the measurement in a training against the same sums by hand."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from search_spaces.settings import TrainingSettings
from tests.trainers.worker_processes import start_torch_workers, wait
from trainers import Target, TrainingJob
from trainers.begin import train
from trainers.distributed.sampling import SampleStream
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop import checkpoint as checkpoints
from trainers.loop.synchronous import SynchronousTraining
from trainers.schedules.noise_scale import (
    MEASURED_EVERY,
    SMOOTHING,
    GradientStatistics,
    SquaredNorms,
    squared_norm,
)
from trainers.workloads import load_workload

pytestmark = pytest.mark.medium

HERE = Path(__file__).parent


def job(settings=None, **changes):
    recipe = TrainingSettings(**{"learning_rate": 1e-12, "weight_decay": 0.0, **(settings or {})})
    values = {
        "workload": "known_noise:Points",
        "data": {},
        "settings": recipe,
        "global_batch_size": 64,
        "seed": 5,
        "target": Target("loss", 1e-9, higher_is_better=False),
        "epochs": 64 * 60 / 20_000,
        "evaluations_per_epoch": 20_000 / (64 * 60),
        "search_path": str(HERE),
    }
    return TrainingJob(**{**values, **changes})


def advance(task):
    training = SynchronousTraining(task, SingleProcessCommunicator(torch.device("cpu")))
    return training, training.advance()


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.25,) * 4, (0.5, 0.25, 0.25), (0.625, 0.375)])
def test_both_estimates_are_unbiased_whatever_the_chunks(shares):
    rng = np.random.default_rng(0)
    batch, runs, gradient, scales = (
        32,
        20_000,
        np.array([0.3, -0.2, 0.1]),
        np.array([1.0, 2.0, 0.5]),
    )
    chunks = [
        gradient + scales / np.sqrt(batch * share) * rng.standard_normal((runs, 3))
        for share in shares
    ]
    of_chunks = sum(share * (chunk**2).sum(1) for share, chunk in zip(shares, chunks, strict=True))
    of_batch = (sum(share * chunk for share, chunk in zip(shares, chunks, strict=True)) ** 2).sum(1)
    measured = [
        SquaredNorms(small, large, batch / len(shares), batch)
        for small, large in zip(of_chunks, of_batch, strict=True)
    ]
    for estimates, truth in (
        ([each.squared_gradient for each in measured], (gradient**2).sum()),
        ([each.covariance_trace for each in measured], (scales**2).sum()),
    ):
        assert abs(np.mean(estimates) - truth) < 4 * np.std(estimates) / np.sqrt(runs)
    assert min(each.squared_gradient for each in measured) < 0  # a single estimate may be negative


def test_averages_are_kept_apart_and_then_divided():
    statistics = GradientStatistics(0.75)
    assert statistics.noise_scale is None
    measured = [SquaredNorms(3.0, 2.0, 8, 32), SquaredNorms(5.0, 1.5, 8, 32)]
    for each in measured:
        statistics.add(each)
    weights = np.array([0.75, 1.0]) / 1.75
    squared = weights @ [each.squared_gradient for each in measured]
    trace = weights @ [each.covariance_trace for each in measured]
    assert statistics.squared_gradient == pytest.approx(squared) and squared > 0
    assert statistics.noise_scale == pytest.approx(trace / squared)
    copy = GradientStatistics(0.75)
    copy.load_state_dict(statistics.state_dict())
    assert copy.noise_scale == statistics.noise_scale
    statistics.add(SquaredNorms(50.0, 0.1, 8, 32))
    assert statistics.squared_gradient < 0 and statistics.noise_scale is None


def test_the_norm_is_that_of_all_numbers_in_any_type():
    tensors = [
        torch.full((5,), 3.0),
        torch.tensor(4.0, dtype=torch.bfloat16),
        torch.ones(2, 2, dtype=torch.float64),
    ]
    assert float(squared_norm(tensors)) == pytest.approx(45 + 16 + 4)
    assert float(squared_norm([torch.full((4096,), 100.0, dtype=torch.float16)])) == pytest.approx(
        4096e4
    )


def test_a_training_measures_the_true_noise_scale(monkeypatch):
    monkeypatch.setattr("trainers.loop.micro_batches.MEASURED_EVERY", 1)
    monkeypatch.setattr("trainers.loop.synchronous.SMOOTHING", 0.998)
    epochs = 64 * 300 / 20_000
    training, point = advance(
        job(epochs=epochs, evaluations_per_epoch=1 / epochs, micro_batch_size=8)
    )
    points = training.workload.points
    truth = float(points.var(0).sum() / points.mean(0).square().sum())
    assert point.step == 300 and point.gradient_noise_scale == pytest.approx(truth, rel=0.1)
    assert training.statistics.covariance_trace == pytest.approx(
        float(points.var(0).sum()), rel=0.05
    )


def by_hand(task, chunk):
    """The averages after the measured updates, from the points of the stream."""
    points, stream = (
        load_workload(task.workload, {}, str(HERE)).points,
        SampleStream(20_000, task.seed),
    )
    statistics = GradientStatistics(SMOOTHING)
    for step in range(0, 60, MEASURED_EVERY):
        gradients = -points[stream.take(step * 64, 64)[0]]
        of_chunks = gradients.view(-1, chunk, points.shape[1]).mean(1).square().sum(1).mean()
        statistics.add(
            SquaredNorms(float(of_chunks), float(gradients.mean(0).square().sum()), chunk, 64)
        )
    return statistics.state_dict()


@pytest.mark.parametrize(
    ("changes", "chunk"),
    [
        ({}, 32),
        ({"micro_batch_size": 16}, 16),
        ({"settings": {"loss_scaling": "static", "loss_scale": 1024.0}}, 32),
        ({"settings": {"gradient_clip_norm": 0.01}}, 32),
        ({"settings": {"gradient_lag": 1}}, 32),
        ({"settings": {"weight_decay": 0.1}}, 32),
    ],
)
def test_what_is_measured_are_the_chunks_of_every_so_many_updates(changes, chunk):
    task = job(**changes)
    training, point = advance(task)
    assert point.step == 60
    expected = by_hand(task, chunk)
    assert training.statistics.state_dict() == pytest.approx(expected, rel=1e-6)
    assert point.gradient_noise_scale == pytest.approx(
        expected["covariance_trace"] / expected["squared_gradient"]
    )


@pytest.mark.slow
def test_two_workers_measure_their_own_chunks_and_share_gain_and_weights(tmp_path):
    lagged = {
        "gradient_lag": 1,
        "gradient_clip_norm": 0.5,
        "learning_rate": 0.01,
        "loss_scaling": "dynamic",
    }
    scaled = {"adascale_batch_size": 16, "learning_rate": 0.001}
    tasks = {"plain": job(), "lagged": job(lagged), "scaled": job(scaled)}
    for name, task in tasks.items():
        task.save(tmp_path / f"{name}.json")
        train(
            task,
            SingleProcessCommunicator(torch.device("cpu")),
            lambda point: None,
            checkpoint=tmp_path / f"{name}.alone.pt",
        )
    program = [str(HERE / "worker_program.py"), str(tmp_path), "together", "torch", "default"]
    codes, answers = wait(start_torch_workers(2, program), 120)
    assert codes == [0, 0], answers
    saved = {
        (name, how): checkpoints.load(tmp_path / f"{name}.{how}.pt")
        for name, how in itertools.product(tasks, ("alone", "together"))
    }
    assert saved["plain", "together"]["statistics"] == pytest.approx(
        by_hand(tasks["plain"], 16), rel=1e-6
    )
    for name in tasks:
        weights = [saved[name, how]["model"]["weight"] for how in ("alone", "together")]
        torch.testing.assert_close(*weights)
    assert saved["scaled", "together"]["adascale"]["scale_invariant_steps"] == pytest.approx(
        saved["scaled", "alone"]["adascale"]["scale_invariant_steps"]
    )
    lags = [saved["lagged", how]["gradients"]["lagging"] for how in ("alone", "together")]
    torch.testing.assert_close(*lags)
    assert float(lags[0][0].norm()) > 0


def digits(**changes):
    values = {
        "workload": "resnet",
        "data": {"source": "digits"},
        "target": Target("top1", 0.9999),
        "seed": 1,
        "settings": TrainingSettings(learning_rate=0.1, normalization_batch_size=16),
        "global_batch_size": 64,
        "epochs": 0.5,
        "evaluations_per_epoch": 2,
    }
    return TrainingJob(**{**values, **changes})


def test_measuring_changes_no_training(monkeypatch):
    measured, point = advance(digits())
    monkeypatch.setattr(
        "trainers.loop.micro_batches.measured_layout", lambda *arguments, **options: None
    )
    plain, other = advance(digits())
    assert point.gradient_noise_scale > 0 and other.gradient_noise_scale is None
    assert point.train_loss == pytest.approx(other.train_loss, rel=1e-4)
    for one, two in zip(measured.replica.parameters, plain.replica.parameters, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


def test_one_group_in_all_has_nothing_to_compare():
    assert advance(digits(global_batch_size=16))[1].gradient_noise_scale is None


def test_batch_norm_of_another_kind_is_not_cut(monkeypatch):
    def build(self, settings):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))

    monkeypatch.setattr("trainers.workloads.resnet.task.ResNetWorkload.build_model", build)
    assert advance(digits())[1].gradient_noise_scale is None
    assert advance(digits(micro_batch_size=16))[1].gradient_noise_scale is not None
