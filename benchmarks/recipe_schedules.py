"""The recipes' learning rates and batch sizes compared with the published schedules.

    python -m benchmarks.recipe_schedules             # benchmarks/recipe_schedules.md

They are compared at 20 evenly spaced points of each training. The published schedules are reimplemented here as
functions of the update number (from 0), after the code or text named with each; they share nothing with the recipes
or ``trainers``. Rates differ by less than 0.1 % everywhere. For Mikami's training the batch sizes are published
but the rates are not; its rate is shown for a peak of 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from search_spaces.recipes import recipe
from search_spaces.settings import TrainingSettings
from trainers.schedules.batch_size import BatchSchedule, batch_schedule
from trainers.schedules.learning_rate import learning_rate

IMAGENET, DEEPCAM = 1_281_167, 121_266
POINTS = 20
Schedule = Callable[[int], float]
"""The learning rate of an update, by its number from 0."""


@dataclass(frozen=True)
class Published:
    """A schedule as published: its recipe and batch size, and the epochs over which it is compared.

    ``batches`` are the global batch sizes by the epoch from which each applies; ``schedule`` is None if no rate was
    published, and the recipe's then has a peak of 1.
    """

    recipe: str
    global_batch_size: int
    source: str
    epochs: float
    train_samples: int
    schedule: Schedule | None
    batches: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Point:
    """Both schedules at one update that starts after ``epochs``."""

    epochs: float
    update: int
    rate: float
    published_rate: float | None
    batch: int
    published_batch: int

    @property
    def deviation(self) -> float:
        """The deviation of the rate relative to the published one; 0 if none was published."""
        if self.published_rate is None:
            return 0.0
        return (
            abs(self.rate - self.published_rate) / self.published_rate
            if self.published_rate
            else abs(self.rate)
        )


def goyal(global_batch_size: int) -> Schedule:
    """Goyal et al., arXiv:1706.02677, sections 2.1, 2.2 and 5.1.

    Linear from 0.1 to 0.1 k over 5 epochs; divided by 10 at epochs 30, 60 and 80.
    """
    peak, steps_per_epoch = 0.1 * global_batch_size / 256, IMAGENET / global_batch_size
    increment = (peak - 0.1) / (5 * steps_per_epoch)

    def rate(update: int) -> float:
        epoch = update / steps_per_epoch
        if global_batch_size > 256 and epoch < 5:
            return 0.1 + update * increment
        return (
            peak
            if epoch < 30
            else peak / 10
            if epoch < 60
            else peak / 100
            if epoch < 80
            else peak / 1000
        )

    return rate


def smith(update: int) -> float:
    """Smith et al., arXiv:1711.00489: Goyal's training of 8192 at the same noise scale, rate * samples / batch.

    The batch is 8192 for 30 epochs and 16,384 from there on, so its rate is Goyal's and then twice Goyal's.
    """
    first = -(-30 * IMAGENET // 8192)  # updates of 8192 that begin before epoch 30
    if update < first:
        return goyal(8192)(update)
    return 2 * goyal(8192)(first + 2 * (update - first))


def smith_cifar(update: int) -> float:
    """Smith et al., arXiv:1711.00489, section 5.1: 0.1, until the batch cannot grow by 5 once more at epoch 160."""
    return 0.1 if _smith_cifar_epoch(update) < 160 else 0.02


def _smith_cifar_epoch(update: int) -> float:
    seen = 0
    for batch, until in ((128, 60), (640, 120), (3200, 200)):
        steps = -(-(until * 50_000 - seen) // batch)
        if update < steps:
            return (seen + update * batch) / 50_000
        update, seen = update - steps, seen + steps * batch
    return 200.0


def akiba(update: int) -> float:
    """The scheduler of RMSpropWarmup for Chainer: 0.1 per 256, times 0.5, 0.075, 0.01, 0.001 by whole epochs."""
    epoch = update * 32_768 // IMAGENET
    return (
        0.1
        * 32_768
        / 256
        * (0.5 if epoch < 40 else 0.075 if epoch < 70 else 0.01 if epoch < 85 else 0.001)
    )


def nus(global_batch_size: int, rate: float, warmup_epochs: float) -> Schedule:
    """LARS-ImageNet-PyTorch, utils.py, PolynomialWarmup with power 2 and end_lr 0, over 90 epochs."""
    steps = IMAGENET / global_batch_size
    warmup, decay = warmup_epochs * steps, (90 - warmup_epochs) * steps
    return lambda update: (
        rate * update / warmup if update < warmup else rate * (1 - (update - warmup) / decay) ** 2
    )


def ying(update: int) -> float:
    """tensorflow/tpu, models/official/resnet/lars_util.py, poly_rate_schedule at 32,768 with 3558 updates."""
    epoch = update / (IMAGENET / 32_768)
    warmup_steps = 12 * IMAGENET // 32_768
    if epoch <= 12:
        return 34.0 * epoch / 12
    return 34.0 * (1 - max(1, update - warmup_steps) / (3558 - warmup_steps + 1)) ** 2


def mlperf_tensorflow(
    global_batch_size: int, rate: float, warmup_epochs: int, decay_steps: float
) -> Schedule:
    """mlcommons/training, lars_util.py, PolynomialDecayWithWarmup; ``decay_steps`` count from the warmup's end."""
    warmup_steps = warmup_epochs * IMAGENET / global_batch_size

    def at(update: int) -> float:
        if update <= warmup_steps:
            return rate * update / warmup_steps
        return (rate - 1e-4) * (1 - (update - warmup_steps) / decay_steps) ** 2 + 1e-4

    return at


