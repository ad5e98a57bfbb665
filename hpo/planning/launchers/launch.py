"""Writes a plan's folder, runs a plan on this machine with restarts after lost workers, and reads its outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hpo.errors import LaunchError, PlanError
from hpo.planning.launchers import launch_script_of_plan, launcher_description, local
from hpo.planning.launchers.run import FILES
from hpo.planning.machines import Machine, load_machine
from hpo.planning.plan import Plan
from hpo.study.program import PROGRAM
from hpo.study.restart_limits import RUN_RESTARTS
from trainers import report
from trainers.errors import JobError, WorkloadError
from trainers.job import TrainingJob
from trainers.json_text import json_text
from trainers.lifeline import LAUNCHER, name_of_this_process
from trainers.loop.sample_images import check_sample_images
from trainers.private_files import lock_file, make_private_folder, open_private, write_private_text
from trainers.report import ConvergencePoint, TrainingOutcome, TrainingStart
from trainers.workloads.program.files import without_launcher

POLL_SECONDS = 0.1
MARK = "HPO_LAUNCH"
"""An environment variable that identifies the workers of one start."""
PLAN = "plan.json"
LOCK = "launch.lock"
LOCK_SECONDS = 15.0
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit statuses of a launcher that was killed (by a user or for lack of memory) or that lost a worker in this way."""


@dataclass(frozen=True)
class LaunchReport:
    """The report of one launch: how the training ended, and sample images from its model (None if there are none).

    ``restarts`` counts how often the run was resumed after an interruption. ``workers`` and ``nodes`` are the numbers
    at its last start, 0 if the report lacks them. ``samples_per_second`` is the median over the intervals between
    evaluations since the last start, including evaluation time; None if the batch size changed or no interval was
    timed. ``machine`` is where the run took place, "" if only the report is known. ``job`` and ``seed`` are the job's
    digest and the seed at the last start, "" and None if the report lacks them, as in earlier releases.
    """

    outcome: TrainingOutcome
    sample_images: dict[str, Any] | None = None
    restarts: int = 0
    workers: int = 0
    nodes: int = 0
    samples_per_second: float | None = None
    machine: str = ""
    job: str = ""
    seed: int | None = None

    @property
    def references(self) -> dict[str, float]:
        """The target metric of each baseline that the model must beat, by name; empty if the workload has none."""
        return dict((self.sample_images or {}).get("references", {}))


def write_plan(
    plan: Plan, directory: Path, *, backend: str | None = None, machine: Machine | None = None
) -> None:
    """Write ``plan.json``, ``job.json`` (for the trainer) and the launch script to a folder, created if missing.

    The script is ``launch.sh``, or ``launch.py`` for Ray. If ``backend`` is None, the machine's default is used.
    If the folder holds a run of another job, its files move to a folder ``earlier-N`` inside it. Raises
    :class:`LaunchError` if that run is still writing.
    """
    _write_files(plan, directory, backend, machine, set_aside=True)


def prepare_folder(plan: Plan, directory: Path, backend: str) -> None:
    """Check that a plan can be written to a folder and make room for it there, before the plan is stored.

    Like :func:`write_plan`, it moves the files of a run of another job. Raises :class:`PlanError` if no launch script
    can be written for the plan with this backend, and :class:`LaunchError` if that run is still writing.
    """
    launch_script_of_plan(plan, _machine_of(plan), backend=backend)
    try:
        _set_aside_other_job(plan, directory)
    except OSError as error:
        raise _not_written(directory, error) from error


def _write_files(
    plan: Plan,
    directory: Path,
    backend: str | None,
    machine: Machine | None = None,
    *,
    set_aside: bool = False,
) -> None:
    machine = machine or _machine_of(plan)
    name, text = launch_script_of_plan(
        plan, machine, backend=choose_launch_backend(backend, plan.launcher, plan.job.workload)
    )
    try:
        make_private_folder(directory)
        if set_aside:
            _set_aside_other_job(plan, directory)
        write_private_text(directory / PLAN, json_text(plan.to_dict(), indent=2) + "\n")
        write_private_text(directory / FILES.job, json_text(plan.job.to_dict(), indent=2) + "\n")
        write_private_text(directory / name, text, executable=True)
    except OSError as error:
        raise _not_written(directory, error) from error


def _not_written(directory: Path, error: OSError) -> LaunchError:
    return LaunchError(f"cannot write the plan to {directory}: {error}; give another folder")


def _set_aside_other_job(plan: Plan, directory: Path) -> None:
    """Move the files of a run of another job, so that the plan's script neither resumes nor reports that run."""
    left = [
        path
        for name in (FILES.report, FILES.checkpoint, FILES.program)
        if (path := directory / name).exists()
    ]
    if not left or _is_job_of(plan, directory / FILES.job):
        return
    with _only_run(directory, wait_seconds=0.0):
        earlier = (directory / f"earlier-{number}" for number in itertools.count(1))
        folder = make_private_folder(next(each for each in earlier if not each.exists()))
        for path in (*left, directory / PLAN, directory / FILES.job):
            if path.exists():
                path.rename(folder / path.name)


