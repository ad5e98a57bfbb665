"""Start the training run of a job with any kind of workload, and train to the end.

Importing this module does not import torch; starting to train a model does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.errors import WorkloadError
from trainers.job import TrainingJob
from trainers.loop.restarts import finish_training, resume_from_checkpoint
from trainers.report import ConvergencePoint, TrainingOutcome
from trainers.workloads import (
    AnyWorkload,
    CustomLoopWorkload,
    Workload,
    check_own_settings,
    load_workload,
)
from trainers.workloads.program.task import ProgramWorkload

if TYPE_CHECKING:
    from trainers.distributed import Communicator
    from trainers.workloads.program.training import ProgramPlace
    from trainers.workloads.training_run import AnyTraining


def begin_training(
    job: TrainingJob,
    communicator: Communicator | None = None,
    *,
    workload: AnyWorkload | None = None,
    place: ProgramPlace | None = None,
) -> AnyTraining:
    """Create a training run for the job at its first update, for any kind of workload.

    ``communicator`` connects the workers; None means a single process. ``workload`` is the job's workload, if it is
    already loaded; ``place`` is where a program is started. Raises :class:`~trainers.errors.TrainerError`.
    """
    workload = workload or load_workload(job.workload, job.data, job.search_path)
    check_own_settings(workload, job.workload, job.settings.of_workload)
    if isinstance(workload, ProgramWorkload):
        return workload.begin_program(job, place)
    if isinstance(workload, CustomLoopWorkload):
        return workload.begin(job, communicator)
    if not isinstance(workload, Workload):
        raise WorkloadError(f"{type(workload).__name__} must be a Workload or a CustomLoopWorkload")
    from trainers.distributed.single import SingleProcessCommunicator

    if job.settings.update_mode != "synchronous":
        from trainers.asynchronous.training import AsynchronousTraining

        return AsynchronousTraining(
            job, communicator or SingleProcessCommunicator(), workload=workload
        )
    from trainers.loop.synchronous import SynchronousTraining

    return SynchronousTraining(job, communicator or SingleProcessCommunicator(), workload=workload)


def train(
    job: TrainingJob,
    communicator: Communicator,
    report: Callable[[ConvergencePoint], None],
    *,
    checkpoint: Path | None = None,
) -> TrainingOutcome:
    """Train to the end; after each evaluation, worker 0 reports it and then saves the checkpoint.

    If ``checkpoint`` exists, training resumes from it. All workers must see the same file.
    """
    training = begin_training(job, communicator)
    if checkpoint is not None:
        resume_from_checkpoint(training, communicator, checkpoint)
    return finish_training(training, communicator, report, checkpoint=checkpoint)
