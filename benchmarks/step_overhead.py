"""Overhead of ``trainers.loop.synchronous`` over a hand-written PyTorch loop: same model, data, updates, evaluation.

A round is 24 updates and an evaluation by the trainer, with an update of the hand-written loop below before each of its
own, and the loop's evaluation at the end, so the machine's other load affects both equally. The overhead is the median,
over the rounds, of the ratio within a round, with its quartiles. Rounds in which the trainer does not measure the
gradient noise scale alternate with rounds in which it does, at one update of the 24, as in practice. Times are CPU
times, on one thread. Both keep the memory that they free, as training processes do. PyTorch's optimizers are its fused
ones; those that it lacks are the trainer's own rules in both loops.

``--operations`` instead counts the operations that one update of each mode dispatches in both loops, as on an
accelerator, and how often the host waits for a value of it: figures that do not depend on the machine.

    python benchmarks/step_overhead.py [--rounds N] [--case NAME ...]
    python benchmarks/step_overhead.py --operations
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
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
from trainers.distributed.single import SingleProcessCommunicator
from trainers.loop.synchronous import SynchronousTraining
from trainers.numerics.memory import keep_freed_memory
from trainers.numerics.normalization import ghost_batch_norms, update_running_statistics
from trainers.optimizers import Optimizer, make_optimizer
from trainers.schedules.adascale import AdaScale
from trainers.schedules.device_arithmetic import ON_DEVICE
from trainers.schedules.learning_rate import learning_rate
from trainers.workloads import Workload, load_workload
from trainers.workloads.resnet.images import ImagesInMemory
from trainers.workloads.resnet.task import ResNetWorkload

SETTINGS = TrainingSettings(
    learning_rate=0.05, warmup_epochs=1.0, decay="cosine", normalization_batch_size=16
)


UPDATES = 24
"""Updates per round: those between two measurements of the noise scale."""


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
    """A model at a batch size."""

    workload: Callable[[], Workload]
    global_batch_size: int
    settings: TrainingSettings = SETTINGS


def _digits() -> Workload:
    workload = load_workload("resnet", {"source": "digits"})
    assert isinstance(workload, Workload)
    return workload


MODES: dict[str, dict[str, object]] = {
    "SGD": {},
    "LARS": {"optimizer": "lars", "learning_rate": 2.0},
    "LARC": {"optimizer": "larc"},
    "LAMB": {"optimizer": "lamb", "learning_rate": 1e-3},
    "AdamW": {"optimizer": "adamw", "learning_rate": 1e-3},
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
"""The modes that ``--operations`` counts, at batch 64; all but the last are timed, too."""

RULES = {
    "Muon": "muon",
    "Schedule-Free AdamW": "schedule_free_adamw",
    "NAdamW": "nadamw",
    "AdEMAMix": "ademamix",
    "Lion": "lion",
    "SOAP": "soap",
}
"""Optimizers that PyTorch lacks or implements differently: timed against the hand-written loop with the same rule."""

CASES = {
    "resnet8, digits, 32": Case(_digits, 32),
    "resnet8, digits, 64": Case(_digits, 64),
    "resnet8, digits, 256": Case(_digits, 256),
    "resnet8, digits, 256, groups of 64": Case(
        _digits, 256, SETTINGS.replace(normalization_batch_size=64)
    ),
    "resnet20, 32x32, 128": Case(RandomImages, 128, SETTINGS.replace(normalization_batch_size=32)),
    **{
        f"resnet8, digits, 64, {name}": Case(_digits, 64, SETTINGS.replace(**changes))
        for name, changes in MODES.items()
        if name not in ("SGD", "AdaScale, LARS, dynamic loss scale")
    },
    **{
        f"resnet8, digits, 64, {name}": Case(
            _digits, 64, SETTINGS.replace(optimizer=optimizer, learning_rate=1e-3)
        )
        for name, optimizer in RULES.items()
    },
}


class HandWritten:
    """The loop that one would write only for this model and this mode."""

    def __init__(self, workload: Workload, job: TrainingJob) -> None:
        self.workload, self.job, settings = workload, job, job.settings
        torch.manual_seed(1)
        self.model = workload.build_model(settings)
        self.parameters = list(self.model.parameters())
        self.norms = ghost_batch_norms(self.model)
        self.optimizer = self._torch_optimizer()
        self.rule = None if self.optimizer else make_optimizer(self.parameters, settings)
        self.scaler = torch.amp.GradScaler("cpu", enabled=settings.loss_scaling == "dynamic")
        self.computing = (
            torch.autocast("cpu", torch.bfloat16)
            if settings.precision == "bf16"
            else contextlib.nullcontext()
        )
        self.lagging = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squared = self.variance = self.progress = 0.0
        self.losses: list[Tensor] = []
        self.order, self.at, self.epoch = torch.randperm(workload.train_samples), 0, 0
        self.step = 0

    def _torch_optimizer(self) -> torch.optim.Optimizer | None:
        settings = self.job.settings
        weights = [parameter for parameter in self.parameters if parameter.ndim > 1]
        others = [parameter for parameter in self.parameters if parameter.ndim <= 1]
        groups = [{"params": weights, "weight_decay": settings.weight_decay}, {"params": others}]
        if settings.optimizer == "adamw":
            return torch.optim.AdamW(groups, weight_decay=0.0, fused=True)
        if settings.optimizer == "sgd":
            return torch.optim.SGD(groups, 0.1, momentum=settings.momentum, fused=True)
        return None

    def update(self) -> None:
        """Train on the next batch."""
        batch, samples = self.job.global_batch_size, self.workload.train_samples
        if self.at + batch > samples:
            self.order, self.at, self.epoch = torch.randperm(samples), 0, self.epoch + 1
        chosen = self.order[self.at : self.at + batch]
        images, classes = self.workload.prepare(
            self.workload.training_batch(chosen, torch.full_like(chosen, self.epoch), 0)
        )
        self.losses.append(self._update(images, classes, self.step * batch / samples))
        self.step, self.at = self.step + 1, self.at + batch

    def finish_round(self) -> None:
        """Read the mean loss, and evaluate."""
        torch.stack(self.losses).mean().item()
        self.losses.clear()
        self.evaluate()
        self.model.train()

    def _update(self, images: Tensor, classes: Tensor, epochs: float) -> Tensor:
        settings = self.job.settings
        if settings.adascale_batch_size is not None:
            loss, gain = self._chunks(images, classes)
            epochs = self.progress
            self.progress += gain * settings.adascale_batch_size / self.workload.train_samples
        else:
            with self.computing:
                loss = F.cross_entropy(self.model(images), classes)
            static = settings.loss_scaling == "static"
            self.scaler.scale(loss * settings.loss_scale if static else loss).backward()
            if static:
                torch._foreach_mul_(self._gradients(), 1 / settings.loss_scale)
            gain = 1.0
        update_running_statistics(self.norms, len(images) // settings.normalization_batch_size)
        if settings.gradient_lag:
            self.lagging, now = self._gradients(), self.lagging
            for parameter, gradient in zip(self.parameters, now, strict=True):
                parameter.grad = gradient
        self._step(gain * learning_rate(settings, epochs, self.job.epochs), epochs)
        for parameter in self.parameters:
            parameter.grad = None
        return loss.detach()

    def _step(self, rate: float, epochs: float) -> None:
        if self.optimizer is None:
            self.rule.step(rate, epochs)
            return
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.job.settings.gradient_clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(
                self.parameters, self.job.settings.gradient_clip_norm, foreach=True
            )
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _chunks(self, images: Tensor, classes: Tensor) -> tuple[Tensor, float]:
        """Compute gradients of chunks of AdaScale's base batch and their mean; return the loss and the gain."""
        base, whole = self.job.settings.adascale_batch_size, len(images)
        total, losses, squares = [], [], 0.0
        for part, of_part in zip(images.split(base), classes.split(base), strict=True):
            loss = F.cross_entropy(self.model(part), of_part)
            loss.backward()
            gradients = self._gradients()
            squares += self._squared_norm(gradients) * base / whole
            if total:
                torch._foreach_add_(total, gradients)
            else:
                total = gradients
            for parameter in self.parameters:
                parameter.grad = None
            losses.append(loss.detach())
        torch._foreach_mul_(total, base / whole)
        for parameter, gradient in zip(self.parameters, total, strict=True):
            parameter.grad = gradient
        of_batch = self._squared_norm(total)
        keep = 1 - whole / base / 1000
        squared = (whole * of_batch - base * squares) / (whole - base)
        variance = (squares - of_batch) / (1 / base - 1 / whole)
        self.squared = keep * self.squared + (1 - keep) * squared
        self.variance = keep * self.variance + (1 - keep) * variance
        signal, noise = max(0.0, self.squared), self.variance
        gain = (noise / base + signal) / (noise / whole + signal) if noise > 0 else 1.0
        return torch.stack(losses).mean(), gain

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters]

    @staticmethod
    def _squared_norm(tensors: list[Tensor]) -> float:
        return float(torch.stack(torch._foreach_norm(tensors)).double().square().sum())

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return top-1 over the evaluation samples."""
        self.model.eval()
        indices = torch.arange(self.workload.evaluation_samples)
        batch = self.workload.prepare(self.workload.evaluation_batch(indices))
        with self.computing:
            scores = self.workload.score(self.model, batch)
        return float(scores["top1"].float().mean())


def side_by_side(
    by_hand: HandWritten, workload: Workload, *, measuring: bool
) -> Callable[[], tuple[float, float]]:
    """Run a round of both loops, alternating updates; return the seconds of the hand-written one and the trainer's."""
    training = SynchronousTraining(
        by_hand.job, SingleProcessCommunicator(torch.device("cpu")), workload=workload
    )
    if not measuring:
        training.loader._every = sys.maxsize
        training.loader._measured = dict.fromkeys(training.loader._measured)
    trained, seconds = training._update, 0.0

    def both(step: int) -> tuple[Tensor, float | Tensor]:
        nonlocal seconds
        started = time.process_time()
        by_hand.update()
        if len(by_hand.losses) == UPDATES:
            by_hand.finish_round()
        seconds += time.process_time() - started
        return trained(step)

    def round_of_both() -> tuple[float, float]:
        nonlocal seconds
        before, started, seconds = training.progress.step, time.process_time(), 0.0
        training.advance()
        assert training.progress.step == before + UPDATES
        return seconds, time.process_time() - started - seconds

    training._update = both  # type: ignore[method-assign]
    return round_of_both