def mlperf_nvidia(
    global_batch_size: int, rate: float, warmup_epochs: int, total_steps: float
) -> Schedule:
    """mlcommons/training_results_v1.0, NVIDIA's fit.py, PolySchedule, at the number of completed updates."""
    warmup_steps = warmup_epochs * IMAGENET / global_batch_size

    def at(update: int) -> float:
        if update <= warmup_steps:
            return rate * (update / warmup_steps)
        return (
            1e-4 + (rate - 1e-4) * (1 - (update - warmup_steps) / (total_steps - warmup_steps)) ** 2
        )

    return at


def deepcam(rate: float, warmup_steps: int, milestones: tuple[int, ...], updates: int) -> Schedule:
    """mlcommons/hpc, deepcam/src/deepCam/utils/schedulers.py, MultiStepLRWarmup (torch's MultiStepLR without warmup).

    The scheduler is stateful, so its calls are replayed one after the other.
    """
    changes = {
        milestone + warmup_steps + 1 if warmup_steps else milestone for milestone in milestones
    }
    rates, current = [], rate
    for step in range(updates):
        if step < warmup_steps:
            current = rate * step / warmup_steps
        elif step in changes:
            current *= 0.1
        rates.append(current)
    return rates.__getitem__


MLPERF_RESNET = [
    # batch, rate, warmup epochs, decay steps, from the end of the warmup or from the first update, epochs, code
    (1632, 7.4, 2, 27476, "warmup", 37, "nvidia"),
    (3264, 10.5, 2, 14523, "first", 37, "nvidia"),
    (4096, 10.0, 5, 13137, "first", 42, "tensorflow"),
    (8192, 17.0, 5, 6095, "warmup", 43.9, "tensorflow"),
    (13056, 12.8, 9, 4710, "first", 47.9, "nvidia"),
    (32768, 21.2, 16, 2267, "first", 57.9, "tensorflow"),
    (49152, 19.405, 24, 1846, "first", 70.5, "nvidia"),
    (58880, 23.246, 29, 1785, "first", 82, "nvidia"),
    (65536, 24.699, 31, 1133, "warmup", 88.5, "tensorflow"),
    (67840, 24.699, 31, 1133, "warmup", 90.5, "nvidia"),
]
"""rcps_resnet.json of MLCommons' logging repository, round 4.0."""

MLPERF_DEEPCAM = [
    (128, 0.001, 0, (8192, 16384), 18.0),
    (256, 0.002, 0, (4096, 8192), 18.0),
    (512, 0.004, 100, (2048, 4096), 18.5),
    (1024, 0.004, 200, (1100, 4096), 38.0),
    (2048, 0.0055, 400, (800,), 26.0),
]
"""Batch, rate, warmup and milestones in updates (rcps_deepcam.json, round 1.0), and epochs after the last milestone."""

NUS = [
    (512, 2**2, 10 / 2**6),
    (1024, 2**2.5, 10 / 2**5),
    (4096, 2**3.5, 10 / 2**3),
    (8192, 2**4, 10 / 2**2),
    (16384, 2**4.5, 5),
]
"""Batch, base rate and warmup epochs (README of LARS-ImageNet-PyTorch)."""


