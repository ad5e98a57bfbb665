"""Train one configuration at one global batch size with one seed, on any number of workers.

This package does not depend on studies or databases. Importing it does not import torch, but importing
``trainers.loop.synchronous``, ``trainers.distributed`` or a workload that trains a model does.

The names in ``__all__`` are public, as are the base classes for custom workloads in ``trainers.workloads``; every other
module is internal and may change.
"""

from trainers.errors import (
    CheckpointError,
    CommunicationError,
    DataError,
    JobError,
    TrainerError,
    WorkloadError,
)
from trainers.job import Target, TrainingJob
from trainers.report import ConvergencePoint, TrainingOutcome

__all__ = [
    "CheckpointError",
    "CommunicationError",
    "ConvergencePoint",
    "DataError",
    "JobError",
    "Target",
    "TrainerError",
    "TrainingJob",
    "TrainingOutcome",
    "WorkloadError",
]
