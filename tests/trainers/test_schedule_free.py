"""Schedule-Free in the loop: evaluated at its average, trained on from its own point, in full and reduced weights."""

import pytest
import torch
from torch import nn

from search_spaces.settings import SettingError, TrainingSettings
from tests.trainers.small_network import Small
from trainers import Target, TrainingJob
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop.replica import evaluate_replica
from trainers.loop.synchronous import SynchronousTraining
from trainers.optimizers import make_optimizer

DATA = {"source": "digits"}


def training(name: str, **changes: object) -> SynchronousTraining:
    settings = TrainingSettings.from_record(
        {"optimizer": name, "learning_rate": 0.05, "warmup_epochs": 0.5, **changes}
    )
    job = TrainingJob(
        workload="resnet",
        data=DATA,
        target=Target("top1", 2.0),
        settings=settings,
        global_batch_size=48,
        seed=3,
        epochs=2.0,
        evaluations_per_epoch=6,
    )
    return SynchronousTraining(job, SingleProcessCommunicator(), workload=Small(DATA))


@pytest.mark.parametrize("name", ["schedule_free_sgd", "schedule_free_adamw"])
def test_it_is_evaluated_at_its_average_and_trained_on_from_between(name):
    task = training(name)
    task.advance()
    between = [parameter.detach().clone() for parameter in task.model.parameters()]
    point = task.advance()
    weights = [parameter.detach().clone() for parameter in task.model.parameters()]
    assert any(not torch.equal(one, other) for one, other in zip(between, weights, strict=True))
    there = evaluate_replica(task.replica, SingleProcessCommunicator(), None)
    with task.optimizer.evaluation():
        averaged = [parameter.detach().clone() for parameter in task.model.parameters()]
        here = evaluate_replica(task.replica, SingleProcessCommunicator(), None)
    assert point.loss == pytest.approx(here["loss"], rel=1e-6) and here["loss"] != there["loss"]
    assert any(not torch.equal(one, other) for one, other in zip(averaged, weights, strict=True))
    for parameter, weight in zip(task.model.parameters(), weights, strict=True):
        assert torch.equal(parameter, weight)


@pytest.mark.parametrize("name", ["schedule_free_sgd", "schedule_free_adamw", "muon", "ademamix"])
def test_a_training_goes_on_from_its_checkpoint_bit_for_bit(name):
    straight, broken = training(name), training(name)
    for _ in range(2):
        straight.advance()
        broken.advance()
    resumed = training(name)
    resumed.load_state_dict(broken.state_dict())
    assert [straight.advance().loss, straight.advance().loss] == [
        resumed.advance().loss,
        resumed.advance().loss,
    ]


def test_reduced_weights_follow_the_average_of_their_masters_there_and_back():
    generator = torch.Generator().manual_seed(1)
    full, reduced = (
        [nn.Parameter(torch.randn(5, 4, generator=generator.manual_seed(1)).to(dtype))]
        for dtype in (torch.float32, torch.bfloat16)
    )
    full[0].data.copy_(reduced[0])
    settings = TrainingSettings(optimizer="schedule_free_sgd")
    optimizers = [make_optimizer(moved, settings) for moved in (full, reduced)]
    for _ in range(3):
        gradient = torch.randn(5, 4, generator=generator).bfloat16()
        full[0].grad, reduced[0].grad = gradient.float(), gradient
        for optimizer in optimizers:
            optimizer.step(0.1)
    for _ in range(2):
        with optimizers[0].evaluation(), optimizers[1].evaluation():
            average = full[0].detach().clone()
            assert torch.equal(reduced[0], average.bfloat16())
        assert torch.equal(reduced[0], full[0].bfloat16()) and not torch.equal(average, full[0])


def test_a_parameter_server_does_not_know_the_average():
    with pytest.raises(SettingError, match="needs update_mode 'synchronous'"):
        TrainingSettings(optimizer="schedule_free_sgd", update_mode="asynchronous")