@dataclass(frozen=True)
class Measured:
    """Milliseconds of a hand-written update, and the overheads without and with measuring: quartiles of a ratio - 1."""

    milliseconds: float
    plain: list[float] | None
    measuring: list[float]

    def row(self) -> str:
        """Return the cells of a table."""
        return " | ".join(
            "" if each is None else f"{each[1]:+.1%} ({each[0]:+.1%} to {each[2]:+.1%})"
            for each in (self.plain, self.measuring)
        )


def measure(case: Case, rounds: int) -> Measured:
    """Measure both loops of one case; AdaScale always measures, in every update."""
    workload = case.workload()
    per_epoch = workload.train_samples / case.global_batch_size
    job = TrainingJob(
        workload="resnet",
        data={},
        target=Target("top1", 2.0),
        settings=case.settings,
        seed=0,
        global_batch_size=case.global_batch_size,
        epochs=(rounds + 2) * UPDATES / per_epoch + 2,
        evaluations_per_epoch=per_epoch / UPDATES,
    )
    by_hand = HandWritten(workload, job)
    always = case.settings.adascale_batch_size is not None
    ways = [
        side_by_side(by_hand, workload, measuring=each)
        for each in ([True] if always else [False, True])
    ]
    for way in ways:
        way()
    taken = [[way() for way in ways] for _ in range(rounds)]

    def overhead(way: int) -> list[float]:
        ratios = [ours / theirs - 1 for theirs, ours in (each[way] for each in taken)]
        return statistics.quantiles(ratios, n=4, method="inclusive")

    return Measured(
        1000 * statistics.median(each[0][0] for each in taken) / UPDATES,
        None if always else overhead(0),
        overhead(len(ways) - 1),
    )


