"""Begins a training of a job, whatever its workload trains, and trains it to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainers.distributed.communicator import Communicator
from trainers.job import TrainingJob
from trainers.loop.restarts import finish, resume
from trainers.report import ConvergencePoint, TrainingOutcome
from trainers.workloads import load_workload
from trainers.workloads.training_run import TrainingRun
from trainers.workloads.workload import AnyWorkload


def begin_training(job: TrainingJob, communicator: Communicator | None = None, *,
                   workload: AnyWorkload | None = None) -> TrainingRun:
    """A training of the job, at its first update, whatever the workload trains.

    ``communicator`` joins the workers; None stands for a process that works alone. ``workload`` is the job's, if
    it is loaded already. Raises :class:`~trainers.errors.TrainerError`.
    """
    workload = workload or load_workload(job.workload, job.data, job.search_path)
    return workload.begin(job, communicator)


def train(job: TrainingJob, communicator: Communicator, report: Callable[[ConvergencePoint], None], *,
          checkpoint: Path | None = None) -> TrainingOutcome:
    """Train to the end; worker 0 reports each evaluation and then saves the checkpoint.

    Where ``checkpoint`` exists the training goes on from there. All workers must see the same file.
    """
    training = begin_training(job, communicator)
    if checkpoint is not None:
        resume(training, communicator, checkpoint)
    return finish(training, communicator, report, checkpoint=checkpoint)