def published() -> Iterator[Published]:
    """Yield every published schedule that has a recipe here."""

    def constant(
        name: str,
        batch: int,
        source: str,
        epochs: float,
        schedule: Schedule,
        samples: int = IMAGENET,
    ) -> Published:
        return Published(name, batch, source, epochs, samples, schedule, ((0.0, batch),))

    for batch in (256, 8192, 65536):
        yield constant(
            "goyal2017", batch, "arXiv:1706.02677, sections 2.1, 2.2, 5.1", 90, goyal(batch)
        )
    yield Published(
        "smith2018",
        8192,
        "arXiv:1711.00489; 1706.02677 at equal noise scale",
        90,
        IMAGENET,
        smith,
        ((0.0, 8192), (30.0, 16384)),
    )
    yield Published(
        "smith2018_cifar10",
        128,
        "arXiv:1711.00489, section 5.1",
        200,
        50_000,
        smith_cifar,
        ((0.0, 128), (60.0, 640), (120.0, 3200)),
    )
    yield Published(
        "mikami2018",
        34816,
        "arXiv:1811.05233, abstract and articles: batch sizes",
        90,
        IMAGENET,
        None,
        ((0.0, 34816), (30.0, 69632)),
    )
    yield constant("akiba2017", 32768, "RMSpropWarmupScheduler for Chainer", 90, akiba)
    for batch, rate, warmup in NUS:
        yield constant(
            "you2019_legw", batch, "LARS-ImageNet-PyTorch, utils.py", 89.9, nus(batch, rate, warmup)
        )
    yield constant("ying2018", 32768, "tensorflow/tpu, resnet/lars_util.py", 91, ying)
    for batch, rate, epochs_up, steps, start, epochs, code in MLPERF_RESNET:
        warmup_steps = epochs_up * IMAGENET / batch
        total = steps if start == "first" else warmup_steps + steps
        schedule = (
            mlperf_nvidia(batch, rate, epochs_up, total)
            if code == "nvidia"
            else mlperf_tensorflow(batch, rate, epochs_up, total - warmup_steps)
        )
        source = (
            "training_results_v1.0, NVIDIA's fit.py"
            if code == "nvidia"
            else "mlcommons/training, lars_util.py"
        )
        yield constant("mlperf_resnet_lars", batch, source, epochs, schedule)
    for batch, rate, warmup, milestones, epochs in MLPERF_DEEPCAM:
        schedule = deepcam(rate, warmup, milestones, round(epochs * DEEPCAM / batch) + 1)
        yield constant(
            "mlperf_deepcam_lamb",
            batch,
            "mlcommons/hpc, deepcam/.../schedulers.py",
            epochs,
            schedule,
            DEEPCAM,
        )


def compared(each: Published) -> list[Point]:
    """Return both schedules at the updates after 1/20, 2/20, ... of the training; the last is the final update."""
    planned = planned_schedule(each)
    updates = [
        min(planned.total_steps * number // POINTS, planned.total_steps - 1)
        for number in range(1, POINTS + 1)
    ]
    return [at_update(each, planned, update) for update in updates]


def planned_schedule(each: Published) -> BatchSchedule:
    """Return the updates of the recipe's training."""
    return batch_schedule(
        _settings(each), each.global_batch_size, each.train_samples, each.epochs, 1
    )


def at_update(each: Published, planned: BatchSchedule, update: int) -> Point:
    """Return both schedules at one update."""
    epochs = planned.epochs(update)
    return Point(
        epochs,
        update,
        learning_rate(_settings(each), epochs, each.epochs),
        None if each.schedule is None else each.schedule(update),
        planned.phase(update).global_batch_size,
        [size for start, size in each.batches if epochs >= start][-1],
    )


@functools.cache
def _settings(each: Published) -> TrainingSettings:
    unknown = {"learning_rate": 1.0} if each.schedule is None else {}
    return recipe(each.recipe).settings_at(each.global_batch_size, **unknown)


def report() -> str:
    """Return all comparisons as Markdown: one line for each schedule, then one table of 20 points for each."""
    every = [(each, compared(each)) for each in published()]
    lines = [
        "# Recipes compared with the published schedules",
        "",
        "`python -m benchmarks.recipe_schedules` writes this page; "
        "`tests/search_spaces/test_reference_schedules.py` checks that",
        "every line agrees to 0.1 %. [recipe_schedules.py](recipe_schedules.py) computes each published schedule.",
        "",
        "| recipe | batch size | published in | points | largest deviation of the rate | batch sizes |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.recipe} | {each.global_batch_size:,} | {each.source} | {len(points)} | "
        f"{100 * max(point.deviation for point in points):.4f} % | "
        f"{'equal' if all(point.batch == point.published_batch for point in points) else 'DIFFER'} |"
        for each, points in every
    ]
    lines += [
        "",
        "The rates of mikami2018, jia2018 and you2017_lars were not found in any public text, log or code "
        "(`unknown` in the",
        "recipe). Mikami's batch sizes, 34,816 and 69,632, are published; the epoch of the change is recalled "
        "from memory, with",
        "low confidence.",
    ]
    for each, points in every:
        lines += [
            "",
            f"## {each.recipe} at {each.global_batch_size:,}",
            "",
            "| epoch | update | rate | published rate | batch size | published batch size |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {point.epochs:.2f} | {point.update:,} | {point.rate:.6g} | {_shown(point.published_rate)} | "
            f"{point.batch:,} | {point.published_batch:,} |"
            for point in points
        ]
    return "\n".join(lines) + "\n"


def _shown(rate: float | None) -> str:
    return "not published" if rate is None else f"{rate:.6g}"


if __name__ == "__main__":
    print(report(), end="")
