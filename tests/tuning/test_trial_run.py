"""A trial in this process: its checkpoints, and what it does with one that it cannot use."""

import errno
import os

import pytest
import torch

from hpo.tuning.trial_run import TrialRun, WorkerPlace
from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop import checkpoint as checkpoints
from trainers.loop.synchronous import SynchronousTraining

JOB = TrainingJob(
    workload="tests.trainers.small_network:Small",
    data={"source": "digits"},
    target=Target("top1", 2.0),
    settings=TrainingSettings(learning_rate=0.01, normalization_batch_size=8),
    global_batch_size=48,
    seed=3,
    epochs=0.5,
    evaluations_per_epoch=6,
)


class OneOfTwo(SingleProcessCommunicator):
    """One of two workers that have the same gradients; ``other`` is how the other one votes."""

    size = 2

    def __init__(self, rank, other=None):
        super().__init__(torch.device("cpu"))
        self.rank, self.other, self.votes = rank, other, []

    def all_reduce_sum_(self, tensors):
        for tensor in tensors:
            if tensor.numel() == 1:  # a vote
                self.votes.append(float(tensor))
                tensor.add_(float(tensor) if self.other is None else self.other)
            else:
                tensor.mul_(2)

    def start_sum_(self, flat):
        flat.mul_(2)
        return super().start_sum_(flat)


def config_of(folder, seconds=0.0):
    return {
        "job": JOB.to_dict(),
        "folder": str(folder / "trial"),
        "checkpoint": str(folder / "0.pt"),
        "checkpoint_seconds": seconds,
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_every_worker_of_a_trial_gathers_the_state_that_the_first_one_saves(
    tmp_path, monkeypatch, rank
):
    """With SOAP, each worker keeps the state of its own share of the tensors."""
    gathered = []
    monkeypatch.setattr(SynchronousTraining, "gather", lambda _: gathered.append(rank))
    run = TrialRun(WorkerPlace(rank, 2), OneOfTwo(rank, other=None if rank == 0 else 1.0))
    run.begin(config_of(tmp_path))
    assert run.advance()["state"] == "running"
    assert gathered == [rank]
    assert (tmp_path / "0.pt").exists() == (rank == 0)


def test_the_workers_of_a_trial_start_over_if_one_of_them_does_not_see_the_checkpoint(tmp_path):
    run = TrialRun(WorkerPlace(0, 2), OneOfTwo(0))
    run.begin(config_of(tmp_path))
    first = run.advance()["points"]
    run.begin(config_of(tmp_path))
    assert [point["step"] for point in run.advance()["points"]] > [first[0]["step"]]
    alone = TrialRun(WorkerPlace(0, 2), OneOfTwo(0, other=1.0))
    alone.begin(config_of(tmp_path))
    assert [point["step"] for point in alone.advance()["points"]] == [first[0]["step"]]


def test_a_full_disk_costs_a_checkpoint_and_not_the_trial(tmp_path, monkeypatch):
    """PyTorch turns the system's error into a RuntimeError, which ended the trial."""

    def full(state, file):
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            raise RuntimeError("unexpected pos 704 vs 598")

    run = TrialRun()
    run.begin(config_of(tmp_path))
    monkeypatch.setattr(torch, "save", full)
    assert run.advance()["state"] == "running"


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_trial_starts_over_where_its_model_is_no_longer_that_of_its_checkpoint(tmp_path, part):
    config = {
        "job": JOB.to_dict(),
        "folder": str(tmp_path / "trial"),
        "checkpoint": str(tmp_path / "0.pt"),
        "checkpoint_seconds": 0.0,
    }
    run = TrialRun()
    run.begin(config)
    first = run.advance()
    assert run.advance()["points"][-1]["step"] > first["points"][-1]["step"]
    saved = checkpoints.load(config["checkpoint"])
    if part == "model":
        last = [*saved["training"]["model"]][-1]
        saved["training"]["model"][last] = saved["training"]["model"][last][:1].clone()
    else:
        saved["training"]["optimizer"]["groups"].pop()
    checkpoints.save(config["checkpoint"], saved)
    run.begin(config)
    again = run.advance()
    measured = [{**each["points"][-1], "seconds": 0.0} for each in (first, again)]
    assert measured[0] == measured[1] and len(again["points"]) == 1
