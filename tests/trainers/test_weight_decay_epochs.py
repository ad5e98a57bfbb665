"""Weight decay by its time scale: how far it shrinks weights, in the loop and in a fused training, at any batch."""

import asyncio
import dataclasses
import math

import pytest
import torch

from search_spaces.settings import TrainingSettings
from tests.trainers.small_network import Small
from trainers import Target, TrainingJob
from trainers.asynchronous.messages import ActorSetup
from trainers.asynchronous.server import ParameterServer
from trainers.asynchronous.training import AsynchronousTraining
from trainers.distributed.single import SingleProcessCommunicator
from trainers.fused import FusedTrainings
from trainers.loop.synchronous import SynchronousTraining
from trainers.schedules.weight_decay import with_weight_decay

DATA = {"source": "digits"}


@pytest.mark.parametrize("batch", [64, 256, 1024])
@pytest.mark.parametrize("rate", [0.001, 0.03])
def test_weights_without_gradients_fall_to_1_over_e_in_the_time_scale(batch, rate):
    samples, epochs = 65536, 4.0
    settings = with_weight_decay(
        TrainingSettings.from_record(
            {"optimizer": "adamw", "learning_rate": rate, "weight_decay_epochs": epochs}
        ),
        batch,
        samples,
    )
    updates = round(epochs * samples / batch)
    left = (1 - rate * settings.weight_decay) ** updates
    assert left == pytest.approx(math.exp(-1), rel=1 / updates)


def test_without_it_the_coefficient_stays():
    for name in ("adamw", "sgd"):
        settings = TrainingSettings(optimizer=name, weight_decay=0.3)
        assert with_weight_decay(settings, 64, 1000) is settings


def training(**changes: object) -> SynchronousTraining:
    settings = TrainingSettings.from_record(
        {"optimizer": "lion", "learning_rate": 0.001, "decay": "constant", **changes}
    )
    job = TrainingJob(
        workload="resnet",
        data=DATA,
        target=Target("top1", 2.0),
        settings=settings,
        global_batch_size=48,
        seed=3,
        epochs=0.5,
        evaluations_per_epoch=6,
    )
    return SynchronousTraining(job, SingleProcessCommunicator(), workload=Small(DATA))


def test_a_training_and_a_fused_one_decay_by_it():
    samples = Small(DATA).train_samples
    same = {"weight_decay": 48 / (samples * 0.001 * 2.0)}
    plain, timed = training(**same), training(weight_decay_epochs=2.0)
    wanted = plain.advance().loss
    assert timed.advance().loss == wanted != training(weight_decay=0.0).advance().loss
    fused = FusedTrainings()
    together = [training(weight_decay_epochs=2.0), training(weight_decay_epochs=2.0)]
    for each in together:
        fused.add(each)
    assert [point.loss for _, point in fused.advance()] == pytest.approx([wanted] * 2, rel=1e-12)


def test_a_parameter_server_takes_the_state_of_its_training():
    """With a weight decay of 0 the optimizer would have fewer groups of parameters."""
    settings = {"optimizer": "muon", "update_mode": "asynchronous"}
    task = dataclasses.replace(
        training(**settings, weight_decay=0.0, weight_decay_epochs=2.0).job,
        workload="tests.trainers.small_network:Small",
    )
    begun = AsynchronousTraining(task, SingleProcessCommunicator(), workload=Small(DATA))
    server = ParameterServer(
        ActorSetup(
            job=task.to_dict(),
            workers=1,
            threads=torch.get_num_threads(),
            visible_devices=None,
        )
    )
    asyncio.run(server.load_state_dict(begun.state_dict()))
