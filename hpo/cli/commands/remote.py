"""Commands for a server's studies: submit, show status, cancel, read logs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpo.cli.commands import options

if TYPE_CHECKING:
    from hpo.client.client import Client


@contextmanager
def client_of_server(server: str | None, token: str | None) -> Iterator[Client]:
    """Open the client of a server for one command."""
    from hpo.client.client import Client

    with Client(server, token) as client:
        yield client


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option(
    "--priority",
    type=int,
    default=0,
    show_default=True,
    help="Studies with a higher priority run first.",
)
@click.option(
    "--max-samples",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop the sweep after N training samples.",
)
@click.option(
    "--max-accelerator-hours",
    type=click.FloatRange(min=0, min_open=True),
    metavar="H",
    help="Stop the sweep after H accelerator hours.",
)
@click.option(
    "--agents",
    "for_agents",
    is_flag=True,
    help="No worker runs the study; its trials are trained by `hpo agent` or by any client "
    "that requests them.",
)
@click.option("--wait", is_flag=True, help="Wait until the study has ended; events go to stderr.")
@options.of_a_server
@options.json_output
def submit(
    study: Path,
    priority: int,
    max_samples: int | None,
    max_accelerator_hours: float | None,
    for_agents: bool,
    wait: bool,
    server: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Submit a STUDY.yaml to a server. Submitting the same study twice queues it once.

    With --wait, the exit code is 1 if the study ends in any state other than finished.
    """
    from hpo.cli.output import remote

    with client_of_server(server, token) as client:
        submitted = client.submit(
            study,
            priority=priority,
            max_samples=max_samples,
            max_accelerator_hours=max_accelerator_hours,
            for_agents=for_agents,
        )
        status = (
            submitted.wait(on_event=remote.tell_event, check=False) if wait else submitted.status()
        )
    options.show(lambda: dict(status.document), lambda: remote.show_status(status), as_json)
    if wait and status.state != "finished":
        sys.exit(1)


@click.command()
@click.argument("study", required=False)
@click.option(
    "--state",
    type=click.Choice(["queued", "running", "finished", "failed", "interrupted", "cancelled"]),
    help="Only studies in this state.",
)
@click.option("--owner", metavar="NAME", help="Only studies of this owner.")
@options.of_a_server
@options.json_output
def status(
    study: str | None,
    state: str | None,
    owner: str | None,
    server: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Show the state of a server's studies, or of one STUDY with its rungs."""
    from hpo.cli.output import remote

    with client_of_server(server, token) as client:
        if study is None:
            found = client.studies(owner=owner, state=state)
            options.show(
                lambda: [dict(each.document) for each in found],
                lambda: remote.show_studies(found),
                as_json,
            )
            return
        one = client.study(study).status()
    options.show(lambda: dict(one.document), lambda: remote.show_status(one), as_json)


@click.command()
@click.argument("study")
@options.of_a_server
@options.json_output
def cancel(study: str, server: str | None, token: str | None, as_json: bool) -> None:
    """Stop a STUDY on a server within seconds; its results are kept."""
    from hpo.cli.output import remote

    with client_of_server(server, token) as client:
        status = client.study(study).cancel()
    options.show(lambda: dict(status.document), lambda: remote.show_status(status), as_json)


@click.command()
@click.argument("study")
@click.option("--follow", is_flag=True, help="Follow the log until the study has ended.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="ID",
    help="Only events after this one.",
)
@options.of_a_server
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document per line, one for each event."
)
def logs(
    study: str, follow: bool, after: int, server: str | None, token: str | None, as_json: bool
) -> None:
    """Show the events of a STUDY on a server, oldest first."""
    from hpo.cli.output import remote

    with client_of_server(server, token) as client:
        found = client.study(study)
        for event in found.events(after=after) if follow else found.logs(after=after):
            click.echo(remote.event_json(event) if as_json else remote.event_line(event))