def _is_job_of(plan: Plan, file: Path) -> bool:
    """Return whether a file holds the plan's job; its seed, which changes if the study is continued, does not count."""
    try:
        held = dataclasses.replace(TrainingJob.load(file), seed=plan.job.seed)
        return json_text(held.to_dict()) == json_text(plan.job.to_dict())
    except JobError:
        return False


def choose_launch_backend(backend: str | None, launcher: str = "local", workload: str = "") -> str:
    """Return the named backend, or the default.

    On this machine the default is Horovod if it is installed (and, with GPUs, was built for them), otherwise
    torch.distributed. With LSF it is Horovod, whose ranks ``jsrun`` starts like MPI ranks. With every other scheduler
    it is torch.distributed under torchrun. A program starts its own workers.
    """
    if workload == PROGRAM:
        if backend not in (None, PROGRAM):
            raise LaunchError(
                f"a program starts its own workers, so a backend cannot be chosen, but got "
                f"{backend}"
            )
        return PROGRAM
    if not launcher_description(launcher).here:
        return backend or launcher_description(launcher).backend
    if backend == "horovod" and not local.has_horovod():
        raise LaunchError(
            "horovod is not installed here; --backend torch runs the same plan on torch.distributed"
        )
    return backend or ("horovod" if local.has_horovod() and local.carries_gpus() else "torch")


def launch_backend_of_plan(plan: Plan, backend: str | None) -> str:
    """Return the named backend, or the default of the plan's launcher; it need not be installed on this machine."""
    if backend is None or plan.job.workload == PROGRAM:
        return choose_launch_backend(backend, plan.launcher, plan.job.workload)
    return backend


