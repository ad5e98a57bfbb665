"""Train with a program: start it, follow its reports, and end it when it reaches its target or can no longer do so."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces import settings as known_settings
from search_spaces.names import did_you_mean
from search_spaces.techniques import OWN
from trainers.errors import CheckpointError, JobError, WorkloadError
from trainers.job import TrainingJob
from trainers.json_text import json_text
from trainers.report import ConvergencePoint, is_within_budget
from trainers.workloads.program.command import (
    PLACEHOLDERS,
    command_placeholders,
    fill_placeholders,
    own_placeholders,
    whole_number,
)
from trainers.workloads.program.files import ProgramFiles
from trainers.workloads.program.micro_batch import KeptMicroBatch, ran_out_of_memory
from trainers.workloads.program.options import ProgramOptions
from trainers.workloads.program.process import ProgramProcess, free_port, wait_for_earlier_start
from trainers.workloads.program.reports import STARTED, ReportedCurve, ReportedPoint, ReportFollower
from trainers.workloads.program.secrets import WRAPPER, program_environment
from trainers.workloads.training_run import AnyTraining, TrainingProgress

POLL_SECONDS, LOOK_SECONDS = 0.05, 0.5
"""Seconds between checks of a program's report, and between checks for the end of the first node's program."""
LEAVING_SECONDS = 10.0
"""Seconds to wait for a program whose owner was killed, in addition to the time that ending it takes."""
TRIAL = "HPO_TRIAL"
"""The environment variable that names the file with a program's settings."""
RANKS = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "HOROVOD_RANK",
    "SLURM_PROCID",
)
"""The environment variables from which ``hpo.report`` learns a process's rank; its file, which needs only the standard
library, has the same list. The process that starts a program may itself have been started with one, as by ``srun`` on
each node of a sweep's allocation.
"""


@dataclass(frozen=True)
class ProgramPlace:
    """The nodes and workers on which a program is started, and a ``folder`` for its files, which all nodes see.

    ``ask_seconds`` replaces ``stop_seconds`` in the program's options, the time to exit when asked; ``threads`` is the
    value of OMP_NUM_THREADS, unless the options set it.
    """

    folder: Path
    workers_per_node: int = 1
    nodes: int = 1
    node_rank: int = 0
    master_address: str = "127.0.0.1"
    master_port: int | None = None
    ask_seconds: float | None = None
    threads: int | None = None

    @property
    def workers(self) -> int:
        """The number of workers on all nodes."""
        return self.nodes * self.workers_per_node


