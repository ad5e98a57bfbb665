"""What ``trainers.loop.synchronous`` costs beyond a hand-written PyTorch loop: same model, data, updates, evaluation.

Each round trains so many updates and evaluates once, in three ways in turn: the hand-written loop below, the
trainer without measuring the gradient noise scale, and the trainer as it is, which measures it at every 24th update.
Times are those of the processor, on one thread, in the fastest round of each way, so that other work on the machine
has little part in them. All three keep the memory that they free, as the processes that train do.

``--operations`` counts instead what one update of each mode dispatches, on an accelerator's way, and how often the host
waits for a value of it: figures that do not depend on the machine.

    python benchmarks/step_overhead.py [--rounds N] [--case NAME]
    python benchmarks/step_overhead.py --operations
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from search_spaces.settings import TrainingSettings
from trainers import Target, TrainingJob
from trainers.distributed.single import SingleProcess
from trainers.loop.synchronous import Training
from trainers.numerics.memory import keep_freed_memory
from trainers.numerics.normalization import end_update, ghost_batch_norms
from trainers.optimizers import LARS
from trainers.schedules.learning_rate import learning_rate
from trainers.workloads import Workload, load_workload
from trainers.workloads.resnet.images import ImagesInMemory
from trainers.workloads.resnet.task import ResNetWorkload

SETTINGS = TrainingSettings(
    learning_rate=0.05, warmup_epochs=1.0, decay="cosine", normalization_batch_size=16
)


class RandomImages(ResNetWorkload):
    """ResNet-20 on 50,000 random images of CIFAR's size, shifted and mirrored like CIFAR's."""

    def __init__(self) -> None:
        super().__init__({"source": "digits", "model": "resnet20"})
        generator = torch.Generator().manual_seed(0)

        def draw(samples: int) -> tuple[Tensor, Tensor]:
            return (
                torch.randint(0, 256, (samples, 3, 32, 32), generator=generator, dtype=torch.uint8),
                torch.randint(0, 10, (samples,), generator=generator),
            )

        self.images = ImagesInMemory(draw(50_000), draw(128), 10, shift=4, mirror=True)
        self.train_samples, self.evaluation_samples = (
            self.images.train_samples,
            self.images.evaluation_samples,
        )


@dataclass(frozen=True)
class Case:
    """A model at a batch size, and the updates of one round (a multiple of the updates between measurements)."""

    workload: Callable[[], Workload]
    global_batch_size: int
    updates: int
    settings: TrainingSettings = SETTINGS


def _digits() -> Workload:
    workload = load_workload("resnet", {"source": "digits"})
    assert isinstance(workload, Workload)
    return workload


CASES = {
    "resnet8, digits, 32": Case(_digits, 32, 72),
    "resnet8, digits, 64": Case(_digits, 64, 48),
    "resnet8, digits, 256": Case(_digits, 256, 24),
    "resnet8, digits, 256, groups of 64": Case(
        _digits, 256, 24, SETTINGS.replace(normalization_batch_size=64)
    ),
    "resnet20, 32x32, 128": Case(
        RandomImages, 128, 24, SETTINGS.replace(normalization_batch_size=32)
    ),
    **{
        f"resnet8, digits, 64, {name}": Case(_digits, 64, 48, SETTINGS.replace(**changes))
        for name, changes in {
            "AdamW": {"optimizer": "adamw", "learning_rate": 1e-3},
            "LARS": {"optimizer": "lars", "learning_rate": 2.0},
            "clipped": {"gradient_clip_norm": 1.0},
            "bf16": {"precision": "bf16"},
            "dynamic loss scale": {"loss_scaling": "dynamic"},
        }.items()
    },
}
MODES: dict[str, dict[str, object]] = {
    "SGD": {},
    "LARS": {"optimizer": "lars"},
    "LARC": {"optimizer": "larc"},
    "LAMB": {"optimizer": "lamb"},
    "AdamW": {"optimizer": "adamw"},
    "RMSprop warm-up": {"optimizer": "rmsprop_warmup"},
    "clipped": {"gradient_clip_norm": 1.0},
    "gradient lag": {"gradient_lag": 1},
    "bf16": {"precision": "bf16"},
    "static loss scale": {"loss_scaling": "static"},
    "dynamic loss scale": {"loss_scaling": "dynamic"},
    "AdaScale": {"adascale_batch_size": 32},
    "AdaScale, LARS, dynamic loss scale": {
        "adascale_batch_size": 32,
        "optimizer": "lars",
        "loss_scaling": "dynamic",
    },
}
"""What ``--operations`` counts, at batch 64."""


class HandWritten:
    """The loop that one would write for this model alone."""

    def __init__(self, workload: Workload, job: TrainingJob) -> None:
        self.workload, self.job = workload, job
        torch.manual_seed(1)
        self.model = workload.build_model(job.settings)
        weights = [parameter for parameter in self.model.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in self.model.parameters() if parameter.ndim <= 1]
        settings = job.settings
        groups = [{"params": weights, "weight_decay": settings.weight_decay}, {"params": others}]
        self.optimizer: torch.optim.Optimizer
        if settings.optimizer == "lars":
            decay, momentum = settings.weight_decay, settings.momentum
            self.optimizer = LARS(
                self.model.parameters(), 0.1, momentum=momentum, weight_decay=decay
            )
        elif settings.optimizer == "adamw":
            self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0, fused=True)
        else:
            self.optimizer = torch.optim.SGD(groups, 0.1, momentum=settings.momentum, foreach=True)
        self.scaler = torch.amp.GradScaler("cpu", enabled=settings.loss_scaling == "dynamic")
        self.computing = (
            torch.autocast("cpu", torch.bfloat16)
            if settings.precision == "bf16"
            else contextlib.nullcontext()
        )
        self.norms = ghost_batch_norms(self.model)
        self.step = 0

    def __call__(self, updates: int) -> float:
        """Train and evaluate; returns the seconds of the processor."""
        started = time.process_time()
        batch, samples, settings = (
            self.job.global_batch_size,
            self.workload.train_samples,
            self.job.settings,
        )
        self.model.train()
        losses = []
        order, at, epoch = torch.randperm(samples), 0, 0
        for _ in range(updates):
            if at + batch > samples:
                order, at, epoch = torch.randperm(samples), 0, epoch + 1
            chosen = order[at : at + batch]
            images, classes = self.workload.prepare(
                self.workload.training_batch(chosen, torch.full_like(chosen, epoch), 0)
            )
            with self.computing:
                loss = F.cross_entropy(self.model(images), classes)
            self.scaler.scale(loss).backward()
            end_update(self.norms, batch // settings.normalization_batch_size)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(settings, self.step * batch / samples, self.job.epochs)
            if settings.gradient_clip_norm is not None:
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(
                    self.model.parameters(), settings.gradient_clip_norm, foreach=True
                )
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            losses.append(loss.detach())
            self.step, at = self.step + 1, at + batch
        torch.stack(losses).mean().item()
        self.evaluate()
        return time.process_time() - started

    @torch.no_grad()
    def evaluate(self) -> float:
        """Top-1 over the evaluation samples."""
        self.model.eval()
        indices = torch.arange(self.workload.evaluation_samples)
        batch = self.workload.prepare(self.workload.evaluation_batch(indices))
        with self.computing:
            scores = self.workload.score(self.model, batch)
        return float(scores["top1"].float().mean())


def trainer(workload: Workload, job: TrainingJob, *, measuring: bool) -> Callable[[int], float]:
    """The trainer's loop over so many updates, and an evaluation; its seconds."""
    training = Training(job, SingleProcess(torch.device("cpu")), workload=workload)
    if not measuring:
        training.loader._every = sys.maxsize
        training.loader._measured = dict.fromkeys(training.loader._measured)

    def run(updates: int) -> float:
        started = time.process_time()
        before = training.progress.step
        while training.progress.step < before + updates:
            training.advance()
        return time.process_time() - started

    return run


