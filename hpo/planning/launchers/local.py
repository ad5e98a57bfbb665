"""Several worker processes on this machine, under Horovod or torch.distributed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from hpo.planning.launchers.run import FILES, Run
from hpo.planning.launchers.script import Scheduler
from hpo.planning.machines.local import local_gpus
from hpo.study.program import PROGRAM
from trainers.distributed.communicator import BACKENDS as TRAINER_BACKENDS

BACKENDS = tuple(name for name in TRAINER_BACKENDS if name != "single")

WORKERS = """\
attempt=0
# workers NUMBER MODULE ARGUMENTS...: ranks on this machine, which rendezvous over a file or the loopback interface
workers() {
  local number=$1
  shift
  "${inside[@]}" python -m trainers.local_workers "$number" BACKEND -m "$@" --backend BACKEND
}
"""

FUNCTIONS = """\
healthy_hosts() { echo localhost; }
resubmit() { echo "run this script again to continue" && return 75; }  # no scheduler to request a slot from
"""


def has_horovod() -> bool:
    """Return whether Horovod is installed, without importing it."""
    return importlib.util.find_spec("horovod") is not None


def carries_gpus() -> bool:
    """Return whether Horovod can all-reduce on this machine's GPUs: it was built with NCCL, or there are no GPUs."""
    if not local_gpus():
        return True
    asked = [
        sys.executable,
        "-c",
        "import horovod.torch as h; raise SystemExit(not h.nccl_built())",
    ]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def command(
    backend: str, workers: int, arguments: list[str], *, python: str = sys.executable
) -> list[str]:
    """Return the command that runs ``python -m trainers ARGUMENTS`` once on ``workers`` processes of this machine.

    A program starts its own workers.
    """
    if backend == PROGRAM:
        return [python, "-m", "trainers", *arguments, "--workers-per-node", str(workers)]
    launcher = [python, "-m", "trainers.local_workers", str(workers), backend]
    return [*launcher, "-m", "trainers", *arguments, "--backend", backend]


def trainer_arguments(folder: Path, checkpoint_minutes: float = 0.0) -> list[str]:
    """Return the arguments of ``python -m trainers`` for the files of a run in ``folder``."""
    return [
        str(folder / FILES.job),
        "--report",
        str(folder / FILES.report),
        "--checkpoint",
        str(folder / FILES.checkpoint),
        "--checkpoint-minutes",
        f"{checkpoint_minutes:g}",
        "--stop-file",
        str(folder / FILES.stop),
    ]


def scheduler(run: Run) -> Scheduler:  # noqa: ARG001  every launcher has the same signature
    """Return the functions for this machine, without a scheduler."""
    return Scheduler(
        submit="bash launch.sh",
        folder='$(dirname "$0")',
        job="$$",
        notice=True,
        functions=FUNCTIONS,
        directives=(),
        workers=WORKERS,
    )
