"""The number of threads that a process uses, and its share of the machine's cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",
    "HOROVOD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PALS_LOCAL_SIZE",
    "SLURM_NTASKS_PER_NODE",
)
"""The environment variables in which launchers give the number of workers on this node."""

LOCAL_RANKS = (
    "LOCAL_RANK",
    "HOROVOD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "SLURM_LOCALID",
)
"""The environment variables in which launchers give a worker's local rank."""


@dataclass
class _Share:
    """The number of threads set for this process; 0 if none was set."""

    threads: int = 0


_share = _Share()


def use_threads(count: int) -> None:
    """Use ``count`` threads, which also become the process's share of the machine's cores."""
    _share.threads = count
    if "torch" in sys.modules:  # not every workload needs torch
        import torch

        torch.set_num_threads(count)


def own_cores(count: int) -> None:
    """Record that the process has ``count`` cores to itself, without changing its number of threads."""
    _share.threads = count


def local_rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return this worker's local rank and the number of workers on its node, as set by a launcher; else 0 and 1."""
    number = next(
        (int(environment[name]) for name in LOCAL_RANKS if environment.get(name, "").isdigit()), 0
    )
    return number, max(number + 1, launched_local_size(environment) or 1)


def launched_local_size(environment: Mapping[str, str]) -> int | None:
    """Return the number of workers on this node, as set by a launcher; None without a launcher."""
    return next(
        (int(environment[name]) for name in LOCAL_SIZES if environment.get(name, "").isdigit()),
        None,
    )


def cores_of_process() -> int:
    """Return the number of cores in this process's share, at least 1.

    This is the number set by :func:`use_threads` or, if none was set, the number of cores that the process may run on
    divided by the number of workers on this node.
    """
    if _share.threads:
        return _share.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // max(1, launched_local_size(os.environ) or 1))
