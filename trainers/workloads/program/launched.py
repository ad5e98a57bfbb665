"""Run a program at full scale: one such process runs on each node, and the first follows the program and reports."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainers.job import TrainingJob
from trainers.report import (
    ConvergencePoint,
    ReportFile,
    TrainingStart,
    read_points,
    read_starts,
)
from trainers.workloads import check_own_settings, load_workload
from trainers.workloads.program.task import ProgramWorkload
from trainers.workloads.program.training import ProgramPlace, ProgramTraining

FOLDER = "program"
"""The name of the folder beside the report that holds the files of a launched program."""
NODE_RANKS = (
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PALS_RANKID",
    "PMI_RANK",
    "FLUX_TASK_RANK",
    "JSM_NAMESPACE_RANK",
    "ALPS_APP_PE",
)
"""Environment variables in which schedulers set the process rank, which is the node rank with one process per node."""
SLOT_SECONDS = 86_400.0
"""How many seconds a program may take to exit when asked; the scheduler ends the time slot earlier."""


@dataclass(frozen=True)
class ProgramNodes:
    """The nodes of one start; the workers' rendezvous is on the first of ``hosts``, at ``port``.

    ``attempt`` distinguishes the starts of one run.
    """

    hosts: Sequence[str]
    workers_per_node: int
    port: int | None
    attempt: str


def run_program(
    job: TrainingJob, report: ReportFile, nodes: ProgramNodes, stop: Callable[[], bool]
) -> bool:
    """Run a program to its end; return False if ``stop`` asked it to exit earlier and it did.

    Raises :class:`~trainers.errors.TrainerError`, with the end of its output, if it fails.
    """
    workload = load_workload(job.workload, job.data, job.search_path)
    assert isinstance(workload, ProgramWorkload), "the caller looked at the job"
    check_own_settings(workload, job.workload, job.settings.of_workload)
    several = workload.options.every_node and len(nodes.hosts) > 1
    place = ProgramPlace(
        report.path.absolute().parent / FOLDER,
        nodes.workers_per_node,
        len(nodes.hosts),
        node_rank(os.environ) if several else 0,
        nodes.hosts[0] if len(nodes.hosts) > 1 else ProgramPlace.master_address,
        nodes.port if len(nodes.hosts) > 1 else None,
        ask_seconds=SLOT_SECONDS,
    )
    ended = place.folder / f"ended-{nodes.attempt}"
    training = ProgramTraining(job, workload.options, place)
    if place.node_rank:
        training.help(ended.exists)
        return True
    try:
        return _follow(job, training, report, place, stop)
    finally:
        ended.touch()


def node_rank(environment: Mapping[str, str]) -> int:
    """Return the rank of this node, as set by its scheduler; 0 without a scheduler."""
    return next((int(environment[name]) for name in NODE_RANKS if environment.get(name)), 0)


def _follow(
    job: TrainingJob,
    training: ProgramTraining,
    report: ReportFile,
    place: ProgramPlace,
    stop: Callable[[], bool],
) -> bool:
    _add_resumed(training.resumed, report)
    begun, attempt = False, 0
    while not training.finished:
        point = training.next_point(stop)
        if point is None and not training.finished:
            return False
        if point is not None:
            if (
                not begun or attempt != training.begun_anew
            ):  # a start counts once it has reported something
                step = _step_before(training, point)
                start = TrainingStart(step, place.workers, place.nodes, job.digest(), job.seed)
                report.start(step, start)
                begun, attempt = True, training.begun_anew
            report.point(point)
    _add_missing_start(job, training.resumed, report, place)
    report.outcome(training.outcome)
    return True


def _add_missing_start(
    job: TrainingJob, resumed: Sequence[ConvergencePoint], report: ReportFile, place: ProgramPlace
) -> None:
    """Add a start to a report without one: earlier starts may have ended before an evaluation was copied."""
    if not (report.path.exists() and read_starts(report.path)):
        start = TrainingStart(0, place.workers, place.nodes, job.digest(), job.seed)
        report.start(resumed[-1].step if resumed else 0, start)


def _add_resumed(resumed: Sequence[ConvergencePoint], report: ReportFile) -> None:
    """Add the evaluations of earlier starts that the report lacks: a start may end before it has copied its last one.

    From the first evaluation that differs, the report is replaced.
    """
    written = read_points(report.path) if report.path.exists() else []
    pairs = zip(map(_without_time, resumed), map(_without_time, written), strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if same == len(resumed):
        return
    report.start(resumed[same - 1].step if same else 0)
    for point in resumed[same:]:
        report.point(point)


def _without_time(point: ConvergencePoint) -> str:
    return dataclasses.replace(point, seconds=0.0).to_json()


def _step_before(training: ProgramTraining, point: ConvergencePoint) -> int:
    return max((each.step for each in training.resumed if each.epochs < point.epochs), default=0)
