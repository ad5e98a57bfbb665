"""Runs a plan on this machine and reads back what happened."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo.errors import LaunchError
from hpo.planning.launchers import local
from hpo.planning.plan import Plan
from trainers import report
from trainers.errors import WorkloadError
from trainers.exhibits import check_exhibit
from trainers.report import ConvergencePoint, TrainingOutcome

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Launched:
    """What one launch reported: how the training ended, and what its model is shown by (None where by nothing)."""

    outcome: TrainingOutcome
    exhibit: dict[str, Any] | None = None


def write_plan(plan: Plan, directory: Path, *, backend: str) -> None:
    """Write ``plan.json``, ``job.json`` (what the trainer reads) and ``launch.sh`` into a folder, made if missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "plan.json").write_text(json.dumps(plan.to_dict(), indent=2) + "\n", encoding="utf-8")
        plan.job.save(directory / "job.json")
        title = f"{plan.study}: global batch size {plan.global_batch_size} on {plan.workers} workers of {plan.machine}"
        launcher = directory / "launch.sh"
        launcher.write_text(local.script(title, backend, plan.workers), encoding="utf-8")
        launcher.chmod(0o755)
    except OSError as error:
        raise LaunchError(f"cannot write the plan to {directory}: {error}; give another folder") from error


def choose_backend(backend: str | None) -> str:
    """The named backend, or Horovod where it is installed and torch.distributed where not."""
    if backend == "horovod" and not local.has_horovod():
        raise LaunchError("horovod is not installed here; --backend torch runs the same plan on torch.distributed")
    return backend or ("horovod" if local.has_horovod() else "torch")


def run_plan(plan: Plan, directory: Path, *, backend: str, seed: int,
             on_point: Callable[[ConvergencePoint], None]) -> Launched:
    """Train the plan once with ``plan.workers`` processes; its files go to a folder of this seed.

    Raises :class:`LaunchError`, with the last words of the processes, where they end without an outcome.
    """
    folder = directory / f"seed-{seed}"
    job = dataclasses.replace(plan.job, seed=seed)
    write_plan(dataclasses.replace(plan, job=job), folder, backend=backend)
    reported = folder / "outcome.jsonl"
    reported.unlink(missing_ok=True)
    (folder / "checkpoint.pt").unlink(missing_ok=True)
    arguments = [str(folder / "job.json"), "--report", str(reported), "--checkpoint", str(folder / "checkpoint.pt")]
    log = folder / "launch.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(local.command(backend, plan.workers, arguments), stdout=output,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                   env={"OMP_NUM_THREADS": "1", **os.environ})
        try:
            _follow(process, reported, on_point)
        finally:
            _end(process)
    if not reported.exists() or report.read_outcome(reported) is None:
        raise LaunchError(f"the run ended with exit code {process.returncode} and no outcome; its log is {log}:\n"
                          f"{_last_words(log)}")
    return read_launched(reported)


def read_launched(path: Path) -> Launched:
    """What a launched plan reported in a file; :class:`LaunchError` where it holds no outcome."""
    try:
        outcome, exhibit = report.read_outcome(path), report.read_exhibit(path)
        exhibit = None if exhibit is None else check_exhibit(exhibit)
    except (OSError, ValueError, TypeError, KeyError, WorkloadError) as error:
        raise LaunchError(f"cannot read {path} as the report of a run: {error}") from error
    if outcome is None:
        raise LaunchError(f"{path} holds no outcome: the run has not ended, or the file is not one that it wrote")
    return Launched(outcome, exhibit)


def _follow(process: subprocess.Popen[bytes], file: Path, on_point: Callable[[ConvergencePoint], None]) -> None:
    """Hand on each convergence point as it is written, until the process has ended and all is read."""
    position = 0
    while True:
        ended = process.poll() is not None
        if file.exists():
            with file.open("rb") as lines:
                lines.seek(position)
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    position += len(line)
                    if report.is_point(line):
                        on_point(ConvergencePoint.from_json(line.decode()))
        if ended:
            return
        time.sleep(POLL_SECONDS)


def _last_words(log: Path) -> str:
    """What the workers said of the error, each once; the end of the log where they said nothing."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line[line.index("error: "):] for line in lines if "error: " in line]
    return "\n".join(dict.fromkeys(told)) if told else "\n".join(lines[-15:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """No worker outlives this call, whatever ended it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
