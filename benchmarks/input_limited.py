"""An input-bound training: predicted against measured time, on this machine.

    python -m benchmarks.input_limited [--images 512] [--folder FOLDER]

A folder of generated JPEGs of 500 x 375 (nearly as large as ImageNet's) is trained on with a network so small that
decoding takes most of the time. The prediction uses what `hpo machines local --measure` measures of the machine and
`hpo run` of the workload; no training is timed for it. For two workers it is also made as for a plan of this machine:
from the rate of one worker. The machine must be otherwise idle.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.machines import Machine, local_machine, measure_local
from hpo.planning.placement.placements import Placement
from hpo.planning.placement.rates import ModelledRates, SweepRates
from hpo.planning.timing.step_time import StepOptions
from search_spaces.settings import TrainingSettings
from trainers.cost import WorkloadCost, workload_cost
from trainers.job import Target, TrainingJob
from trainers.report import read_points
from trainers.workloads.resnet.task import ResNetWorkload

SIZES = (96, 224)
EPOCHS, EVALUATIONS_PER_EPOCH, BATCH = 4, 1, 64
WIDTH, HEIGHT, QUALITY = 500, 375, 92
CLASSES = 2


class SmallNet(ResNetWorkload):
    """A convolution and a linear layer, with 4 x 4 features in between."""

    def build_model(self, settings: TrainingSettings) -> nn.Module:  # noqa: ARG002
        """Return a network of 2.4 million multiply-adds forward and backward for an image of 224 x 224."""
        return nn.Sequential(
            nn.Conv2d(3, 8, 8, stride=8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(8 * 16, CLASSES),
        )


@dataclasses.dataclass(frozen=True)
class Row:
    """One training: the prediction, its source, and the measured seconds."""

    workers: int
    source: str
    predicted: Interval
    limited_by: str
    measured: float

    def __str__(self) -> str:
        inside = self.predicted.low <= self.measured <= self.predicted.high
        return (
            f"| {self.workers} | {self.source} | {self.predicted.median:.3g} "
            f"({self.predicted.low:.3g} to {self.predicted.high:.3g}) | {self.measured:.3g} | "
            f"{'yes' if inside else 'no'} | {self.limited_by} |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--images", type=int, default=512, help="in the training set")
    parser.add_argument("--folder", type=Path, help="for images and reports; a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        os.environ["HPO_LOCAL_MACHINE"] = str(folder / "local.yaml")
        measure_local()
        machine = local_machine()
        write_images(folder / "images", options.images)
        print(
            f"{machine.accelerators} cores of {machine.accelerator.peak_flops['fp32'] / 1e9:.3g} GFLOP/s\n\n"
            "| image size | a core decodes one in | workers | predicted from | predicted seconds | measured | "
            "inside | limited by |\n"
            "|---|---|---|---|---|---|---|---|"
        )
        for size in SIZES:
            cost = workload_cost(SmallNet(_data(folder, size)), TrainingSettings())
            for row in rows(machine, cost, folder, options.images, size):
                print(f"| {size} | {1e3 * cost.host_seconds_per_sample:.2g} ms {row}", flush=True)


def rows(
    machine: Machine, cost: WorkloadCost, folder: Path, images: int, size: int
) -> Iterator[Row]:
    """Yield the rows of one image size, training by training."""
    rates = ModelledRates(machine, cost, StepOptions())
    alone = 0.0
    for workers in sorted({1, min(2, machine.accelerators)}):
        place = Placement(1, workers, BATCH // workers, BATCH // workers)
        rate, measured = rates(place), train(folder, workers, size)
        evaluating = EPOCHS * EVALUATIONS_PER_EPOCH * rate.evaluation_seconds
        yield Row(
            workers,
            "figures of machine and workload",
            _seconds(images, rate.samples_per_second, evaluating),
            rate.limited_by,
            measured,
        )
        if workers == 1:
            alone = EPOCHS * images / measured
        else:
            planned = SweepRates(alone, cost.host_seconds_per_sample, machine.accelerators)(place)
            yield Row(
                workers,
                "the rate of one worker",
                _seconds(images, planned.samples_per_second),
                planned.limited_by,
                measured,
            )


def train(folder: Path, workers: int, size: int) -> float:
    """Time training and evaluation with ``workers`` workers of one computing thread each."""
    job, report = folder / "job.json", folder / f"report-{size}-{workers}.jsonl"
    TrainingJob(
        workload="benchmarks.input_limited:SmallNet",
        data=_data(folder, size),
        target=Target("top1", 2.0),
        settings=TrainingSettings(learning_rate=0.01),
        global_batch_size=BATCH,
        seed=0,
        epochs=EPOCHS,
        evaluations_per_epoch=EVALUATIONS_PER_EPOCH,
    ).save(job)
    launcher = ["-m", "trainers.local_workers", str(workers), "torch"] if workers > 1 else []
    backend = ["--backend", "torch"] if workers > 1 else []
    subprocess.run(
        [sys.executable, *launcher, "-m", "trainers", str(job), "--report", str(report), *backend],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return read_points(report)[-1].seconds


def write_images(folder: Path, images: int) -> None:
    """Write JPEGs in ImageNet's layout: random blocks at three scales, about 110 kB each."""
    rng = np.random.default_rng(0)
    for part, count in (("train", images), ("val", max(CLASSES, images // 8))):
        for number in range(count):
            target = folder / part / f"class{number % CLASSES}"
            target.mkdir(parents=True, exist_ok=True)
            pixels = sum(
                np.asarray(
                    Image.fromarray(
                        rng.integers(0, 85, (HEIGHT // size, WIDTH // size, 3), dtype=np.uint8)
                    ).resize((WIDTH, HEIGHT)),
                    np.uint16,
                )
                for size in (64, 12, 3)
            )
            Image.fromarray(np.asarray(pixels, np.uint8)).save(
                target / f"{number}.jpg", quality=QUALITY
            )


def _data(folder: Path, size: int) -> dict[str, Any]:
    return {"source": "image_folder", "path": str(folder / "images"), "image_size": size}


def _seconds(images: int, rate: Interval, around: float = 0.0) -> Interval:
    samples = EPOCHS * images
    return Interval(
        around + samples / rate.median, around + samples / rate.high, around + samples / rate.low
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
