"""`hpo agent`: trains the trials of a study of a server, one after the other."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

import click

from hpo.cli.commands import options
from hpo.cli.commands.signals import handle_signals


@click.command()
@click.argument("study")
@options.of_a_server
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".hpo"),
    show_default=True,
    help="Where checkpoints are kept; agents that share it go on from each other's.",
)
@click.option("--name", default=None, help="Name of this agent, shown to people; default host:pid.")
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="End after N trials.")
@click.option(
    "--stop-after",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give the trial in hand back after so long and end: before the end of a slot.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=1, max=86_400),
    default=60.0,
    show_default=True,
    help="After so long without a sign of this agent, its trial is given to another.",
)
@click.option(
    "--outage-seconds",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="How long to wait for a server that does not answer.",
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
    """Train trials of a STUDY of a server until it has ended; any number of agents may, wherever they are.

    An agent may be killed at any moment: its trial is given to another. SIGTERM or Ctrl-C gives it back at once, with a
    checkpoint. A study's own modules are looked for in the current folder.
    """
    from hpo.client.agent import AgentOptions, TrialAgent
    from hpo.client.client import Client
    from hpo.errors import TuningError
    from hpo.study.spec import parse_study

    _log_to_stderr()
    with Client(server, token) as client:
        study_of_server = client.study(study)
        # an unknown name must raise an error before any waiting
        resources = parse_study(study_of_server.status().document["spec"]).resources
        if resources.nodes > 1:
            raise TuningError(
                f"an agent trains on one node, but trials of study {study!r} take {resources.nodes}; run it with "
                "`hpo run --on`, or by a worker on Ray"
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
        handle_signals(running.stop)
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
