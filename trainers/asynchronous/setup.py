"""The parts that the server and every replica build from the job."""

from __future__ import annotations

import os
from dataclasses import dataclass

from trainers.asynchronous.messages import ActorSetup
from trainers.distributed.device import choose_device, gpu_count, wanted_device
from trainers.job import TrainingJob
from trainers.loop.replica import Replica
from trainers.numerics.threads import use_threads
from trainers.schedules.batch_size import BatchSchedule, batch_schedule
from trainers.workloads import Workload, load_model_workload


@dataclass(frozen=True)
class BuiltParts:
    """A job with its workload, its schedule and a fresh model."""

    job: TrainingJob
    workload: Workload
    batch_schedule: BatchSchedule
    replica: Replica


def build_actor_parts(setup: ActorSetup, number: int) -> BuiltParts:
    """Build the parts in this actor's process; ``number`` picks its GPU if there are any."""
    _show_devices(setup.visible_devices)
    use_threads(setup.threads)
    job = TrainingJob.from_dict(setup.job)
    workload = load_model_workload(job)
    device = choose_device(
        number % max(1, gpu_count()), wanted=wanted_device()
    )  # replicas may share one
    replica = Replica(workload, job.settings, job.seed, device)
    planned = batch_schedule(
        job.settings,
        job.global_batch_size,
        workload.train_samples,
        job.epochs,
        job.evaluations_per_epoch,
    )
    return BuiltParts(job, workload, planned, replica)


def _show_devices(visible: str | None) -> None:
    """Make GPUs visible: Ray hides them from actors that reserve none, but these actors share the GPUs of the run."""
    if visible is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