class ProgramTraining(AnyTraining):
    """A training run by a program, whose reports are the evaluations; ``seconds`` is counted from its start.

    On nodes other than the first, the program is only started, and ended together with the first node's program; see
    :meth:`help`.
    """

    resumed: list[ConvergencePoint]
    begun_anew: int
    """The number of times the program started over with a smaller micro batch; earlier reports do not count."""

    def __init__(self, job: TrainingJob, options: ProgramOptions, place: ProgramPlace) -> None:
        super().__init__(job, options.metrics, options.train_samples)
        self.options, self.place = options, place
        self.begun_anew = 0
        self.files = ProgramFiles(place.folder.absolute(), place.node_rank)
        self._kept = KeptMicroBatch.of(job, place.folder, place.workers)
        if options.out_of_memory and (kept := self._kept.read()):
            self.job = job = dataclasses.replace(
                job, micro_batch_size=min(kept, job.micro_batch_size or kept)
            )
        values = trial_values(job, options, place, self.files)
        self.files.make()
        wait_for_earlier_start(self.files, 2 * options.stop_seconds + LEAVING_SECONDS)
        self._curve = ReportedCurve(job, options.train_samples, [], options.metrics)
        self._follower = ReportFollower(self.files.report)
        self._take_up()
        self.resumed = list(self._curve.points)
        if not self.resumed:
            self.files.set_log_aside()
        self._process: ProgramProcess | None = None
        if not self.finished:
            self._mark_start()
            self._process = start_program(job, options, place, self.files, values)
        self._heard_at, self._stopped = time.monotonic(), False

    @property
    def found_micro_batch(self) -> int | None:
        """See :mod:`trainers.workloads.program.micro_batch`."""
        return self._kept.read() if self.options.out_of_memory else None

    @property
    def epochs(self) -> float:
        """The progress at the last evaluation, in epochs."""
        return self._curve.reports[-1].point.epochs if self._curve.reports else 0.0

    def advance(self) -> ConvergencePoint | None:
        """Wait for the program's next evaluation; return None if it ends by itself without one.

        Raises :class:`WorkloadError`, with the end of the program's output, if the program has failed and exited.
        """
        return self.next_point(lambda: False)

    def next_point(self, stop: Callable[[], bool]) -> ConvergencePoint | None:
        """Like :meth:`advance`, but also return None if ``stop`` returned true and the program exited unfinished."""
        if self.finished:
            raise JobError(f"the training is finished: {self.progress.reason}")
        try:
            point = self._next(stop)
        except BaseException:
            self.close()
            raise
        if point is None or self.finished:
            self.close()
        return point

    def help(self, ended: Callable[[], bool]) -> None:
        """Run the program on a node other than the first, until it exits or the first node's program has ``ended``.

        Raises :class:`WorkloadError` if the program fails.
        """
        process = self._process
        assert process is not None, "it was started"
        while not (process.wait(LOOK_SECONDS) or ended()):
            pass
        self.close()
        if process.failure:
            raise self.files.failure(process.failure)

    def close(self) -> None:
        """End the program and all processes that it has started."""
        if self._process is not None:
            self._process.end()

    def state_dict(self) -> dict[str, Any]:
        """Raise :class:`CheckpointError`: the program keeps its own state in its folder."""
        raise CheckpointError("a program keeps its own checkpoints, in {checkpoint_folder}")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: ARG002
        """See :meth:`state_dict`."""
        raise CheckpointError("a program resumes from its own checkpoints, in {checkpoint_folder}")

    def _take_up(self) -> None:
        """Read the reports of earlier starts, up to the end of the training or an invalid line of a failed start."""
        while not self.finished:
            before = copy.copy(self._follower)
            try:
                values = self._follower.next()
                if values is None:
                    return
                self._hear(values)
            except WorkloadError:
                self._follower = before  # the invalid line will be overwritten
                return

    def _mark_start(self) -> None:
        """Append a line that marks a start to the valid lines of the report."""
        with self.files.report.open("a+b") as file:
            file.truncate(self._follower.position)
            file.write(json_text({STARTED: time.time()}).encode() + b"\n")
        started = self._follower.next()
        assert started is not None, "it was just written"
        self._hear(started)

    def _next(self, stop: Callable[[], bool]) -> ConvergencePoint | None:
        process, timeout = self._process, self.options.report.timeout_seconds
        assert process is not None, "a training that goes on has a process"
        while True:
            ended = process.wait(0.0)  # checked first: reports of an ended program are complete
            values = self._report()
            if values is not None:
                self._heard_at = time.monotonic()
                point = self._hear(values)
                if point is not None:
                    return point
            elif ended:
                if self._stopped:
                    return None
                if not ran_out_of_memory(process, self.files, self.options.out_of_memory):
                    self._end(process)
                    return None
                process = self._begin_smaller(process)
            elif stop():
                self._stopped = True
                self.close()  # reports during the exit are read above
            elif time.monotonic() - self._heard_at > timeout:
                raise self.files.failure(
                    f"it has reported nothing for {timeout:g} s (program.report.timeout_seconds), {self._how_far()}"
                )
            else:
                process.wait(POLL_SECONDS)

    def _report(self) -> dict[str, Any] | None:
        try:
            return self._follower.next()
        except WorkloadError as error:
            raise self.files.failure(str(error)) from error

    def _hear(self, values: Mapping[str, Any]) -> ConvergencePoint | None:
        if STARTED in values:
            self._curve.start(float(values[STARTED]))
            return None
        before = len(self._curve.reports)
        try:
            evaluation = self._curve.add(values, time.time())
        except WorkloadError as error:
            raise self.files.failure(str(error)) from error
        if evaluation is None:
            return None
        if len(self._curve.reports) <= before:  # reports were dropped and no longer count
            self.progress = TrainingProgress()
            for earlier in self._curve.reports[:-1]:
                self._judge(earlier)
        self._judge(evaluation)
        return evaluation.point

    def _judge(self, evaluation: ReportedPoint) -> None:
        """Decide whether the run continues; as in every workload, values that are not finite mean divergence."""
        at, point = self.progress, evaluation.point
        at.step, at.seconds = point.step, point.seconds
        self._measure(evaluation.scores, evaluation.memory_bytes)
        if math.isnan(at.first_loss) and evaluation.train_loss is not None:
            at.first_loss = evaluation.train_loss
        if evaluation.not_finite:
            at.final_metric, at.state = point.metric, "diverged"
            at.reason = f"it reported {evaluation.not_finite} after {point.epochs:g} epochs"
        else:
            spent = point.epochs >= self.job.epochs * (1 - 1e-9)
            counts = self.job.target.ends or is_within_budget(point, self.job.epochs)
            self._decide(evaluation.train_loss, point.metric, budget_spent=spent, counts=counts)

    def _begin_smaller(self, process: ProgramProcess) -> ProgramProcess:
        """Start over, from the first sample, with half the micro batch, or the next smaller divisor of the local batch.

        Raises :class:`WorkloadError` if the micro batch cannot be reduced.
        """
        options, place = self.options, self.place
        split = options.split(self.job.global_batch_size, place.workers, self.job.micro_batch_size)
        tried, why = split["micro_batch_size"], process.failure
        if place.nodes > 1 and options.every_node:
            raise self.files.failure(
                f"{why}, which is out_of_memory at micro batch {tried}; a command that is "
                f"started on every node is not retried with a smaller micro batch; reduce largest_micro_batch"
            )
        if tried == 1:
            raise self.files.failure(
                f"{why}, which is out_of_memory: a micro batch must fit in memory, but not "
                f"even one sample does (micro batch 1); use a smaller model or more memory, or "
                f"shard the model over more workers"
            )
        self.close()
        self.job = dataclasses.replace(self.job, micro_batch_size=tried // 2)
        values = trial_values(self.job, options, place, self.files)
        self._kept.write(values["micro_batch_size"])
        self.files.set_report_aside()
        self.files.set_log_aside()
        shutil.rmtree(self.files.checkpoint, ignore_errors=True)
        self.files.make()
        self.resumed, self.begun_anew = [], self.begun_anew + 1
        self.progress = TrainingProgress()
        self._curve = ReportedCurve(self.job, options.train_samples, [], options.metrics)
        self._follower = ReportFollower(self.files.report)
        self._mark_start()
        self._process = start_program(self.job, options, place, self.files, values)
        self._heard_at = time.monotonic()
        return self._process

    def _end(self, process: ProgramProcess) -> None:
        """Handle a program that exited before its target, because it either finished or failed."""
        if process.failure:
            raise self.files.failure(f"{process.failure} {self._how_far()}")
        if not self._curve.reports:
            pattern = self.options.report.pattern
            why = "no line of its output matched report.pattern" if pattern else "see hpo.report"
            raise self.files.failure(
                f"it ended without having reported {self.job.target.metric} ({why})"
            )
        self.progress.state = "censored"
        self.progress.reason = (
            f"the program ended by itself after {self.epochs:g} epochs, before {self._aim}; "
            f"the best was {self.progress.best_metric:.4g}"
        )

    @property
    def _aim(self) -> str:
        target = self.job.target
        return f"the target {target}" if target.ends else f"its budget of {self.job.epochs:g}"

    def _how_far(self) -> str:
        return f"after {self.epochs:g} epochs" if self._curve.reports else "before its first report"


def trial_values(
    job: TrainingJob, options: ProgramOptions, place: ProgramPlace, files: ProgramFiles
) -> dict[str, Any]:
    """Return the values of the program's placeholders for one training run, by name.

    Raises :class:`JobError` if the batch cannot be split over the workers, or the command reads a setting that the
    job does not have.
    """
    settings = job.settings
    for name in own_placeholders(options.words):
        if name not in settings.own:
            raise JobError(
                f"the command of the program contains {{{name}}}, which is neither a setting "
                f"of the study nor one of "
                f"{', '.join(PLACEHOLDERS)}{did_you_mean(name, (*PLACEHOLDERS, *known_settings.names()))}"
            )
    return {
        **{name: getattr(settings, name) for name in known_settings.names()},
        "optimizer": settings.optimizer.removeprefix(OWN),
        **settings.own,
        **options.split(job.global_batch_size, place.workers, job.micro_batch_size),
        "workers": place.workers,
        "workers_per_node": place.workers_per_node,
        "nodes": place.nodes,
        "node_rank": place.node_rank,
        "seed": job.seed,
        "epochs": job.epochs,
        "samples": round(job.epochs * options.train_samples),
        "evaluations_per_epoch": job.evaluations_per_epoch,
        "checkpoint_folder": str(files.checkpoint),
        "output_folder": str(files.output),
        "trial_file": str(files.trial),
        "report_file": str(files.report),
        "stop_file": str(files.stop),
        "master_address": place.master_address,
        "master_port": place.master_port or free_port(),
        "device_list": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }


def start_program(
    job: TrainingJob,
    options: ProgramOptions,
    place: ProgramPlace,
    files: ProgramFiles,
    values: Mapping[str, Any],
) -> ProgramProcess:
    """Start the program in the study's folder; `python` and `torchrun` come from this environment.

    The words in ``HPO_PROGRAM_WRAPPER``, which the operator sets, precede the program's own, with ``{folder}`` for the
    trial's folder.
    """
    told = {name: whole_number(values[name]) for name in PLACEHOLDERS}
    settings = {name: value for name, value in values.items() if name not in PLACEHOLDERS}
    target = {
        "metric": job.target.metric,
        "threshold": job.target.threshold,
        "higher_is_better": job.target.higher_is_better,
    }
    files.trial.write_text(
        json_text({**told, "settings": settings, "target": target}, indent=2) + "\n",
        encoding="utf-8",
    )
    inherited = program_environment(os.environ)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    filled = fill_placeholders(list(options.environment.values()), values)
    given = dict(zip(options.environment, filled, strict=True))
    wrapper = [
        word.replace("{folder}", str(files.folder))
        for word in shlex.split(os.environ.get(WRAPPER, ""))
    ]
    if wrapper:  # it may have more rights than the program: set the study's variables after it
        wrapper += ["/usr/bin/env", *(f"{name}={value}" for name, value in given.items())]
        given = {}
    return ProgramProcess(
        [*wrapper, *fill_placeholders(options.command, values)],
        files,
        folder=Path(job.search_path or "."),
        environment={
            **inherited,
            **{name: str(place.node_rank) for name in RANKS if inherited.get(name)},
            **({"OMP_NUM_THREADS": str(place.threads)} if place.threads else {}),
            "PATH": path,
            TRIAL: str(files.trial),
            **given,
        },
        pattern=options.report.pattern,
        listens="stop_file" in command_placeholders(options.words),
        ask_seconds=place.ask_seconds or options.stop_seconds,
        term_seconds=options.stop_seconds,
    )
