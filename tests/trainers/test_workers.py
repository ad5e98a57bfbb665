"""The same training on one, two and four workers, on both backends: weights agree within float64's rounding error."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from search_spaces.settings import TrainingSettings
from tests.trainers.worker_processes import run_horovod, start_torch_workers, wait
from trainers import CommunicationError, Target, TrainingJob
from trainers.begin import train
from trainers.distributed import connect
from trainers.distributed.buckets import in_buckets, tensor_buckets
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop import checkpoint as checkpoints

pytestmark = pytest.mark.processes

PROGRAM = str(Path(__file__).with_name("worker_program.py"))
RECIPES = {
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1, "nesterov": True},
    "lars": {"optimizer": "lars", "learning_rate": 4.0, "trust_coefficient": 0.01},
    "ramp": {
        "learning_rate": 0.1,
        "batch_control": "noise_scale",
        "noise_scale_ratio": 1e-3,
        "batch_limit_factor": 2.0,
    },
}
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not installed"
)


def job(recipe, **changes):
    common = {"weight_decay": 1e-3, "warmup_epochs": 0.2, "normalization_batch_size": 8}
    settings = TrainingSettings.from_record({**RECIPES[recipe], **common})
    values = {
        "workload": "double_digits:DoubleDigits",
        "search_path": str(Path(__file__).parent),
        "data": {"source": "digits"},
        "target": Target("top1", 0.9999),
        "settings": settings,
        "global_batch_size": 64,
        "seed": 1,
        "epochs": 0.5,
        "evaluations_per_epoch": 4,
    }
    return TrainingJob(**{**values, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One job per optimizer, and the checkpoints of one worker that accumulates over four micro batches."""
    path = tmp_path_factory.mktemp("jobs")
    for recipe in RECIPES:
        task = job(recipe, micro_batch_size=16)
        task.save(path / f"{recipe}.json")
        train(
            task,
            SingleProcessCommunicator(),
            lambda point: None,
            checkpoint=path / f"{recipe}.alone.pt",
        )
    return path


def run_workers(folder, backend, size, all_reduce):
    command = [PROGRAM, str(folder), f"{backend}{size}", backend, all_reduce]
    if backend == "torch":
        codes, answers = wait(start_torch_workers(size, command), 120)
        assert codes == [0] * size, answers
    else:
        done = run_horovod(size, command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "size", "all_reduce"),
    [
        ("torch", 2, "default"),
        ("torch", 4, "torus"),
        pytest.param("horovod", 2, "default", marks=needs_horovod),
        pytest.param("horovod", 4, "default", marks=needs_horovod),
    ],
)
def test_any_number_of_workers_gives_the_same_weights(folder, backend, size, all_reduce):
    run_workers(folder, backend, size, all_reduce)
    sums, means, sent = checkpoints.load(folder / f"collectives.{backend}{size}.pt")
    assert (sums[0], means[0], sent[0]) == (size * (size + 1) / 2, (size + 1) / 2, size)
    for recipe in RECIPES:
        alone = checkpoints.load(folder / f"{recipe}.alone.pt")
        together = checkpoints.load(folder / f"{recipe}.{backend}{size}.pt")
        steps = 9 if recipe == "ramp" else 12
        assert together["progress"]["step"] == alone["progress"]["step"] == steps
        assert together["batch_growth"] == alone["batch_growth"]
        assert together["progress"]["final_metric"] == pytest.approx(
            alone["progress"]["final_metric"], abs=1e-9
        )
        for name, value in alone["model"].items():
            torch.testing.assert_close(
                together["model"][name], value, rtol=1e-9, atol=1e-11, msg=name
            )


def test_the_comparison_can_fail(folder):
    other = job("sgd", settings=job("sgd").settings.replace(normalization_batch_size=16))
    path = folder / "coarser.pt"
    train(other, SingleProcessCommunicator(), lambda point: None, checkpoint=path)
    weights = [
        checkpoints.load(at)["model"]["classifier.weight"] for at in (path, folder / "sgd.alone.pt")
    ]
    assert (weights[0] - weights[1]).abs().max() > 1e-3


def test_backends_that_cannot_start_say_how_to(monkeypatch):
    with pytest.raises(CommunicationError, match="no backend 'hovorod'; did you mean 'horovod'"):
        connect("hovorod")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(CommunicationError, match=r"needs RANK.*start the workers with torchrun"):
        connect("torch")
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    with pytest.raises(CommunicationError, match=r"Horovod is not installed.*use --backend torch"):
        connect("horovod")


def test_buckets_hold_one_type_in_order_and_at_most_their_size():
    tensors = [
        torch.zeros(10),
        torch.zeros(10),
        torch.zeros(30),
        torch.zeros(4, dtype=torch.float64),
        torch.zeros(1),
    ]
    grouped = tensor_buckets(tensors, bucket_bytes=80)
    assert [[tensor.numel() for tensor in group] for group in grouped] == [[10, 10], [30], [4], [1]]


def test_an_operation_in_buckets_reaches_every_tensor_whatever_its_layout():
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(2, 3, 4, 4, generator=generator)
    tensors = [
        plain.clone().contiguous(memory_format=torch.channels_last),
        torch.tensor(2.0),
        plain.clone(),
    ]
    in_buckets(tensors, lambda flat: torch._foreach_mul_(flat, 3.0), bucket_bytes=64)
    torch.testing.assert_close(tensors[0], plain * 3)
    torch.testing.assert_close(tensors[1], torch.tensor(6.0))
    torch.testing.assert_close(tensors[2], plain * 3)


@pytest.mark.slow
def test_the_report_of_two_workers_has_each_point_once(tmp_path):
    job("sgd").save(tmp_path / "job.json")
    report = tmp_path / "report.jsonl"
    codes, answers = wait(
        start_torch_workers(
            2,
            [
                "-m",
                "trainers",
                str(tmp_path / "job.json"),
                "--backend",
                "torch",
                "--report",
                str(report),
            ],
        ),
        60,
    )
    assert codes == [0, 0], answers
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [line.get("step") for line in lines] == [6, 12, None]
    assert lines[-1]["outcome"]["state"] == "censored"
