"""Where replicas of an asynchronous training read data: the folder staged to the node, not the job's own."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.asynchronous import training as asynchronous
from trainers.asynchronous.messages import ActorSetup
from trainers.asynchronous.setup import build_actor_parts
from trainers.begin import begin_training
from trainers.distributed.single import SingleProcessCommunicator
from trainers.workloads import load_workload


class StoppedError(Exception):
    """Ends a training where its actors would start."""


def test_replicas_open_the_staged_folder(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, staged = tmp_path / "shared", tmp_path / "staged"
    for folder in (shared, staged):
        folder.mkdir()
    setups: list[ActorSetup] = []

    def actors(setup: ActorSetup, timeout_seconds: float) -> Any:
        setups.append(setup)
        raise StoppedError

    monkeypatch.setattr(asynchronous, "AsynchronousActors", actors)
    job = TrainingJob(
        workload="tests.trainers.racing_workload:Racing",
        data={"folder": str(shared)},
        target=Target("loss", 1e-9, higher_is_better=False),
        global_batch_size=4,
        seed=0,
        epochs=1,
        settings=TrainingSettings(update_mode="asynchronous", asynchronous_workers=2),
    )
    workload = load_workload(job.workload, {**job.data, "folder": str(staged)})
    training = begin_training(job, SingleProcessCommunicator(), workload=workload)
    with pytest.raises(StoppedError):
        training.advance()
    (setup,) = setups
    assert setup.job == {**job.to_dict(), "data": {"folder": str(staged)}}
    assert build_actor_parts(setup, number=0).workload.folder == staged
