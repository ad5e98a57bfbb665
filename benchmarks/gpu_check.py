"""Correctness and speed of the project on this machine's GPU, compared with a plain loop.

    python -m benchmarks.gpu_check [--only losses,training,input,steps,workers] [--device cpu] [--small] [--seconds S]

losses    losses and weights of short trainings on the device against the CPU in fp32: optimizers, lag, precisions
training  samples/s of ResNet-50 and DeepLabv3+ by the trainer, against a plain loop of common practice in the same run
input     images/s that the CPU decodes, and that ResNet-50 trains on from a folder of JPEGs
steps     ms of one step of each optimizer over ResNet-50's parameters, against PyTorch's fused ones
workers   a training under torchrun with one worker, and with one more than there are GPUs, which must be refused

Every check runs on any device; ``--small`` shrinks them to try the command on a CPU. Timings are the median of rounds
after a warm-up, with the device idle at both ends. If a check fails, it is reported, the next one starts and the exit
status is 1. It takes ten minutes on one card.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import gpu_throughput
from benchmarks.input_limited import write_images
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.distributed.device import DEVICES, choose_device, configure_gpu, gpu_count
from trainers.distributed.single import SingleProcessCommunicator
from trainers.job import Target, TrainingJob
from trainers.loop.synchronous import SynchronousTraining
from trainers.numerics.normalization import GhostBatchNorm
from trainers.optimizers import make_optimizer
from trainers.workloads.resnet.model import build_resnet

ROUNDS = 5
PRECISIONS = ("bf16", "tf32")
MODES: Mapping[str, Mapping[str, Any]] = {
    "sgd": {},
    "lars": {"optimizer": "lars", "learning_rate": 8.0},
    "lamb": {"optimizer": "lamb", "learning_rate": 0.01},
    "gradient lag, clipping": {"gradient_lag": 1, "gradient_clip_norm": 1.0},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16", "loss_scaling": "dynamic"},
}
OPTIMIZERS = ("sgd", "lars", "larc", "lamb", "adamw")


@dataclass
class Check:
    """The device and size of the checks, and the rows so far."""

    device: torch.device
    small: bool
    seconds: float
    rows: list[tuple[str, str]] = field(default_factory=list)

    def say(self, what: str, found: str) -> None:
        """Add a row and print it at once."""
        self.rows.append((what, found))
        print(f"| {what} | {found} |", flush=True)

    def idle(self) -> None:
        """Wait until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds_of(self, step: Callable[[], object]) -> float:
        """Return the median seconds of a step, over rounds that together take the configured timing seconds."""

        def mean(count: int) -> float:
            self.idle()
            started = time.perf_counter()
            for _ in range(count):
                step()
            self.idle()
            return (time.perf_counter() - started) / count

        once = mean(1 if self.small else 3)
        count = max(1, int(self.seconds / ROUNDS / once))
        return statistics.median(mean(count) for _ in range(2 if self.small else ROUNDS))


def losses(check: Check) -> None:
    """Compare losses and weights with those of fp32 on the CPU."""
    epochs = 2 if check.small else 4
    for name, extra in MODES.items():
        exact = {} if "precision" in extra else extra
        here = _trained(torch.device("cpu"), exact, epochs)
        there = _trained(check.device, extra, epochs)
        worst = max(abs(a / b - 1) for a, b in zip(there[0], here[0], strict=True))
        apart = float((there[1] - here[1]).norm() / here[1].norm())
        check.say(
            f"losses, {name}: largest relative difference, of the weights",
            f"{worst:.1e}, {apart:.1e}",
        )


def _trained(
    device: torch.device, extra: Mapping[str, Any], epochs: int
) -> tuple[list[float], torch.Tensor]:
    """Return the mean loss of each epoch of a small network on digits, and its weights."""
    settings = {"learning_rate": 0.05, "warmup_epochs": 1.0, "normalization_batch_size": 16}
    job = TrainingJob(
        workload="resnet",
        data={"source": "digits"},
        target=Target("top1", 2.0),
        settings=TrainingSettings(**{**settings, **extra}),
        global_batch_size=128,
        seed=0,
        epochs=epochs,
        evaluations_per_epoch=1,
    )
    training = begin_training(job, SingleProcessCommunicator(device))
    assert isinstance(training, SynchronousTraining)
    found = [training.advance().train_loss for _ in range(epochs)]
    weights = [each.detach().double().cpu().flatten() for each in training.model.parameters()]
    return found, torch.cat(weights)


def training(check: Check) -> None:
    """Measure the samples per second of the trainer and of a plain loop, and their ratio."""
    for model, batch in (("resnet50", 8 if check.small else 256), ("deeplabv3plus", 2)):
        for precision in PRECISIONS:
            rounds = 1 if check.small else ROUNDS
            run = gpu_throughput.begin(model, precision, batch, small=check.small)
            run.advance()
            ours = statistics.median(
                gpu_throughput.samples_per_second(run, batch) for _ in range(rounds)
            )
            plain = batch / check.seconds_of(_plain_step(check, model, batch, precision))
            check.say(
                f"{model}, {precision}, batch {batch}: samples/s of the trainer, of a plain loop",
                f"{ours:.1f}, {plain:.1f} ({ours / plain:.0%})",
            )


