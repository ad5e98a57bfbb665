"""Muon whose matrices are made orthogonal by several workers, a share by each."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from search_spaces.settings import TrainingSettings
from tests.trainers.worker_processes import start_torch_workers, wait
from trainers import Target, TrainingJob
from trainers.begin import begin_training, train
from trainers.distributed.single import SingleProcess
from trainers.loop import checkpoint as checkpoints
from trainers.optimizers import make_optimizer
from trainers.optimizers.muon import SHARED_FROM, shares

PROGRAM = str(Path(__file__).with_name("worker_program.py"))


def job():
    return TrainingJob(
        workload="double_digits:Wide",
        search_path=str(Path(__file__).parent),
        data={"source": "digits"},
        target=Target("top1", 0.9999),
        settings=TrainingSettings.from_record(
            {"optimizer": "muon", "learning_rate": 0.01, "weight_decay": 0.1, "warmup_epochs": 0.2}
        ),
        global_batch_size=96,
        seed=1,
        epochs=0.6,
        evaluations_per_epoch=5,
    )


def check(path, alone):
    found = checkpoints.load(path)
    assert found["progress"]["step"] == alone["progress"]["step"] == 9
    for name, value in alone["model"].items():
        torch.testing.assert_close(found["model"][name], value, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_workers_that_share_give_the_weights_of_one_and_go_on_from_its_checkpoint(tmp_path, size):
    train(job(), SingleProcess(), lambda point: None, checkpoint=tmp_path / "alone.pt")
    alone = checkpoints.load(tmp_path / "alone.pt")
    job().save(tmp_path / "whole.json")
    job().save(tmp_path / "resumed.json")
    halfway = begin_training(job())
    halfway.advance()
    checkpoints.save(tmp_path / f"resumed.torch{size}.pt", halfway.state_dict())
    command = [PROGRAM, str(tmp_path), f"torch{size}", "torch", "default"]
    codes, answers = wait(start_torch_workers(size, command), 120)
    assert codes == [0] * size, answers
    check(tmp_path / f"whole.torch{size}.pt", alone)
    check(tmp_path / f"resumed.torch{size}.pt", alone)


def test_a_worker_does_its_share_alone():
    """What the others would do is missing where nothing is exchanged; what is too small to share never is."""
    exchanged = []
    torch.manual_seed(0)
    sizes = [(SHARED_FROM, SHARED_FROM), (SHARED_FROM, 300), (SHARED_FROM - 1, 400)]
    parameters = [nn.Parameter(torch.randn(size)) for size in sizes]
    settings = TrainingSettings.from_record({"optimizer": "muon", "learning_rate": 0.1})
    before = [each.detach().clone() for each in parameters]
    workers = SimpleNamespace(rank=0, size=2, all_reduce_sum_=exchanged.append)
    optimizer = make_optimizer(parameters, settings.replace(weight_decay=0.0), None, workers)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step(0.1)
    assert [len(each[0]) for each in exchanged] == [SHARED_FROM * (SHARED_FROM + 300)]
    moved = [not torch.equal(*each) for each in zip(parameters, before, strict=True)]
    assert moved == [False, True, True]  # the dearest is the first worker's


def test_shares_are_even_and_the_same_for_everybody():
    assert shares([(4, 4), (8, 8), (4, 4), (4, 4)], 2) == [1, 0, 1, 1]
    owners = shares([(512, 512)] * 12, 5)
    assert sorted(map(owners.count, range(5))) == [2, 2, 2, 3, 3]
