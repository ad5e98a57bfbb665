"""Measure how fast this machine trains by timing a few updates and their share of the evaluations.

    python -m trainers.speed JOBS.json SECONDS

reads a list of training jobs and prints lines of JSON: ``[0, accelerators]``, then ``[global_batch_size,
seconds_per_sample]`` for each job, once it is measured. The measurement runs in a separate process, so that a workload
that crashes, or uses all the memory of a GPU, does no harm.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from trainers.begin import begin_training
from trainers.feed.streams import Part, first_samples
from trainers.job import Target, TrainingJob
from trainers.json_text import json_text
from trainers.numerics.threads import use_threads
from trainers.workloads import AnyWorkload, load_workload
from trainers.workloads.workload import Batch, Workload

UPDATES = 4
"""The maximum number of updates between two evaluations of the timed training."""


def seconds_per_sample(
    job: TrainingJob, seconds: float, workload: AnyWorkload | None = None
) -> float:
    """Return the seconds per sample of a training run, with its share of the evaluations, on one worker.

    The data set is cut so that there are ``UPDATES`` updates between two evaluations, and the evaluation set is cut by
    the same factor, so that their ratio is the same as in the whole run. The first interval between evaluations is not
    counted; at least one more interval is timed, for up to ``seconds``. Raises
    :class:`~trainers.errors.TrainerError` if training fails.
    """
    workload = workload or load_workload(job.workload, job.data, job.search_path)
    batch = job.global_batch_size
    # an unreachable target, so that the intervals are timed to the end
    target = Target.best(job.target.metric, higher_is_better=job.target.higher_is_better)
    job = dataclasses.replace(job, target=target)
    whole = workload.train_samples
    stretch = min(whole / job.evaluations_per_epoch, UPDATES * batch)
    if isinstance(workload, Workload):
        share = stretch * job.evaluations_per_epoch / whole
        workload.train_samples = max(1, round(whole * share))
        workload.evaluation_samples = max(1, round(workload.evaluation_samples * share))
        if workload.streamed:
            _cut_evaluation_stream(workload)
    training = begin_training(job, workload=workload)
    samples, took, warm = 0, 0.0, False
    before = 0
    while took < seconds:
        started = time.perf_counter()
        point = training.advance()
        elapsed = time.perf_counter() - started
        if point is None:
            break
        if warm or training.finished or elapsed > seconds:
            samples, took = samples + point.samples - before, took + elapsed
        before, warm = point.samples, True
        if training.finished:
            if took >= seconds or not samples:
                break
            training, before = begin_training(job, workload=workload), 0
    training.close()
    return took / samples if samples else math.nan


def _cut_evaluation_stream(workload: Workload) -> None:
    """Make the stream end after ``evaluation_samples``."""
    whole = workload.evaluation_stream

    def cut(part: Part) -> Iterator[Batch]:
        return first_samples(whole(part), part.share(workload.evaluation_samples))

    workload.evaluation_stream = cut  # type: ignore[method-assign]


def main(jobs: str, seconds: str) -> None:
    """Time every job in a file."""
    listed = [
        TrainingJob.from_dict(values)
        for values in json.loads(Path(jobs).read_text(encoding="utf-8"))
    ]
    use_threads(1)
    _tell(0, _accelerators())
    for job in listed:
        _tell(job.global_batch_size, seconds_per_sample(job, float(seconds)))


def _tell(batch: int, value: float) -> None:
    sys.stdout.write(json_text([batch, value]) + "\n")
    sys.stdout.flush()


def _accelerators() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count()


if __name__ == "__main__":
    main(*sys.argv[1:])
