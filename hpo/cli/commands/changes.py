"""Commands that change a study as a whole: delete, rename, resume on a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpo.cli.commands import options

if TYPE_CHECKING:
    from hpo.runs.study_changes import DeletedStudy

_server = click.option(
    "--server",
    metavar="URL",
    help="Change the study on this server, with the token, instead of in a storage.",
)


@click.command()
@click.argument("study")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder in which the study was run; its checkpoints, logs and plans are also removed. "
    "Default: .hpo beside the database.",
)
@options.storage
@_server
@options.token
@options.json_output
def delete(
    study: str,
    yes: bool,
    folder: Path | None,
    storage: str,
    server: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Remove a STUDY with its trials, curves, forecasts, plans and outcomes. The study must not be running."""
    from hpo.cli.commands.remote import client_of_server
    from hpo.runs import api

    if server is not None:
        _confirm(study, server, yes)
        with client_of_server(server, token) as client:
            client.study(study).delete()
        options.show(
            lambda: {"name": study}, lambda: click.echo(f"{study} was deleted at {server}"), as_json
        )
        return
    _confirm(study, storage, yes)
    gone = api.delete_study(study, storage, folder=folder or _folder_beside(storage))
    options.show(gone.to_dict, lambda: _show_deleted(gone), as_json)


@click.command()
@click.argument("study")
@click.argument("name")
@options.storage
@_server
@options.token
@options.json_output
def rename(
    study: str, name: str, storage: str, server: str | None, token: str | None, as_json: bool
) -> None:
    """Give a STUDY another NAME; the old name becomes free for another study. The study must not be running."""
    from hpo.cli.commands.remote import client_of_server
    from hpo.runs import api

    if server is not None:
        with client_of_server(server, token) as client:
            client.study(study).rename(name)
    else:
        api.rename_study(study, name, storage)
    options.show(
        lambda: {"name": name, "before": study},
        lambda: click.echo(
            f"{study} is now named {name}; write `name: {name}` in its file before you run it again"
        ),
        as_json,
    )


@click.command()
@click.argument("study")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The changed study file; it may name another program and have more trials, seeds or rungs.",
)
@click.option("--retry-failed", is_flag=True, help="Train failed trials again.")
@options.of_a_server
@options.json_output
def resume(
    study: str,
    file: Path | None,
    retry_failed: bool,
    server: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Queue a server's STUDY again after it has ended. If its file names another program, failed trials run again."""
    from hpo.cli.commands.remote import client_of_server
    from hpo.cli.output import remote

    with client_of_server(server, token) as client:
        status = client.study(study).resume(file, retry_failed=retry_failed)
    options.show(lambda: dict(status.document), lambda: remote.show_status(status), as_json)


def _confirm(study: str, where: str, yes: bool) -> None:
    from storage.errors import without_password

    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("deleting cannot be undone; confirm with --yes")
    click.confirm(
        f"delete {study} with everything stored about it from {without_password(where)}?",
        abort=True,
        err=True,
    )


def _folder_beside(storage: str) -> Path | None:
    """Return the folder in which studies of a local SQLite file run by default."""
    path = Path(storage.removeprefix("sqlite:///"))
    here = "://" not in str(path) and path.absolute().parent == Path.cwd()
    return Path(".hpo") if here else None


def _show_deleted(gone: DeletedStudy) -> None:
    counts = {
        "trials": gone.trials,
        "forecasts": gone.forecasts,
        "plans": gone.plans,
        "outcomes": gone.outcomes,
    }
    click.echo(f"deleted {gone.name}: {', '.join(f'{n} {what}' for what, n in counts.items())}")
    for folder in gone.folders:
        click.echo(f"  removed {folder}")
    for folder in gone.kept:
        click.echo(f"  kept {folder}, the folder of a plan")
