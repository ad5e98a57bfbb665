"""`hpo doctor`: checks of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hpo.cli.commands import options


@click.command()
@click.option(
    "--quick", is_flag=True, help="Skip the checks that start Ray or load torch and Horovod."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".hpo"),
    show_default=True,
    help="Where checkpoints and plans are kept.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8642,
    show_default=True,
    help="Port to check for `hpo serve`.",
)
@options.storage
@options.json_output
def doctor(quick: bool, folder: Path, port: int, storage: str, as_json: bool) -> None:
    """Check this machine: packages, plug-ins, torch, GPU, Horovod, Ray, storage, clock, disk, ports, server.

    Each line says ok, warn or fail, with advice if needed; the exit code is 1 if a check fails.
    """
    from hpo.cli.commands import doctor_checks
    from hpo.cli.output import findings

    found = [
        *doctor_checks.installation(),
        *([] if quick else doctor_checks.training_libraries()),
        *doctor_checks.plugins(quick=quick),
        *doctor_checks.storage_of(storage),
        *doctor_checks.disk(folder, storage),
        *doctor_checks.network(port),
        *doctor_checks.server(os.environ),
    ]
    options.show(lambda: findings.plain(found), lambda: findings.show_findings(found), as_json)
    if any(each.level == "fail" for each in found):
        sys.exit(1)
