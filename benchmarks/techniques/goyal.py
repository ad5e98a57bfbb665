"""The ranking of Goyal et al.'s table 2 (arXiv:1706.02677): warmup and scaling rules at a large batch, by accuracy.

The small batch's rate is scaled to the large batch by a rule and nothing is tuned, as in the paper; the rate drops
tenfold at 1/3, 2/3 and 8/9 of the epochs, corresponding to the paper's 30, 60 and 80 of 90 epochs. Every case is
trained with three seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.techniques.workloads import Images
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.job import Target, TrainingJob
from trainers.workloads import AnyWorkload, load_workload

SEEDS = (0, 1, 2)
WARMUP_SHARE = 5 / 90


@dataclass(frozen=True)
class Case:
    """A line of the table: a batch size, a rate and a warmup."""

    name: str
    global_batch_size: int
    settings: TrainingSettings


def cases(images: Images) -> list[Case]:
    """Return the paper's cases, with the pair of batch sizes of ``images``."""
    small, large, rate = images.goyal
    factor, epochs = large / small, images.goyal_epochs
    milestones = [epochs * share for share in (1 / 3, 2 / 3, 8 / 9)]
    warmup = max(epochs * WARMUP_SHARE, 1.0)

    def case(name: str, batch: int, learning_rate: float, **warmup_settings: object) -> Case:
        return Case(
            name,
            batch,
            TrainingSettings.from_dict(
                {
                    "learning_rate": learning_rate,
                    "momentum": 0.9,
                    "nesterov": True,
                    "decay": "step",
                    "decay_milestones": milestones,
                    **warmup_settings,
                }
            ),
        )

    return [
        case("small batch", small, rate),
        case(
            "linear, gradual warmup",
            large,
            rate * factor,
            warmup_epochs=warmup,
            warmup_start_factor=1 / factor,
        ),
        case(
            "linear, constant warmup",
            large,
            rate * factor,
            warmup_epochs=warmup,
            warmup_start_factor=1 / factor,
            warmup_shape="constant",
        ),
        case("linear, no warmup", large, rate * factor),
        case("square root", large, rate * math.sqrt(factor)),
        case("unscaled", large, rate),
    ]


def rows(images: Images) -> Iterator[tuple[Case, float, float]]:
    """Yield each case with the mean and the standard deviation of its final top-1 error, in percent."""
    workload = load_workload("resnet", images.data)
    for case in cases(images):
        errors = [100 * (1 - final_accuracy(images, case, seed, workload)) for seed in SEEDS]
        yield case, statistics.mean(errors), statistics.stdev(errors)


def final_accuracy(images: Images, case: Case, seed: int, workload: AnyWorkload) -> float:
    """Return the final top-1 accuracy; that of random guessing if the training diverged."""
    job = TrainingJob(
        workload="resnet",
        data=images.data,
        target=Target("top1", 2.0),
        settings=case.settings,
        global_batch_size=case.global_batch_size,
        seed=seed,
        epochs=images.goyal_epochs,
        evaluations_per_epoch=1,
    )
    training = begin_training(job, workload=workload)
    while not training.finished:
        training.advance()
    outcome = training.outcome
    return outcome.final_metric if outcome.state != "diverged" else 0.1
