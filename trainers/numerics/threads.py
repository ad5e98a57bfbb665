"""How many threads a process computes with, and how many cores are its share of the machine."""

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
"""Variables by which launchers tell a process how many of its kind run on this node."""

LOCAL_RANKS = (
    "LOCAL_RANK",
    "HOROVOD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "SLURM_LOCALID",
)
"""Variables by which launchers tell a process its number on this node."""


@dataclass
class _Share:
    """The threads that this process was told to use; 0 while it was told nothing."""

    threads: int = 0


_share = _Share()


def use_threads(count: int) -> None:
    """Compute with ``count`` threads, which are the process's share of the machine's cores from now on."""
    _share.threads = count
    if "torch" in sys.modules:  # not every workload needs it
        import torch

        torch.set_num_threads(count)


def own_cores(count: int) -> None:
    """The process has so many cores to itself; with how many threads it computes is left as it is."""
    _share.threads = count


def place_on_node(environment: Mapping[str, str]) -> tuple[int, int]:
    """This worker's number among those of its node, and how many these are, from what launchers tell; else 0 of 1."""
    number = next(
        (int(environment[name]) for name in LOCAL_RANKS if environment.get(name, "").isdigit()), 0
    )
    return number, max(number + 1, local_size(environment) or 1)


def local_size(environment: Mapping[str, str]) -> int | None:
    """The workers on this node, from what launchers tell; None where they tell nothing."""
    return next(
        (int(environment[name]) for name in LOCAL_SIZES if environment.get(name, "").isdigit()),
        None,
    )


def cores_of_process() -> int:
    """The cores that are this process's share, at least 1.

    The number set by :func:`use_threads`; else the cores that the process may run on, divided by the workers on this
    node.
    """
    if _share.threads:
        return _share.threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // max(1, local_size(os.environ) or 1))
