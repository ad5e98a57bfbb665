"""What was run elsewhere, into a storage: `hpo import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpo.cli.commands import options

if TYPE_CHECKING:
    from hpo.mlperf.importing import Imported


@click.group(name="import")
def importing() -> None:
    """Read results of trainings that were run elsewhere."""


@importing.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--round",
    "round_name",
    metavar="ROUND",
    help="Such as training_v2.1; from the folder's name if not given.",
)
@options.storage
@options.json_output
def mlperf(path: Path, round_name: str | None, storage: str, as_json: bool) -> None:
    """Import MLPerf results (ResNet-50, DeepCAM) from the folder PATH of a round, a submitter or a system.

    Their outcomes are evidence for forecasts, and their throughputs for the time model. Importing twice adds nothing.
    """
    from hpo.mlperf.importing import import_results
    from hpo.runs.repository import open_store

    with open_store(storage) as store:
        imported = import_results(store, path, round_name)
    for fault in imported.faults:
        click.echo(f"left out: {fault}", err=True)
    options.show(imported.to_dict, lambda: _show(imported), as_json)


def _show(imported: Imported) -> None:
    for study, count in imported.outcomes.items():
        click.echo(f"{study}: {count} new outcome{'' if count == 1 else 's'}")
    if imported.known:
        click.echo(f"{imported.known} were there already")
    if imported.faults:
        click.echo(f"{len(imported.faults)} logs were left out; why is said above")
