"""Several worker processes on this machine, under Horovod or torch.distributed."""

from __future__ import annotations

import importlib.util
import shlex
import sys

BACKENDS = ("horovod", "torch")


def has_horovod() -> bool:
    """Whether Horovod is installed, without importing it."""
    return importlib.util.find_spec("horovod") is not None


def command(backend: str, workers: int, arguments: list[str], *, python: str = sys.executable) -> list[str]:
    """The command that runs ``python -m trainers ARGUMENTS`` on ``workers`` processes of this machine."""
    trainer = ["-m", "trainers", *arguments, "--backend", backend]
    if backend == "horovod":
        return [python, "-m", "horovod.runner.launch", "-np", str(workers), "--gloo", python, *trainer]
    return [python, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={workers}",
            "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", *trainer]


def script(title: str, backend: str, workers: int) -> str:
    """A shell script, to stand beside ``job.json``, that launches the plan and that a person can read."""
    arguments = ["job.json", "--report", "outcome.jsonl", "--checkpoint", "checkpoint.pt"]
    line = " ".join(shlex.quote(part) for part in command(backend, workers, arguments, python="python"))
    return f"""#!/usr/bin/env bash
# {title}
# Writes outcome.jsonl beside this script: one JSON line for each evaluation, the outcome at the end.
# Run it again after an interruption and it goes on from checkpoint.pt. `hpo record` takes the outcome back.
set -euo pipefail
cd "$(dirname "$0")"
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}"
exec {line}
"""
