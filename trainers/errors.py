"""The errors of a training run, before it starts or while it runs.

TrainerError
├── WorkloadError       the workload cannot be found, is not a Workload, or lacks the metric
├── DataError           the data are missing, too few, or have the wrong shape
├── JobError            the job contradicts itself, its settings, or the number of workers
├── CheckpointError     a checkpoint cannot be read, or belongs to another job
├── CommunicationError  the workers cannot find each other, or a backend is missing
└── DeviceError         there is no such device, or there are more workers than devices
"""

from __future__ import annotations


class TrainerError(Exception):
    """The base class of errors that a user can fix; the message states the rule, the value and the remedy."""


class WorkloadError(TrainerError):
    """An unknown workload, a class that is not a :class:`~trainers.workloads.Workload`, or an unknown metric."""


class DataError(TrainerError):
    """A missing folder, too few samples, a wrong shape or an unknown data option."""


class JobError(TrainerError):
    """A job that contradicts itself, its settings, or the number of workers."""


class CheckpointError(TrainerError):
    """A checkpoint that cannot be read, or that belongs to another job."""


class CommunicationError(TrainerError):
    """Workers that cannot find each other, or a backend that is not installed."""


class DeviceError(TrainerError):
    """A device that does not exist, or more workers than devices."""
