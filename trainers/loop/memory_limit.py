"""Find a micro batch that fits in a GPU's memory, by trial and error, if the job does not set one.

Before its first update, a training run computes the loss and the gradient of a micro batch as large as its workload
allows, with memory reserved for the optimizer's state, and halves the micro batch until it fits. Usually the first
micro batch fits, and the check costs one update. The result is not stored, because other programs may start or stop
using the GPU. With ghost batch norm, results depend on the micro batch only through rounding; with another kind of
batch norm, the statistics depend on it, so the micro batch is not changed.
"""

from __future__ import annotations

import dataclasses
import logging

import torch

from trainers.distributed.communicator import Communicator
from trainers.errors import JobError
from trainers.job import TrainingJob
from trainers.loop.replica import Replica
from trainers.numerics.normalization import statistics_depend_on_micro_batches
from trainers.workloads.workload import some_samples

RESERVED_COPIES = 3
"""The number of parameter copies to reserve memory for: two optimizer moments, and the buffers of a reduction."""

_LOG = logging.getLogger(__name__)


def limited_by_memory(
    job: TrainingJob, replica: Replica, communicator: Communicator
) -> TrainingJob:
    """Return the job with a micro batch that fits every worker's GPU; the job is unchanged on a CPU, or if it sets one.

    Raises :class:`~trainers.errors.JobError` if not even one normalization group fits.
    """
    if job.micro_batch_size is not None or replica.device.type != "cuda":
        return job
    return with_fitting_micro_batch(job, replica, communicator)


def with_fitting_micro_batch(
    job: TrainingJob, replica: Replica, communicator: Communicator
) -> TrainingJob:
    """Like :func:`limited_by_memory`, on any device whose allocator raises :class:`torch.OutOfMemoryError`.

    All workers must call this.
    """
    if statistics_depend_on_micro_batches(replica.model):
        return job
    group, workload = replica.group_size, replica.workload
    groups = max(1, job.global_batch_size // communicator.size // group)
    first = groups = min(groups, max(1, workload.largest_micro_batch // group))
    while not _fits_everywhere(replica, communicator, groups * group):
        if groups == 1:
            raise JobError(
                f"a micro batch must fit in the memory of {replica.device}, but even one "
                f"normalization group of {group} samples does not; lower "
                f"normalization_batch_size, or use a smaller model or a GPU with more memory"
            )
        groups //= 2
    if groups == first:
        return job
    _LOG.info("micro batches of %d samples, the most that fit in memory", groups * group)
    return dataclasses.replace(job, micro_batch_size=groups * group)


def _fits_everywhere(replica: Replica, communicator: Communicator, samples: int) -> bool:
    fits = _fits(replica, samples)
    if replica.device.type == "cuda":
        torch.cuda.empty_cache()
    failed = torch.tensor([0.0 if fits else 1.0], device=communicator.device)
    communicator.all_reduce_sum_([failed])
    return not failed.item()


def _fits(replica: Replica, samples: int) -> bool:
    """Return whether the gradient of ``samples`` samples fits in memory; leaves the replica unchanged."""
    cuda = replica.device.type == "cuda"
    training = replica.model.training
    replica.model.train()
    try:
        with torch.random.fork_rng(devices=[replica.device] if cuda else []):
            reserved = [
                torch.empty_like(parameter)
                for parameter in replica.parameters
                for _ in range(RESERVED_COPIES)
            ]
            batch = some_samples(replica.workload, min(samples, replica.workload.train_samples))
            replica.loss(replica.copies.receive(replica.copies.send(batch))).backward()  # type: ignore[no-untyped-call]
            del reserved
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        replica.set_gradients(None)
        for norm in replica.norms:
            norm.begin_update()  # the next group's statistics replace those of this attempt
        replica.model.train(training)
