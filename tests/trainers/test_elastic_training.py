"""A training that is asked to stop saves at its next evaluation and exits; restarted, it continues seamlessly."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.__main__ import main
from trainers.loop import checkpoint
from trainers.loop.restarts import AGENTS, STOPPED, StopRequests, count_nodes, stopped_status
from trainers.report import ReportFile, TrainingStart, read_outcome, read_points, read_starts

pytestmark = pytest.mark.processes

WORKLOAD = """
import os, signal
import torch
from torch import nn
from trainers.workloads import Workload

class Shown(Workload):
    metrics = {"loss": False, "accuracy": True}
    train_samples, evaluation_samples = 64, 16

    def __init__(self, data):
        self.data, self.batches = data, 0
        if "path" in data and not os.path.isdir(data["path"]):
            from trainers.errors import DataError
            raise DataError(f"no folder {data['path']}")
        self.inputs = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
        self.classes = (self.inputs.sum(1) > 0).long()

    def build_model(self, settings):
        return nn.Linear(4, 2)

    def training_batch(self, indices, epochs, seed):
        self.batches += 1
        if self.batches == self.data.get("signal_at"):
            os.kill(os.getpid(), signal.Signals[self.data["signal"]])
        return self.inputs[indices], self.classes[indices]

    def loss(self, model, batch, settings):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluation_batch(self, indices):
        return self.inputs[64 + indices], self.classes[64 + indices]

    def score(self, model, batch):
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"),
                "accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains in this process; the exit status."""
    for name in AGENTS:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "elastic_shown.py").write_text(WORKLOAD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)

    def run(*options, name="run", **data):
        TrainingJob(
            workload="elastic_shown:Shown",
            data=data,
            target=Target("accuracy", 2.0),
            global_batch_size=16,
            settings=TrainingSettings(learning_rate=0.05),
            seed=1,
            epochs=5,
            evaluations_per_epoch=1,
            search_path=str(tmp_path),
        ).save(tmp_path / "job.json")
        return main(
            [
                str(tmp_path / "job.json"),
                "--report",
                str(tmp_path / f"{name}.jsonl"),
                "--checkpoint",
                str(tmp_path / f"{name}.pt"),
                *options,
            ]
        )

    return run


def without_seconds(points):
    return [
        (point.step, point.train_loss, point.loss, point.metric, point.learning_rate)
        for point in points
    ]


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_signal_stops_at_the_next_evaluation_and_the_training_goes_on_bit_for_bit(
    train, tmp_path, name
):
    before = signal.getsignal(signal.Signals[name])
    assert train(name="whole") == 0
    assert train(signal_at=6, signal=name) == STOPPED
    assert [point.step for point in read_points(tmp_path / "run.jsonl")] == [4, 8]
    assert read_outcome(tmp_path / "run.jsonl") is None
    assert train(signal_at=6, signal=name) == STOPPED  # at the sixth batch of this start
    assert train(signal_at=6, signal=name) == 0  # which has but four
    whole, parts = read_points(tmp_path / "whole.jsonl"), read_points(tmp_path / "run.jsonl")
    assert without_seconds(parts) == without_seconds(whole)
    assert (
        read_outcome(tmp_path / "run.jsonl").best_metric
        == read_outcome(tmp_path / "whole.jsonl").best_metric
    )
    assert [start.step for start in read_starts(tmp_path / "run.jsonl")] == [0, 8, 16]
    assert signal.getsignal(signal.Signals[name]) is before


def test_a_file_stops_it_too(train, tmp_path):
    (tmp_path / "stop").touch()
    assert train("--stop-file", str(tmp_path / "stop")) == STOPPED
    assert [point.step for point in read_points(tmp_path / "run.jsonl")] == [4]
    (tmp_path / "stop").unlink()
    assert train("--stop-file", str(tmp_path / "stop")) == 0
    assert [point.step for point in read_points(tmp_path / "run.jsonl")] == [4, 8, 12, 16, 20]


def test_under_a_launcher_that_watches_it_leaves_without_an_error_and_sigterm_ends_it(
    train, tmp_path, monkeypatch
):
    (tmp_path / "stop").touch()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert train("--stop-file", str(tmp_path / "stop")) == 0
    assert read_outcome(tmp_path / "run.jsonl") is None
    before = signal.getsignal(signal.SIGTERM)
    with StopRequests():
        assert signal.getsignal(signal.SIGTERM) is before
    assert (
        stopped_status({}) == STOPPED and stopped_status({"HOROVOD_GLOO_RENDEZVOUS_ADDR": "a"}) == 0
    )


