"""Samples per second of K fused trainings relative to training them one at a time, on one thread or one GPU.

Both do the same updates, without evaluations: each round trains the same updates of all K trainings one by one, and
fused. Seconds are CPU time on a CPU and wall-clock time on a GPU, in the fastest round of each way.

    python benchmarks/fused_trials.py [--device cuda] [--trials 1 4 16 64] [--rounds N] [--case NAME]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.distributed.single import SingleProcessCommunicator
from trainers.fused import FusedTrainings
from trainers.loop.synchronous import SynchronousTraining
from trainers.numerics.memory import keep_freed_memory
from trainers.workloads.resnet.task import ResNetWorkload
from trainers.workloads.workload import Batch

UPDATES = 24


class Digits(ResNetWorkload):
    """The digits with a custom network; no update measures noise, as only one of the two ways would."""

    def __init__(self, network: Callable[[], nn.Module] | None) -> None:
        super().__init__({"source": "digits"})
        self._custom = network
        self.evaluation_samples = 1

    def build_model(self, settings: TrainingSettings) -> nn.Module:
        """Return the network, or the workload's own."""
        return self._custom() if self._custom else super().build_model(settings)

    def loss(self, model: nn.Module, batch: Batch, settings: TrainingSettings) -> Tensor:  # noqa: ARG002
        """Cross entropy."""
        images, classes = batch
        return F.cross_entropy(model(images), classes)


def mlp() -> nn.Module:
    """64 inputs, two layers of 64, 10 classes."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def cnn() -> nn.Module:
    """Two convolutions of 16 and 32 channels, 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


CASES: dict[str, tuple[Callable[[], nn.Module] | None, int]] = {
    "MLP 64-64-64-10, batch 16": (mlp, 16),
    "MLP 64-64-64-10, batch 128": (mlp, 128),
    "CNN 16-32, batch 32": (cnn, 32),
    "resnet8 on digits, batch 32": (None, 32),
    "resnet8 on digits, batch 128": (None, 128),
}


def job(number: int, batch: int) -> TrainingJob:
    """Return the job of one of the trials, which differ in the rate."""
    return TrainingJob(
        workload="resnet",
        data={"source": "digits"},
        target=Target("top1", 2.0),
        settings=TrainingSettings(learning_rate=0.01 * 1.1**-number, optimizer="lars"),
        global_batch_size=batch,
        seed=number,
        epochs=1e6,
        evaluations_per_epoch=1437 / batch / UPDATES,
    )


def measure(name: str, trials: int, rounds: int, device: torch.device) -> tuple[float, float]:
    """Return the samples per second of the trainings one at a time, and fused."""
    network, batch = CASES[name]
    workload = Digits(network)
    groups = [
        [
            SynchronousTraining(
                job(number, batch), SingleProcessCommunicator(device), workload=workload
            )
            for number in range(trials)
        ]
        for _ in range(2)
    ]
    for training in (each for group in groups for each in group):
        training.loader._every = 10**9
        training.loader._measured = dict.fromkeys(training.loader._measured)
    fused = FusedTrainings()
    for training in groups[1]:
        fused.add(training)

    def one_by_one() -> None:
        for training in groups[0]:
            training.advance()

    def as_one() -> None:
        fused.advance()

    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for way, taken in zip((one_by_one, as_one), seconds, strict=True):
            started = clock()
            way()  # an evaluation of one sample at its end, which waits for the device
            taken.append(clock() - started)
    samples = trials * batch * UPDATES
    alone, together = (samples / min(taken[1:]) for taken in seconds)
    return alone, together


def main() -> None:
    """Print one row per case and number of trials."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trials", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=tuple(CASES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print("| model, global batch size | trials | one at a time, samples/s | fused | ratio |")
    print("|---|---|---|---|---|")
    for name in CASES:
        for trials in options.trials:
            if options.case in (None, name):
                alone, fused = measure(name, trials, options.rounds, torch.device(options.device))
                print(
                    f"| {name} | {trials} | {alone:,.0f} | {fused:,.0f} | {fused / alone:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
