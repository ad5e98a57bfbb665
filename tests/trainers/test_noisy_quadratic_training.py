import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest

from search_spaces.settings import TrainingSettings
from trainers import CheckpointError, DataError, JobError, Target, TrainingJob, WorkloadError
from trainers.__main__ import main
from trainers.begin import begin_training, train
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop import checkpoint as checkpoints
from trainers.loop.synchronous import SynchronousTraining
from trainers.report import read_outcome, read_points
from trainers.schedules.learning_rate import learning_rate
from trainers.workloads import load_workload, metrics_of
from trainers.workloads.noisy_quadratic.dynamics import (
    initial_quadratic_moments,
    make_quadratic_update,
    next_quadratic_moments,
)
from trainers.workloads.noisy_quadratic.optimum import quadratic_optimum
from trainers.workloads.noisy_quadratic.problem import QuadraticProblem
from trainers.workloads.noisy_quadratic.task import SimulatedTraining

DATA = {"modes": 50, "noise_scale": 2.0, "train_samples": 512}


def job(*, data=None, settings=None, **changes):
    recipe = TrainingSettings(
        **{"learning_rate": 0.2, "momentum": 0.0, "weight_decay": 0.0, **(settings or {})}
    )
    values = {
        "workload": "noisy_quadratic",
        "data": {**DATA, **(data or {})},
        "settings": recipe,
        "seed": 0,
        "target": Target("loss", 0.1, higher_is_better=False),
        "global_batch_size": 16,
        "epochs": 20,
    }
    return TrainingJob(**{**values, **changes})


def finish(training):
    points = []
    while not training.finished:
        points.append(training.advance())
    return points


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "learning_rate": 0.02},
        {"momentum": 0.9, "learning_rate": 0.02, "nesterov": True},
        {"warmup_epochs": 2.5, "decay": "cosine"},
        {"decay": "step", "decay_milestones": (1.0, 2.1)},
        {"weight_decay": 0.1},
        {"optimizer": "lars"},
    ],
)
def test_a_training_follows_the_recursion_at_the_scheduled_rates(settings):
    task = job(settings=settings, epochs=4, target=Target("loss", 1e-9, higher_is_better=False))
    points = finish(begin_training(task))
    problem, given = QuadraticProblem.from_data(DATA), task.settings
    moments, losses, rates = (
        initial_quadratic_moments(problem.initial_squares),
        [problem.initial_loss],
        [],
    )
    for number in range(128):
        rates.append(learning_rate(given, number * 16 / 512, 4))
        moments = next_quadratic_moments(
            moments,
            make_quadratic_update(
                problem.curvature,
                problem.noise,
                learning_rate=rates[-1],
                global_batch_size=16,
                momentum=given.momentum,
                nesterov=given.nesterov,
                weight_decay=given.weight_decay,
                preconditioning=0.5 if given.optimizer == "lars" else 0.0,
            ),
        )
        losses.append(float(problem.loss(moments[0])))
    assert [point.step for point in points] == list(range(8, 129, 8))
    assert [point.loss for point in points] == pytest.approx(losses[8::8])
    assert [point.train_loss for point in points] == pytest.approx(
        np.reshape(losses[:-1], (16, 8)).mean(1)
    )
    assert [point.learning_rate for point in points] == rates[7::8]
    assert all(point.metric == point.loss for point in points)


def test_a_training_at_the_best_settings_takes_the_epochs_of_the_truth():
    problem = QuadraticProblem.from_data(DATA)
    best = quadratic_optimum(problem, 0.1, 128)
    task = job(
        settings={"learning_rate": best.learning_rate},
        global_batch_size=128,
        evaluations_per_epoch=4,
    )
    outcome = train(task, SingleProcessCommunicator(), lambda point: None)
    assert (outcome.state, outcome.steps, outcome.epochs_to_target) == (
        "reached",
        best.steps,
        best.epochs,
    )
    assert f"reached the target {task.target}" in outcome.reason


def test_the_target_is_reached_at_an_evaluation_and_not_between_two():
    often, seldom = (
        finish(begin_training(job(evaluations_per_epoch=number)))[-1] for number in (32, 0.5)
    )
    assert often.step % 64 != 0 and seldom.step == math.ceil(often.step / 64) * 64


def test_the_ends_are_those_of_any_training():
    censored = begin_training(job(epochs=0.5))
    finish(censored)
    assert (
        censored.outcome.state == "censored" and "budget of 0.5 epochs" in censored.outcome.reason
    )
    assert censored.outcome.epochs_to_target is None and censored.outcome.steps == 16
    diverging = begin_training(job(settings={"learning_rate": 2.1}))
    points = finish(diverging)
    assert (
        diverging.outcome.state == "diverged"
        and points[-1].train_loss > 3 * QuadraticProblem.from_data(DATA).initial_loss
    )
    assert "3 times the first update's 2.25" in diverging.outcome.reason
    exploding = begin_training(job(settings={"learning_rate": 1e300}))
    finish(exploding)
    assert exploding.outcome.state == "diverged"
    with pytest.raises(JobError, match="the training is finished"):
        exploding.advance()


