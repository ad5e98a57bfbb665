"""The facts about a plan that its launch script needs: what to start, where, for how long, and how to describe it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.launchers.environment import EnvironmentVariable, environment_variables
from hpo.planning.machines import Machine
from hpo.planning.plan import Plan, shared_batch_size
from hpo.planning.schedulers import SCHEDULERS

STARTUP_SECONDS = 300
"""Assumed time from the start of the slot to the first update, on a machine with many nodes."""
STAGING_SECONDS = 600
"""Assumed time to copy the training set to the nodes' disks."""
UNKNOWN_SECONDS = 3600
"""The slot that is requested if the time of the run is unknown."""
LEAST_NOTICE_SECONDS = 120
MOST_SLOTS = 20


@dataclass(frozen=True)
class RunFiles:
    """The names of the files in the folder of a plan or of a local run."""

    job: str = "job.json"
    report: str = "outcome.jsonl"
    checkpoint: str = "checkpoint.pt"
    stop: str = "stop"
    program: str = "program"  # a folder, if the workload is a program


FILES = RunFiles()


@dataclass(frozen=True)
class Run:
    """A plan as its launch script sees it.

    ``accelerators`` is the number per node, 0 if ranks run on processor cores. ``slot_seconds`` is the time limit;
    ``notice_seconds`` is how long before the limit the training is asked to save and exit: the time of two evaluations
    and a minute. ``possible_nodes`` lists the numbers of nodes over which the batch can be split, largest first.
    ``data_path`` is the folder to be staged, None if there is nothing to stage or no disk to stage it to.
    """

    plan: Plan
    machine_title: str
    backend: str
    accelerators: int
    slot_seconds: int
    notice_seconds: int
    slots: int
    possible_nodes: tuple[int, ...]
    environment: tuple[EnvironmentVariable, ...]
    data_path: str | None
    node_storage: str | None

    @property
    def nodes(self) -> int:
        """The number of nodes of the run."""
        return self.plan.nodes

    @property
    def ranks(self) -> int:
        """The number of ranks on each node."""
        return self.plan.ranks_per_node

    @property
    def name(self) -> str:
        """A short name for the scheduler: letters, digits, dots and dashes, starting with a letter."""
        slug = re.sub(r"[^A-Za-z0-9.-]+", "-", self.plan.study).strip("-.")[:24] or "run"
        return f"{slug if slug[0].isalpha() else 'run-' + slug}-{self.plan.global_batch_size}"


def run_of_plan(plan: Plan, machine: Machine | None, backend: str) -> Run:
    """Return the facts of a plan for its script; ``machine`` is None if only its name is known."""
    on_cores = machine is None or machine.computes_on_cores
    described = SCHEDULERS.get(plan.launcher)
    here = described is not None and described.here
    data_path = (
        staged_path(plan) if machine is not None and machine.node_storage and not here else None
    )
    slot = _slot(plan, staged=data_path is not None)
    return Run(
        plan=plan,
        machine_title=machine.title if machine else plan.machine,
        backend=backend,
        accelerators=0 if machine is None or on_cores else machine.accelerators_per_node,
        slot_seconds=slot,
        notice_seconds=_notice(plan, slot),
        slots=_slots(plan, slot),
        possible_nodes=possible_nodes(plan),
        environment=environment_variables(plan, backend, on_cores=on_cores),
        data_path=data_path,
        node_storage=machine.node_storage.name if machine and machine.node_storage else None,
    )


def possible_nodes(plan: Plan) -> tuple[int, ...]:
    """Return the numbers of nodes, up to the plan's, over which its batch splits into whole normalization batches, at
    each size that it grows to.
    """
    groups = shared_batch_size(plan.job) // plan.job.settings.normalization_batch_size
    most = min(plan.nodes, groups // plan.ranks_per_node)
    return tuple(
        nodes for nodes in range(most, 0, -1) if groups % (nodes * plan.ranks_per_node) == 0
    )


def staged_path(plan: Plan) -> str | None:
    """Return the folder of the plan's training data; None if the workload generates its own or reads a single file."""
    path = plan.job.data.get("path")
    return str(path) if isinstance(path, str) and path and not Path(path).is_file() else None


def format_duration(seconds: float) -> str:
    """Format seconds as ``45 s``, ``12 min``, ``1 h 05 min``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def format_durations(interval: Interval) -> str:
    """Format an interval of seconds."""
    return f"{format_duration(interval.median)} ({format_duration(interval.low)} to {format_duration(interval.high)})"


def clock(seconds: int) -> str:
    """Format seconds as ``HH:MM:SS``; hours may exceed 24."""
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"


def _slot(plan: Plan, *, staged: bool) -> int:
    """Return the time limit in seconds, in whole minutes: the slot, or the upper end of the time plus overhead."""
    if plan.slot_seconds is not None:
        return max(60, math.floor(plan.slot_seconds / 60) * 60)
    around = STARTUP_SECONDS + (STAGING_SECONDS if staged else 0)
    return math.ceil(((plan.seconds.high if plan.seconds else UNKNOWN_SECONDS) + around) / 60) * 60


def _notice(plan: Plan, slot: int) -> int:
    """Return how long before the end of the slot the training is asked to stop; at most half of the slot."""
    notice = LEAST_NOTICE_SECONDS
    if plan.seconds and plan.epochs:
        between = plan.seconds.high / plan.epochs.low / plan.job.evaluations_per_epoch
        notice = max(notice, math.ceil((2 * between + 60) / 60) * 60)
    return min(notice, slot // 2)


def _slots(plan: Plan, slot: int) -> int:
    """Return how many slots the run may take in total: as many as the upper end of its time needs, plus one."""
    if plan.seconds is None:
        return 3
    usable = max(60, slot - _notice(plan, slot) - STARTUP_SECONDS)
    return min(MOST_SLOTS, math.ceil(plan.seconds.high / usable) + 1)
