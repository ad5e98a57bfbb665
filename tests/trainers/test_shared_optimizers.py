"""Muon and SOAP, whose expensive work on each matrix is done by one of several workers."""

import importlib.util
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from search_spaces.settings import TrainingSettings
from tests.trainers.sharing_program import tensors
from tests.trainers.worker_processes import run_horovod, start_torch_workers, wait
from trainers import Target, TrainingJob
from trainers.begin import begin_training, train
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop import checkpoint as checkpoints
from trainers.optimizers import make_optimizer
from trainers.optimizers import soap as soap_rule
from trainers.optimizers.muon import SHARED_FROM
from trainers.optimizers.sharing import task_owners

WORKERS = str(Path(__file__).with_name("worker_program.py"))
SHARING = str(Path(__file__).with_name("sharing_program.py"))
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not installed"
)
SOAP_TURNED = {"optimizer": "soap", "preconditioner_interval": 2}
JOBS = {
    "soap-fp32": SOAP_TURNED,
    "soap-bf16": {**SOAP_TURNED, "precision": "bf16"},
    "soap-bf16-weights": {**SOAP_TURNED, "precision": "bf16", "reduced_weights": True},
    "muon-bf16": {"optimizer": "muon", "precision": "bf16"},
    "muon-bf16-weights": {"optimizer": "muon", "precision": "bf16", "reduced_weights": True},
}


def job(workload="Wide", **settings):
    return TrainingJob(
        workload=f"double_digits:{workload}",
        search_path=str(Path(__file__).parent),
        data={"source": "digits"},
        target=Target("top1", 0.9999),
        settings=TrainingSettings.from_record(
            {"learning_rate": 0.01, "weight_decay": 0.1, "warmup_epochs": 0.2} | settings
        ),
        global_batch_size=96,
        seed=1,
        epochs=0.6,
        evaluations_per_epoch=5,
    )


def run_workers(backend, size, command):
    if backend == "horovod":
        done = run_horovod(size, command)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        codes, answers = wait(start_torch_workers(size, command), 150)
        assert codes == [0] * size, answers


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_workers_that_share_give_the_weights_of_one_and_go_on_from_its_checkpoint(tmp_path, size):
    muon = job(optimizer="muon")
    train(muon, SingleProcessCommunicator(), lambda point: None, checkpoint=tmp_path / "alone.pt")
    alone = checkpoints.load(tmp_path / "alone.pt")
    for name in ("whole", "resumed"):
        muon.save(tmp_path / f"{name}.json")
    halfway = begin_training(muon)
    halfway.advance()
    checkpoints.save(tmp_path / f"resumed.torch{size}.pt", halfway.state_dict())
    run_workers("torch", size, [WORKERS, str(tmp_path), f"torch{size}", "torch", "default"])
    for name in ("whole", "resumed"):
        found = checkpoints.load(tmp_path / f"{name}.torch{size}.pt")
        assert found["progress"]["step"] == alone["progress"]["step"] == 9
        for key, value in alone["model"].items():
            torch.testing.assert_close(found["model"][key], value, rtol=1e-9, atol=1e-11, msg=key)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["torch", pytest.param("horovod", marks=needs_horovod)], ids=["torch", "horovod"]
)
def test_what_is_shared_is_what_each_would_do_to_the_last_bit(tmp_path, backend):
    """Two workers, then three from their checkpoint: weights, moments and bases, in fp32 and bf16."""
    for name, settings in JOBS.items():
        job("NarrowSingle", **settings).save(tmp_path / f"{name}.json")
    run_workers(backend, 2, [SHARING, str(tmp_path), "two", backend, "2"])
    run_workers(backend, 3, [SHARING, str(tmp_path), "three", backend, "1", "two"])
    for name in JOBS:
        for label in ("two", "three"):
            shared, each = (
                checkpoints.load(tmp_path / f"{name}.{label}.{way}.pt")
                for way in ("shared", "each")
            )
            assert shared["progress"]["step"] == (6 if label == "two" else 9)
            for part in ("model", "optimizer"):
                pairs = list(zip(tensors(shared[part]), tensors(each[part]), strict=True))
                assert pairs and all(torch.equal(*pair) for pair in pairs), (name, label, part)
            brought = int((tmp_path / f"{name}.{label}.shared.brought").read_text())
            assert (brought > 0) == name.startswith("soap"), name  # Muon's state is everywhere
            assert (tmp_path / f"{name}.{label}.each.brought").read_text() == "0"


