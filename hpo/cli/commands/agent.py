"""`hpo agent`: trains the trials of a server's study, one after another."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

import click

from hpo.cli.commands import options
from hpo.cli.commands.signals import handle_stop_signals


@click.command()
@click.argument("study")
@options.of_a_server
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".hpo"),
    show_default=True,
    help="Folder for checkpoints; agents that share it continue from each other's.",
)
@click.option("--name", default=None, help="Name of this agent, for display; default: host:pid.")
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Exit after N trials.")
@click.option(
    "--stop-after",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give back the current trial after this time and exit, for example before a slot ends.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=1, max=86_400),
    default=60.0,
    show_default=True,
    help="Lease time in seconds: the trial is given to another agent after this long without a "
    "heartbeat.",
)
@click.option(
    "--outage-seconds",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="How long to keep trying, in seconds, if the server does not answer.",
)
@options.json_output
def agent(
    study: str,
    server: str | None,
    token: str | None,
    folder: Path,
    name: str | None,
    trials: int | None,
    stop_after: float | None,
    lease_seconds: float,
    outage_seconds: float,
    as_json: bool,
) -> None:
    """Train trials of a server's STUDY until the study has ended; any number of agents may do so, on any machines.

    An agent may be killed at any time: its trial is given to another agent. SIGTERM or Ctrl-C gives the trial back at
    once, with a checkpoint. Modules that a study uses are imported from the current folder.
    """
    from hpo.client.agent import AgentOptions, TrialAgent
    from hpo.client.client import Client
    from hpo.errors import TuningError
    from hpo.study.spec import parse_stored_study

    _log_to_stderr()
    with Client(server, token) as client:
        study_of_server = client.study(study)
        # an unknown name must raise an error before any waiting
        resources = parse_stored_study(study_of_server.status().document["spec"]).resources
        if resources.nodes > 1:
            raise TuningError(
                f"an agent trains on one node, but trials of study {study!r} take "
                f"{resources.nodes}; run it with `hpo run --on`, or with a worker on Ray"
            )
        asking = study_of_server.ask_tell(
            holder=name,
            lease_seconds=lease_seconds,
            outage_seconds=outage_seconds,
            background=True,
        )
        running = TrialAgent(
            asking,
            study,
            AgentOptions(
                folder.absolute(),
                workers_per_node=resources.workers_per_node,
                threads=max(1, int(resources.cpus_per_worker)),
                trials=trials,
                stop_after=stop_after,
            ),
        )
        handle_stop_signals(running.stop)
        with contextlib.redirect_stdout(sys.stderr):  # output of a custom workload
            report = running.run()
    states = ", ".join(f"{count} {state}" for state, count in sorted(report.ended.items()))
    options.show(
        report.to_dict,
        lambda: click.echo(
            f"{study}: {report.trials} trials{f' ({states})' if states else ''}, {report.trained:.1f} of "
            f"{report.seconds:.1f} s in training"
            f"{f'; {asking.message}' if asking.ended and asking.message else ''}"
        ),
        as_json,
    )


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("hpo.agent")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