class Operations(TorchDispatchMode):
    """Counts the operations dispatched below autograd, and how often the host reads a value."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatched = self.read = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.dispatched += 1
        self.read += operation is torch.ops.aten._local_scalar_dense.default
        return operation(*args, **(kwargs or {}))


def counted_job(settings: TrainingSettings) -> TrainingJob:
    """Return the job whose updates are counted: digits at batch 64."""
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


def operations(changes: dict[str, object], *, by_hand: bool) -> tuple[float, float]:
    """Return how many operations an update without noise measurement dispatches, and how often the host waits."""
    job = counted_job(SETTINGS.replace(**changes))
    if by_hand:
        loop = HandWritten(_digits(), job)
        take_the_way_of_an_accelerator(loop.rule)
        following = (loop.update() for _ in itertools.count())
    else:
        training = SynchronousTraining(
            job, SingleProcessCommunicator(torch.device("cpu")), workload=_digits()
        )
        training.model.train()
        take_the_way_of_an_accelerator(training.optimizer, training.adascale)
        following = map(training._update, itertools.count())
    for _ in range(2):
        next(following)
    with Operations() as counted:
        for _ in range(2):
            next(following)
    return counted.dispatched / 2, counted.read / 2


def take_the_way_of_an_accelerator(
    optimizer: Optimizer | None, adascale: AdaScale | None = None
) -> None:
    """Compute as on an accelerator what otherwise runs on the host, where values are available at once."""
    for batch in getattr(optimizer, "batches", ()):
        batch.on_cpu = False
    if adascale is not None:
        adascale.arithmetic = ON_DEVICE
        adascale.load_state_dict(adascale.state_dict())


def count_operations() -> None:
    """Print a row for each mode: the hand-written loop and the trainer."""
    print(
        "| mode | operations an update, hand-written | trainer | waits an update, hand-written | trainer |\n"
        "|---|---:|---:|---:|---:|"
    )
    for name, changes in MODES.items():
        theirs, ours = (operations(changes, by_hand=each) for each in (True, False))
        print(
            f"| {name} | {theirs[0]:.0f} | {ours[0]:.0f} | {theirs[1]:.0f} | {ours[1]:.0f} |",
            flush=True,
        )


def main() -> None:
    """Print one row per case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--case", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--operations", action="store_true", help="count, and take no times")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if options.operations:
        count_operations()
        return
    print(
        "| model, data, global batch size | hand-written, ms an update | trainer (quartiles) | "
        "trainer, measuring (quartiles) |\n|---|---:|---:|---:|"
    )
    for name in options.case:
        found = measure(CASES[name], options.rounds)
        print(f"| {name} | {found.milliseconds:.2f} | {found.row()} |", flush=True)


if __name__ == "__main__":
    main()