def test_checkpoints_are_saved_at_each_evaluation_or_after_minutes_and_at_the_end(
    train, monkeypatch
):
    saved = []
    monkeypatch.setattr(
        checkpoint, "save", lambda path, state: saved.append(state["progress"]["step"])
    )
    assert train() == 0
    assert saved == [4, 8, 12, 16, 20]
    saved.clear()
    assert train("--checkpoint-minutes", "60", name="rare") == 0
    assert saved == [20]


def test_the_data_may_lie_elsewhere_than_in_the_job_and_a_checkpoint_fits_all_the_same(
    train, tmp_path, capsys
):
    assert train(path="/nowhere") == 2 and "no folder /nowhere" in capsys.readouterr().err
    (tmp_path / "stop").touch()
    here = ("--data-path", str(tmp_path), "--stop-file", str(tmp_path / "stop"))
    assert train(*here, path="/nowhere") == STOPPED
    (tmp_path / "stop").unlink()
    (tmp_path / "disk").mkdir()
    assert train("--data-path", str(tmp_path / "disk"), path="/nowhere") == 0


def test_points_behind_the_checkpoint_are_reported_once(train, tmp_path):
    """A run that was lost after it had reported more than it had saved."""
    (tmp_path / "stop").touch()
    assert train("--stop-file", str(tmp_path / "stop")) == STOPPED
    (tmp_path / "stop").unlink()
    report = ReportFile(tmp_path / "run.jsonl")
    lost = read_points(report.path)[0]
    report.point(type(lost)(**{**lost.__dict__, "step": 8, "metric": 0.0}))
    assert train() == 0
    assert [point.step for point in read_points(report.path)] == [4, 8, 12, 16, 20]
    assert read_points(report.path)[1].metric > 0


def test_a_report_counts_the_starts_of_one_run(tmp_path):
    report = ReportFile(tmp_path / "report.jsonl")
    report.start(0, TrainingStart(0, 4, 2))
    report.start(0, TrainingStart(0, 4, 2))  # lost before its first checkpoint
    report.start(8, TrainingStart(8, 2, 1))
    assert [(start.step, start.workers, start.nodes) for start in read_starts(report.path)] == [
        (0, 4, 2),
        (0, 4, 2),
        (8, 2, 1),
    ]
    with report.path.open("a") as file:
        file.write(json.dumps({"outcome": {}}) + "\n")
    report.start(0, TrainingStart(0, 4, 2))  # another run in the same folder
    assert len(read_starts(report.path)) == 1


class Alone:
    """One of several workers, whose sums are as if all were like it."""

    rank, device = 0, "cpu"

    def __init__(self, size):
        self.size = size

    def all_reduce_sum_(self, tensors):
        for tensor in tensors:
            tensor.mul_(self.size)


@pytest.mark.parametrize(
    ("size", "environment", "nodes"),
    [
        (8, {"LOCAL_WORLD_SIZE": "4"}, 2),
        (27360, {"OMPI_COMM_WORLD_LOCAL_SIZE": "6"}, 4560),
        (4, {}, 1),
        (1, {"LOCAL_WORLD_SIZE": "4"}, 1),
        (6, {"HOROVOD_LOCAL_SIZE": "3", "SLURM_NTASKS_PER_NODE": "6"}, 2),
    ],
)
def test_nodes_are_counted_from_the_ranks_on_each(size, environment, nodes):
    assert count_nodes(Alone(size), environment) == nodes


def test_signals_are_left_alone_outside_the_main_thread():
    found = []
    before = signal.getsignal(signal.SIGUSR1)

    def look():
        with StopRequests():
            found.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_stop_file_of_another_worker_is_heard_by_all(tmp_path):
    class Other(Alone):
        rank = 1

        def all_reduce_sum_(self, tensors):
            tensors[0].add_(1)  # worker 0 saw the file

    stop = StopRequests(Path(tmp_path / "missing"))
    assert stop.agreed(Other(2)) and not stop.agreed(Alone(1))


def test_the_handler_survives_a_signal_while_nobody_asks():
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while not stop.agreed(Alone(1)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stop.agreed(Alone(1))