def run_plan_locally(
    plan: Plan,
    directory: Path,
    *,
    backend: str,
    seed: int,
    on_point: Callable[[ConvergencePoint], None],
    max_restarts: int = RUN_RESTARTS,
    checkpoint_minutes: float = 0.0,
    on_restart: Callable[[str], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> LaunchReport:
    """Train the plan once with ``plan.workers`` processes on this machine, in a separate folder for each seed.

    If workers are lost after the training has started, or if an earlier run was killed, the run resumes from its last
    checkpoint, at most ``max_restarts`` times; ``on_restart`` is called each time. ``check`` is called several times a
    second; if it raises an exception, the processes and the run end. Raises :class:`LaunchError`, with the last output
    of the processes, if the run ends without an outcome.
    """
    folder = directory / f"seed-{seed}"
    make_private_folder(folder)
    with _only_run(folder) as lock:
        return _run_in(
            folder,
            plan,
            backend,
            seed,
            on_point,
            max_restarts,
            checkpoint_minutes,
            on_restart,
            check,
            lock,
        )


def _run_in(
    folder: Path,
    plan: Plan,
    backend: str,
    seed: int,
    on_point: Callable[[ConvergencePoint], None],
    max_restarts: int,
    checkpoint_minutes: float,
    on_restart: Callable[[str], None],
    check: Callable[[], None],
    lock: IO[bytes],
) -> LaunchReport:
    here = dataclasses.replace(
        plan,
        job=dataclasses.replace(plan.job, seed=seed),
        launcher="local",
        nodes=1,
        ranks_per_node=plan.workers,
    )
    _write_files(here, folder, backend, load_machine("local"))  # the earlier run's files go below
    for name in (FILES.report, FILES.checkpoint, FILES.stop):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / FILES.program, ignore_errors=True)
    log = folder / "launch.log"
    log.unlink(missing_ok=True)
    follower = _Follower(folder / FILES.report, on_point)
    command = local.command(
        backend, plan.workers, local.trainer_arguments(folder, checkpoint_minutes)
    )
    for restart in range(max_restarts + 1):
        begun = len(follower.starts)
        status = _attempt(command, log, follower, check, lock)
        if follower.outcome is not None:
            return dataclasses.replace(read_launched(folder / FILES.report), machine="local")
        if len(follower.starts) == begun and status not in KILLED:
            break  # the run failed before the training started and would fail again
        if restart < max_restarts:
            on_restart(
                f"the workers ended with exit code {status} and no outcome; restart {restart + 1} of "
                f"{max_restarts}, from the last checkpoint"
            )
    raise LaunchError(
        f"the run ended with exit code {status} and no outcome"
        f"{_after(len(follower.starts) - 1)}; its log is {log}:\n{_last_words(log)}"
    )


def read_launched(path: Path) -> LaunchReport:
    """Read the report of a launched plan; raise :class:`LaunchError` if it holds no outcome."""
    try:
        outcome, images = report.read_outcome(path), report.read_sample_images(path)
        images = None if images is None else check_sample_images(images)
        starts, points = report.read_starts(path), report.read_points(path)
    except (OSError, ValueError, TypeError, KeyError, WorkloadError) as error:
        raise LaunchError(f"cannot read {path} as the report of a run: {error}") from error
    if outcome is None:
        raise LaunchError(
            f"{path} has no outcome: the run has not ended, or the file is not its report"
        )
    last = starts[-1] if starts else TrainingStart(0, 0, 0)
    return LaunchReport(
        outcome,
        images,
        restarts=max(0, len(starts) - 1),
        workers=last.workers,
        nodes=last.nodes,
        job=last.job,
        seed=last.seed,
        samples_per_second=throughput([point for point in points if point.step > last.step]),
    )


def throughput(points: Sequence[ConvergencePoint]) -> float | None:
    """Return the median samples per second between evaluations of one start, excluding the first interval."""
    if len({point.global_batch_size for point in points}) != 1:
        return None
    rates = sorted(
        (after.samples - before.samples) / (after.seconds - before.seconds)
        for before, after in itertools.pairwise(points)
        if after.seconds > before.seconds
    )
    if not rates:
        first = points[0]
        return (
            first.samples / first.seconds
            if first.seconds > 0 and math.isfinite(first.seconds)
            else None
        )
    return (rates[(len(rates) - 1) // 2] + rates[len(rates) // 2]) / 2


class _Follower:
    """Reads a report while it is being written, even when a restart rewrites it; passes each point on only once."""

    def __init__(self, path: Path, on_point: Callable[[ConvergencePoint], None]) -> None:
        self._path, self._on_point = path, on_point
        self._file, self._position, self._last_step = -1, 0, 0
        self.starts: list[TrainingStart] = []
        self.outcome: TrainingOutcome | None = None

    def read(self) -> None:
        """Read what has been written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as lines:
            number = os.fstat(lines.fileno()).st_ino
            if number != self._file:
                self._file, self._position, self.starts = number, 0, []
            lines.seek(self._position)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                self._take(line)

    def _take(self, line: bytes) -> None:
        if report.is_point(line):
            point = ConvergencePoint.from_json(line.decode())
            if point.step > self._last_step:  # earlier points were passed on before the restart
                self._last_step = point.step
                self._on_point(point)
            return
        values = json.loads(line)
        if "started" in values:
            self.starts.append(TrainingStart(**values["started"]))
        elif "outcome" in values:
            self.outcome = TrainingOutcome.from_dict(values["outcome"])


def _attempt(
    command: Sequence[str],
    log: Path,
    follower: _Follower,
    check: Callable[[], None],
    lock: IO[bytes],
) -> int:
    """Start the workers, follow their report until they end, and return their launcher's exit status."""
    mark = secrets.token_hex(8)
    with open(log, "a", encoding="utf-8", opener=open_private) as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
            env={
                "OMP_NUM_THREADS": "1",
                **os.environ,
                MARK: mark,
                LAUNCHER: name_of_this_process(),
            },
        )
        try:
            ended = False
            while not ended:
                ended = process.poll() is not None
                follower.read()
                check()
                if not ended:
                    time.sleep(POLL_SECONDS)
        finally:
            _end(process)
            _end_orphans(mark)
    return process.returncode


@contextlib.contextmanager
def _only_run(folder: Path, wait_seconds: float | None = None) -> Iterator[IO[bytes]]:
    """Hold the lock of a run's folder; raise :class:`LaunchError` if another run holds it.

    The processes of the run inherit the open file and, with it, the lock, which is released when the last of them ends,
    even if the launcher was killed earlier. The processes of a killed launcher get ``LOCK_SECONDS`` to end, unless
    ``wait_seconds`` says otherwise.
    """
    with open(folder / LOCK, "ab", opener=open_private) as lock:
        try:
            lock_file(lock, LOCK_SECONDS if wait_seconds is None else wait_seconds)
        except BlockingIOError:
            raise LaunchError(
                f"another run is writing to {folder}; wait for it, stop it, or give another folder"
            ) from None
        yield lock


def _machine_of(plan: Plan) -> Machine | None:
    """Return the plan's machine; None if it was read from a file that no longer exists."""
    try:
        return load_machine((plan.details or {}).get("machine_file") or plan.machine)
    except PlanError:
        return None


def _after(restarts: int) -> str:
    return f" after {restarts} restart{'s' if restarts > 1 else ''}" if restarts > 0 else ""


def _last_words(log: Path) -> str:
    """Return the error messages of the workers, each once, or the end of the log if there are none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line[line.index("error: ") :] for line in lines if "error: " in line]
    said = list(without_launcher(lines)) or lines
    return "\n".join(dict.fromkeys(errors)) if errors else "\n".join(said[-15:])


def _end_orphans(mark: str) -> None:
    """Kill workers whose launcher was killed (Linux only): two runs must not write the same checkpoint."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher and, with it, its workers."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