class Fellow:
    """A worker among threads of one process."""

    def __init__(self, rank, size, desk):
        self.rank, self.size, self.desk, self.sent = rank, size, desk, []

    def all_reduce_sum_(self, given):
        self.sent.append(sum(each.numel() for each in given))
        self.desk.tensors[self.rank] = given
        self.desk.barrier.wait(20)
        sums = [torch.stack(each).sum(0) for each in zip(*self.desk.tensors, strict=True)]
        self.desk.barrier.wait(20)
        for mine, its in zip(given, sums, strict=True):
            mine.copy_(its)


def together(size, act):
    """What ``act`` returns for each of the workers, which run side by side."""
    desk = SimpleNamespace(tensors=[None] * size, barrier=threading.Barrier(size))
    results = [None] * size

    def run(rank):
        with torch.no_grad():
            results[rank] = act(Fellow(rank, size, desk))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


SOAP = {"soap_beta2": 0.9, "preconditioner_interval": 3, "preconditioner_size_limit": 14}
SIZES = [(12, 9), (8, 8), (7, 8), (5, 15), (7,), (9, 12), (4, 5, 6, 6)]
"""Of them four are shared from 16 entries on: the third has 15, and the limit leaves the fourth 5."""


@pytest.fixture
def shared_from_16(monkeypatch):
    monkeypatch.setattr(soap_rule, "SHARED_FROM", 16)


def steps(optimizer, parameters, updates):
    for number in updates:
        for index, parameter in enumerate(parameters):
            source = torch.Generator().manual_seed(100 * number + index)
            parameter.grad = torch.randn(parameter.shape, generator=source, dtype=parameter.dtype)
        optimizer.step(0.01)


def soap(workers, sizes=SIZES, **settings):
    source = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(size, generator=source)) for size in sizes]
    made = TrainingSettings.from_record({"optimizer": "soap", "weight_decay": 0.1, **SOAP})
    return make_optimizer(parameters, made.replace(**settings), None, workers), parameters


@pytest.mark.usefixtures("shared_from_16")
@pytest.mark.parametrize("size", [2, 3])
def test_soap_shared_is_soap_and_other_workers_go_on_from_its_checkpoint(size):
    """Seven updates, the bases turned twice, then three more by another number of workers."""
    alone, expected = soap(None)
    steps(alone, expected, range(7))

    def begin(worker):
        optimizer, parameters = soap(worker)
        steps(optimizer, parameters, range(7))
        exchanged, before = worker.sent[:], tensors(optimizer.state_dict())
        optimizer.gather()
        state = optimizer.state_dict()
        stale = sum(not torch.equal(*each) for each in zip(before, tensors(state), strict=True))
        return exchanged, stale, state, [each.detach().clone() for each in parameters]

    shared = 2 * 12 * 9 + 8 * 8 + 4 * 5 * 6 * 6
    for exchanged, stale, state, parameters in together(size, begin):
        assert exchanged == [shared] * 7 and stale > 0
        assert all(map(torch.equal, parameters, expected))
        assert all(map(torch.equal, tensors(state), tensors(alone.state_dict())))
    steps(alone, expected, range(7, 10))

    def go_on(worker):
        optimizer, parameters = soap(worker)
        optimizer.load_state_dict(state)
        for mine, its in zip(parameters, weights, strict=True):
            mine.copy_(its)
        steps(optimizer, parameters, range(7, 10))
        return parameters

    weights = parameters
    for parameters in together(5 - size, go_on):
        assert all(map(torch.equal, parameters, expected))


@pytest.mark.usefixtures("shared_from_16")
def test_without_what_others_send_soap_moves_only_its_share():
    """The comparison above can fail."""
    optimizer, parameters = soap(
        SimpleNamespace(rank=0, size=2, all_reduce_sum_=lambda given: None)
    )
    before = [each.detach().clone() for each in parameters]
    steps(optimizer, parameters, range(1))
    assert all(map(torch.equal, parameters, before))  # the first update makes the bases
    optimizer, parameters = soap(
        SimpleNamespace(rank=0, size=2, all_reduce_sum_=lambda given: None), weight_decay=0.0
    )
    steps(optimizer, parameters, range(2))
    moved = [not torch.equal(*each) for each in zip(parameters, before, strict=True)]
    assert moved == [False, False, True, True, True, False, True]


def test_a_muon_worker_does_its_share_alone():
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
    assert task_owners([64, 512, 64, 64], 2) == [1, 0, 1, 1]
    found = task_owners([512] * 12, 5)
    assert sorted(map(found.count, range(5))) == [2, 2, 2, 3, 3]
