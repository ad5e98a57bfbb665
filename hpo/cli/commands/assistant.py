"""`hpo mcp`: tools for an assistant, over standard input and output."""

from __future__ import annotations

import contextlib
import os

import click

from hpo.cli.commands import options


@click.command()
@click.option(
    "--storage",
    metavar="URL",
    help="Database URL or SQLite file; default: HPO_STORAGE, or sqlite:///hpo.db if no server "
    "is given either.",
)
@options.of_a_server
@click.option(
    "--write",
    "writes",
    is_flag=True,
    help="Also offer tools that write: they submit studies and, on a server, make plans that "
    "it stores.",
)
def mcp(storage: str | None, server: str | None, token: str | None, writes: bool) -> None:
    """Give an assistant tools for inspecting studies: a Model Context Protocol server on standard input and output.

    Reads a database on this machine, or a server if --server or HPO_SERVER names one. Nothing is written
    without --write.
    """
    from hpo.errors import ExportError

    if storage and server:
        raise click.UsageError("give --storage or --server, not both")
    try:
        import mcp as _  # noqa: F401
    except ImportError as error:
        raise ExportError(
            "an assistant's tools need mcp, which is not installed; pip install 'largebatch[mcp]'"
        ) from error
    from hpo.cli.assistant.sources import StudyDatabase, StudyServer, StudySource
    from hpo.cli.assistant.tools import make_assistant_server

    with contextlib.ExitStack() as open_until_then:
        source: StudySource
        if server or (os.environ.get("HPO_SERVER") and not storage):
            from hpo.client.client import Client
            from hpo.client.retries import RetryPolicy

            # a refusal is an immediate error: the caller decides whether and when to retry
            client = Client(server, token, retries=RetryPolicy(attempts=1))
            source = StudyServer(open_until_then.enter_context(client))
        else:
            source = StudyDatabase(
                storage or os.environ.get("HPO_STORAGE") or options.DEFAULT_STORAGE
            )
        make_assistant_server(source, writes=writes).run("stdio")