def test_the_clock_is_simulated_and_workers_share_the_samples():
    clock = {"seconds_per_update": 0.5, "seconds_per_sample": 0.25}
    for workers, seconds in [(1, 4.5), (2, 2.5), (16, 0.75)]:
        point = SimulatedTraining(job(data=clock), workers=workers).advance()
        assert point.step == 8 and point.seconds == 8 * seconds


def test_seeds_scatter_only_where_weights_are_sampled_and_their_mean_is_the_expectation():
    def losses(sampled, seeds):
        return [
            begin_training(job(data={"sampled": sampled}, seed=seed)).advance().loss
            for seed in range(seeds)
        ]

    expected = losses(False, 3)
    assert len(set(expected)) == 1
    drawn = losses(True, 400)
    assert len(set(drawn)) == 400 and losses(True, 2) == drawn[:2]
    assert abs(np.mean(drawn) - expected[0]) < 4 * np.std(drawn) / 20


def test_the_noise_scale_is_that_of_the_gradient():
    point = begin_training(job(settings={"learning_rate": 1e-12})).advance()
    h = QuadraticProblem.from_data(DATA).curvature
    assert point.gradient_noise_scale == pytest.approx(2.0 * h.sum() / (h**2).sum())


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9, "learning_rate": 0.02, "warmup_epochs": 1.2}]
)
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(tmp_path, sampled, settings):
    task = job(data={"sampled": sampled}, settings=settings, epochs=3)
    expected = finish(begin_training(task))
    for halt in (1, 5):
        broken = begin_training(task)
        points = [broken.advance() for _ in range(halt)]
        checkpoints.save(tmp_path / "half.pt", broken.state_dict())
        resumed = begin_training(task)
        resumed.load_state_dict(checkpoints.load(tmp_path / "half.pt"))
        assert points + finish(resumed) == expected
    with pytest.raises(CheckpointError, match="its seed is 0, but this job's is 1"):
        begin_training(dataclasses.replace(task, seed=1)).load_state_dict(broken.state_dict())
    with pytest.raises(CheckpointError, match="not a checkpoint of a training"):
        begin_training(task).load_state_dict(
            {"job": {}, "model": {}, "optimizer": {}, "progress": {}}
        )


def test_the_command_line_trains_it_like_any_other(tmp_path, capsys):
    task = job(
        global_batch_size=20
    )  # 20 is no multiple of the normalization batch size, which plays no part
    task.save(tmp_path / "job.json")
    arguments = [
        str(tmp_path / "job.json"),
        "--report",
        str(tmp_path / "out.jsonl"),
        "--checkpoint",
        str(tmp_path / "c.pt"),
    ]
    for _ in range(2):  # the second run finds a finished training
        assert main(arguments) == 0, capsys.readouterr().err
        assert read_outcome(tmp_path / "out.jsonl").state == "reached"
        assert read_points(tmp_path / "out.jsonl") == finish(begin_training(task))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"mode": 3}, "there is no data option 'mode'; did you mean 'modes'"),
        ({"modes": 0}, "modes must be a whole number of at least 1, but got 0"),
        (
            {"train_samples": 2.5},
            r"train_samples must be a whole number of at least 1, but got 2\.5",
        ),
        ({"noise_scale": -1}, "noise_scale must be a number of at least 0, but got -1"),
        (
            {"curvature_exponent": "steep"},
            "curvature_exponent must be a number of at least 0, but got 'steep'",
        ),
        ({"initial_square": 0}, "initial_square must be a number above 0, but got 0"),
        ({"sampled": "yes"}, "sampled must be true or false, but got 'yes'"),
        (
            {"preconditioning": 1.5},
            r"preconditioning must be a number of at least 0 and at most 1, but got 1\.5",
        ),
        (
            {"seconds_per_update": math.nan},
            "seconds_per_update must be a number of at least 0, but got nan",
        ),
    ],
)
def test_a_data_option_that_makes_no_sense_is_named(data, message):
    with pytest.raises(DataError, match=message):
        load_workload("noisy_quadratic", data)


def test_options_make_a_round_trip():
    problem = QuadraticProblem(modes=7, curvature_exponent=0.5, noise_scale=3.0, train_samples=99)
    assert QuadraticProblem.from_data(problem.to_data()) == problem
    assert metrics_of("noisy_quadratic") == {"loss": False}
    assert problem.curvature[3] == 0.5 and problem.noise[3] == 1.5


def test_the_loop_of_pytorch_says_that_it_is_not_for_this():
    with pytest.raises(WorkloadError, match=r"its own training loop.*begin_training"):
        SynchronousTraining(job(), SingleProcessCommunicator())


def test_a_training_loads_no_torch(tmp_path):
    job().save(tmp_path / "job.json")
    code = (
        "import sys; from trainers.job import TrainingJob; from trainers.begin import begin_training\n"
        f"training = begin_training(TrainingJob.load({str(tmp_path / 'job.json')!r}))\n"
        "while not training.finished: training.advance()\n"
        "training.state_dict(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
