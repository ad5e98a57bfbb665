"""`hpo install-horovod`: builds Horovod for the installed torch, and installs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click

import trainers

SCRIPT = Path(trainers.__file__).parent / "distributed" / "build_horovod.sh"


def missing_for_horovod() -> list[str]:
    """Return the missing requirements of a Horovod build, one line each, with the remedy."""
    bash = shutil.which("bash")
    if bash is None:
        return ["bash; Horovod is built on Linux and macOS"]
    checked = subprocess.run(
        [bash, str(SCRIPT), "--check", sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    if checked.returncode != 0:
        return [checked.stderr.strip() or f"{SCRIPT} --check: exit code {checked.returncode}"]
    return checked.stdout.splitlines()


@click.command("install-horovod")
def install_horovod() -> None:
    """Build Horovod 0.28.1 for the installed torch (about three minutes, once) and install it.

    The published sources do not compile against current torch releases, so they are built as C++20. The wheel is kept
    in ~/.cache/largebatch (LARGEBATCH_CACHE). For NCCL, set HOROVOD_GPU_OPERATIONS=NCCL first. Without Horovod,
    everything runs on torch.distributed.
    """
    bash = shutil.which("bash")
    if bash is None:
        raise click.ClickException(missing_for_horovod()[0])
    if subprocess.run([bash, str(SCRIPT), sys.executable], check=False).returncode != 0:
        raise click.ClickException(
            "Horovod could not be built (see above); everything runs on torch.distributed instead"
        )
    click.echo("Horovod is installed; hpo doctor shows what it was built with")
