"""Asynchronous training on real actors, all on one Ray: equality, races, and a slow, a dead and a silent replica."""

import itertools
import os
import signal
import threading
import time

import pytest
import torch

from search_spaces.settings import TrainingSettings
from trainers import CommunicationError, JobError, Target, TrainingJob
from trainers.asynchronous.training import AsynchronousTraining
from trainers.begin import begin_training, train
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop import checkpoint as checkpoints

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.usefixtures("one_ray")]


def racing(folder, *, delay=0.0, changes=None, **settings):
    folder.mkdir(exist_ok=True)
    values = {"learning_rate": 0.02, "momentum": 0.0, "weight_decay": 0.0, **settings}
    return TrainingJob(
        **{
            "workload": "tests.trainers.racing_workload:Racing",
            "data": {"folder": str(folder), "delay": delay},
            "target": Target("loss", 1e-9, higher_is_better=False),
            "settings": TrainingSettings(**values),
            "global_batch_size": 4,
            "seed": 0,
            "epochs": 3,
            "evaluations_per_epoch": 1,
            **(changes or {}),
        }
    )


def samples(folder):
    """What every replica loaded, as (epoch, index)."""
    return [
        tuple(map(int, sample.split(":")))
        for log in folder.glob("*.log")
        for line in log.read_text().splitlines()
        for sample in line.split()
    ]


def trained(job):
    training = begin_training(job, SingleProcessCommunicator(torch.device("cpu")))
    points = []
    while not training.finished:
        points.append(training.advance())
    return training, points


def test_one_replica_is_the_synchronous_training(tmp_path):
    def job(mode):
        return TrainingJob(
            workload="resnet",
            data={"source": "digits"},
            target=Target("top1", 0.9999),
            global_batch_size=64,
            seed=1,
            epochs=0.5,
            evaluations_per_epoch=4,
            settings=TrainingSettings(
                learning_rate=0.1,
                warmup_epochs=0.2,
                normalization_batch_size=16,
                gradient_clip_norm=1.0,
                update_mode=mode,
                asynchronous_workers=1,
            ),
        )

    states, points = {}, {}
    for mode in ("synchronous", "asynchronous"):
        training, points[mode] = trained(job(mode))
        states[mode] = training.state_dict()
    assert isinstance(training, AsynchronousTraining)
    assert [each.maximum for each in training.staleness] == [0, 0]
    assert states["asynchronous"]["model"].keys() == states["synchronous"]["model"].keys()
    for name, value in states["synchronous"]["model"].items():
        torch.testing.assert_close(
            states["asynchronous"]["model"][name], value, rtol=0, atol=0, msg=name
        )
    for one, other in zip(*points.values(), strict=True):
        assert (
            one.step,
            one.metric,
            one.loss,
            one.train_loss,
            one.learning_rate,
            one.gradient_noise_scale,
        ) == (
            other.step,
            other.metric,
            other.loss,
            other.train_loss,
            other.learning_rate,
            other.gradient_noise_scale,
        )


def test_replicas_race_learn_use_no_sample_twice_and_resume(tmp_path):
    job = racing(
        tmp_path / "race", update_mode="asynchronous", asynchronous_workers=2, epoch_quorum=1.0
    )
    path = tmp_path / "checkpoint.pt"
    training = begin_training(job, SingleProcessCommunicator(torch.device("cpu")))
    assert isinstance(training, AsynchronousTraining)
    first = training.advance()
    checkpoints.save(path, training.state_dict())
    training.close()
    assert training.staleness[0].updates == 24 and 0 < training.staleness[0].mean < 24

    points = []
    outcome = train(
        job, SingleProcessCommunicator(torch.device("cpu")), points.append, checkpoint=path
    )
    assert [point.step for point in points] == [48, 72]
    assert (outcome.state, outcome.steps, outcome.epochs) == ("censored", 72, 3.0)
    assert points[-1].loss < points[0].loss < first.loss < 10
    assert checkpoints.load(path)["progress"]["state"] == "censored"
    assert sorted(samples(tmp_path / "race")) == sorted(itertools.product(range(3), range(96)))


def test_a_quorum_does_not_wait_for_the_slow_replica(tmp_path):
    job = racing(
        tmp_path / "race",
        delay=0.5,
        update_mode="asynchronous",
        asynchronous_workers=2,
        epoch_quorum=0.5,
        changes={"epochs": 2},
    )
    training, points = trained(job)
    # one of two has to finish its 12 updates; the other does a few in that time
    assert all(
        12 <= each.updates < 24 and each.skipped == 24 - each.updates for each in training.staleness
    )
    assert max(each.lead for each in training.staleness) > 1
    assert [point.step for point in points] == [24, 48]
    used = samples(tmp_path / "race")
    assert len(used) == len(set(used)) < 2 * 96


def test_a_bound_holds_the_fast_replica_back(tmp_path):
    job = racing(
        tmp_path / "race",
        delay=0.05,
        update_mode="stale_synchronous",
        staleness_bound=0,
        asynchronous_workers=2,
        changes={"epochs": 1},
    )
    training, _ = trained(job)
    (bounded,) = training.staleness
    assert (bounded.updates, bounded.skipped, bounded.lead) == (24, 0, 0) and bounded.maximum <= 1


def test_a_replica_that_dies_ends_the_training_with_its_name(tmp_path):
    job = racing(
        tmp_path / "race",
        delay=0.1,
        update_mode="stale_synchronous",
        asynchronous_workers=2,
        staleness_bound=2,
        changes={"epochs": 200},
    )
    training = begin_training(job, SingleProcessCommunicator(torch.device("cpu")))
    training.advance()
    kept = training.state_dict()
    victim = training._actors.process_ids()[1]
    threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
    with pytest.raises(
        CommunicationError, match=r"replica 1 of 2 died during asynchronous training"
    ):
        for _ in range(50):
            training.advance()
    with pytest.raises(JobError, match="restart it from its last checkpoint"):
        training.state_dict()
    assert kept["progress"]["step"] == 24
    with pytest.raises(ProcessLookupError):
        _wait_for_end(victim)


def _wait_for_end(process):
    for _ in range(200):
        os.kill(process, 0)
        time.sleep(0.05)


def test_a_silent_replica_ends_the_training_with_its_name(tmp_path):
    job = racing(tmp_path / "race", delay=600.0, update_mode="asynchronous", asynchronous_workers=1)
    training = begin_training(job, SingleProcessCommunicator(torch.device("cpu")))
    training._started()  # building takes longer than the silence that is allowed here
    training._actors._timeout = 2.0
    with pytest.raises(
        CommunicationError, match=r"replica 0 of 1 has been silent for \d+ s, more than the 2 s"
    ):
        training.advance()


def test_an_error_in_a_replica_is_that_error(tmp_path):
    job = racing(tmp_path / "race", update_mode="asynchronous", asynchronous_workers=1)
    training = begin_training(job, SingleProcessCommunicator(torch.device("cpu")))
    training._started()
    (tmp_path / "race").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"race/0\.log"):
        training.advance()


def test_started_workers_are_refused(tmp_path):
    job = racing(tmp_path / "race", update_mode="asynchronous")
    two = type("Two", (), {"rank": 0, "size": 2, "device": torch.device("cpu")})()
    with pytest.raises(
        JobError,
        match=r"starts its own replicas .* but 2 workers were started; start a "
        r"single process",
    ):
        begin_training(job, two)