def _plain_step(check: Check, model_name: str, batch: int, precision: str) -> Callable[[], None]:
    """Return a step with channels_last, autocast, fused SGD, gradients set to None, and PyTorch's whole-batch norm."""
    data = {"model": model_name, "batch": batch, "small": check.small}
    workload = gpu_throughput.OnDevice(data)
    group = math.gcd(gpu_throughput.LARGEST_GROUP, batch)
    model = workload.build_model(TrainingSettings(normalization_batch_size=group))
    model = _with_batch_norm(model).to(check.device).train()
    configure_gpu(check.device, precision)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4, fused=True
    )
    inputs, targets = workload.evaluation_batch(torch.arange(batch))

    def step() -> None:
        with torch.autocast(check.device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(model(inputs).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _with_batch_norm(model: nn.Module) -> nn.Module:
    for name, child in model.named_children():
        if isinstance(child, GhostBatchNorm):
            setattr(model, name, nn.BatchNorm2d(len(child.weight)))
        else:
            _with_batch_norm(child)
    return model


def input_(check: Check) -> None:
    """Measure the images per second that all cores decode, and that ResNet-50 trains on from files."""
    with tempfile.TemporaryDirectory() as folder:
        count, size = (32, 96) if check.small else (2048, 224)
        write_images(Path(folder), count)
        job = TrainingJob(
            workload="resnet",
            data={
                "source": "image_folder",
                "path": folder,
                "image_size": size,
                "model": "resnet20" if check.small else "resnet50",
            },
            target=Target("top1", 2.0),
            settings=TrainingSettings(precision="bf16", learning_rate=0.01),
            global_batch_size=min(256, count),
            seed=0,
            epochs=3,
            evaluations_per_epoch=1,
        )
        run = begin_training(job, SingleProcessCommunicator(check.device))
        assert isinstance(run, SynchronousTraining)
        indices = torch.arange(min(64, count))
        decoding = check.seconds_of(
            lambda: run.workload.training_batch(indices, torch.zeros_like(indices), 0)
        )
        check.say(
            f"input: images/s decoded by {os.cpu_count()} cores", f"{len(indices) / decoding:.0f}"
        )
        run.advance()
        started = time.perf_counter()
        run.advance()
        rate = count / (time.perf_counter() - started)
        check.say("input: images/s of a training from JPEGs, evaluation included", f"{rate:.0f}")


def steps(check: Check) -> None:
    """Measure the milliseconds of one step of each optimizer."""

    def parameters() -> list[nn.Parameter]:
        model = build_resnet("resnet50", 3, 1000, 16 if check.small else 64, 32).to(check.device)
        for each in model.parameters():
            each.grad = torch.randn_like(each)
        return list(model.parameters())

    for name in OPTIMIZERS:
        ours = make_optimizer(parameters(), TrainingSettings(optimizer=name))
        milliseconds = 1e3 * check.seconds_of(lambda ours=ours: ours.step(1e-4, 1.0))  # type: ignore[misc]
        check.say(f"a step of {name} over ResNet-50", f"{milliseconds:.3f} ms")
    for name, theirs in (
        ("PyTorch's fused SGD", torch.optim.SGD(parameters(), 1e-4, momentum=0.9, fused=True)),
        ("PyTorch's fused AdamW", torch.optim.AdamW(parameters(), 1e-4, fused=True)),
    ):
        check.say(
            f"a step of {name} over ResNet-50", f"{1e3 * check.seconds_of(theirs.step):.3f} ms"
        )


def workers(check: Check) -> None:
    """Check that one worker trains, and one more than there are GPUs is refused (on a CPU any number trains)."""
    on_gpu = check.device.type == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        TrainingJob(
            workload="resnet",
            data={"source": "digits"},
            target=Target("top1", 0.99),
            settings=TrainingSettings(normalization_batch_size=16),
            global_batch_size=64,
            seed=0,
            epochs=1,
        ).save(Path(folder, "job.json"))
        for number in (1, 1 + (gpu_count() if on_gpu else 1)):
            command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
            job = [f"{folder}/job.json", "--report", f"{folder}/{number}.jsonl"]
            options = ["--backend", "torch", "--device", check.device.type, "--timeout", "60"]
            done = subprocess.run(
                [sys.executable, *command, "-m", "trainers", *job, *options],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            check.say(
                f"{number} worker{'s' if number > 1 else ''} under torchrun: exit status",
                f"{done.returncode}{', ' + said[0] if said else ''}",
            )
            refused = on_gpu and number > 1
            if (done.returncode == 0) == refused:
                raise RuntimeError(f"{number} workers: {done.stderr[-500:]}")


CHECKS: Mapping[str, Callable[[Check], None]] = {
    "losses": losses,
    "training": training,
    "input": input_,
    "steps": steps,
    "workers": workers,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the checks; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CHECKS), help="names, with commas")
    parser.add_argument("--device", default="auto", choices=DEVICES)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each timing")
    parser.add_argument("--json", type=Path, help="write the rows into this file too")
    options = parser.parse_args(arguments)
    unknown = set(options.only.split(",")) - set(CHECKS)
    if unknown:
        parser.error(
            f"there is no check {', '.join(sorted(unknown))}; the choices are {', '.join(CHECKS)}"
        )
    os.environ["HPO_DEVICE"] = options.device
    check = Check(choose_device(wanted=options.device), options.small, options.seconds)
    name = "processor"
    if check.device.type == "cuda":
        name = torch.cuda.get_device_name(check.device)
    print("| what | found |\n|---|---|")
    check.say("device, PyTorch, cores", f"{name}, {torch.__version__}, {os.cpu_count()}")
    failed = False
    for each in options.only.split(","):
        try:
            CHECKS[each](check)
        except Exception as error:  # the other checks are still useful
            traceback.print_exc()
            check.say(f"{each}: failed", f"{type(error).__name__}: {str(error).splitlines()[:1]}")
            failed = True
        if options.json is not None:
            options.json.write_text(json.dumps(check.rows, indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