def measure(case: Case, rounds: int) -> tuple[float, float, float]:
    """Milliseconds of a hand-written update, and the trainer's overhead (a ratio) without and with measuring."""
    workload = case.workload()
    per_epoch = workload.train_samples / case.global_batch_size
    job = TrainingJob(
        workload="resnet",
        data={},
        target=Target("top1", 2.0),
        settings=case.settings,
        seed=0,
        global_batch_size=case.global_batch_size,
        epochs=(rounds + 2) * case.updates / per_epoch + 2,
        evaluations_per_epoch=per_epoch / case.updates,
    )
    ways = [
        HandWritten(workload, job),
        trainer(workload, job, measuring=False),
        trainer(workload, job, measuring=True),
    ]
    for way in ways:
        way(case.updates)
    taken = []
    for number in range(rounds):
        order = [(number + at) % 3 for at in range(3)]
        seconds = dict(sorted((at, ways[at](case.updates)) for at in order))
        taken.append([seconds[at] for at in range(3)])
    hand, plain, measured = (min(each[way] for each in taken) for way in range(3))
    return 1000 * hand / case.updates, plain / hand - 1, measured / hand - 1


class Operations(TorchDispatchMode):
    """Counts what is dispatched below autograd, and how often the host reads a value."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatched = self.read = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.dispatched += 1
        self.read += operation is torch.ops.aten._local_scalar_dense.default
        return operation(*args, **(kwargs or {}))


def counted_job(settings: TrainingSettings) -> TrainingJob:
    """The job whose updates are counted: digits at batch 64."""
    return TrainingJob(
        workload="resnet",
        data={},
        target=Target("top1", 2.0),
        settings=settings,
        seed=0,
        global_batch_size=64,
        epochs=4.0,
        evaluations_per_epoch=1.0,
    )


def operations(changes: dict[str, object]) -> tuple[float, float]:
    """What an update of a mode whose noise is not measured dispatches, and how often it waits."""
    job = counted_job(SETTINGS.replace(**changes))
    training = Training(job, SingleProcess(torch.device("cpu")), workload=_digits())
    training.model.train()
    for batch in training.optimizer.batches:  # type: ignore[attr-defined]
        batch.on_cpu = False  # the way of an accelerator
    training._update(0)
    training._update(1)
    with Operations() as counted:
        training._update(2)
        training._update(3)
    return counted.dispatched / 2, counted.read / 2


def count_operations() -> None:
    """Print one row per mode, after that of the hand-written loop."""
    print(
        "| mode | operations dispatched an update | waits of the host an update |\n|---|---:|---:|"
    )
    by_hand = HandWritten(_digits(), counted_job(SETTINGS))
    by_hand(1)
    counts = []
    for updates in (1, 3):
        with Operations() as counted:
            by_hand(updates)
        counts.append(counted)
    dispatched = (counts[1].dispatched - counts[0].dispatched) / 2
    print(f"| hand-written, SGD | {dispatched:.0f} | {(counts[1].read - counts[0].read) / 2:.0f} |")
    for name, changes in MODES.items():
        dispatched, read = operations(changes)
        print(f"| {name} | {dispatched:.0f} | {read:.0f} |", flush=True)


def main() -> None:
    """Print one row per case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--case", choices=tuple(CASES))
    parser.add_argument("--operations", action="store_true", help="count, and take no times")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if options.operations:
        count_operations()
        return
    print(
        "| model, data, global batch size | hand-written, ms an update | trainer | trainer, measuring |"
    )
    print("|---|---|---|---|")
    for name, case in CASES.items():
        if options.case in (None, name):
            milliseconds, plain, measured = measure(case, options.rounds)
            print(f"| {name} | {milliseconds:.2f} | {plain:+.1%} | {measured:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
