"""Commands for studies in a database: run, list, show, forecast."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpo.cli.commands import options
from hpo.planning.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from hpo.runs.results import StudyResult
    from hpo.study.spec import StudySpec


SECONDS_OF_TIMING = 20.0
"""Maximum number of seconds that `hpo run` spends timing a study before running it."""


@click.command()
@click.argument("file", metavar="STUDY", type=click.Path(path_type=Path))
@options.storage
@options.json_output
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    help="Address of a running Ray cluster; by default, Ray starts on this machine.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(".hpo"),
    show_default=True,
    help="Where plans and checkpoints of unfinished trials are kept.",
)
@options.device
@options.compiles
@click.option(
    "--stop-after",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop after this time, with exit code 75 if the study has not ended; run it again to "
    "continue.",
)
@click.option(
    "--retry-failed",
    is_flag=True,
    help="Train failed trials again; always done if the study's program or command has changed.",
)
@click.option(
    "--on",
    type=options.Named(SCHEDULERS, lambda found: found.sweeps),
    help="Submit the study to this scheduler instead: Ray in one allocation, slot after slot, "
    "or agents with --array.",
)
@click.option(
    "--array",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --on: submit the study to a server, and a job array of N agents that train it.",
)
@click.option(
    "--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes per slot."
)
@click.option(
    "--gpus", type=click.IntRange(min=0), default=0, show_default=True, help="GPUs per node."
)
@click.option(
    "--hours",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Length of one slot.",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of consecutive slots.",
)
@click.option("--account", help="With --on: the account, bank or project.")
@click.option("--partition", help="With --on: the partition or queue.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --on: the folder of the script, visible to all hosts; default: NAME-SCHEDULER.",
)
@click.option(
    "--no-submit", is_flag=True, help="With --on: write the folder without submitting it."
)
@options.of_a_server
def run(
    file: Path,
    storage: str,
    as_json: bool,
    ray_address: str | None,
    folder: Path,
    stop_after: float | None,
    retry_failed: bool,
    on: str | None,
    **of_scheduler: Any,
) -> None:
    """Sweep a STUDY.yaml, extrapolate, plan and, if the file says so, validate. An existing study is resumed."""
    from hpo.cli.output import tables
    from hpo.cli.output.progress import live_progress
    from hpo.planning.launchers.sweeps import GOES_ON
    from hpo.runs import api

    spec = api.load_study(file)
    if on is not None:
        _submit_sweep(spec, file, on, storage, as_json=as_json, **of_scheduler)
        return
    if of_scheduler["array"] is not None:
        raise click.UsageError("--array needs --on, the scheduler that starts the agents")
    # Ray reports dead worker processes on stdout, which is for the result only
    with live_progress() as progress, contextlib.redirect_stdout(sys.stderr):
        result = api.run_study(
            spec,
            storage,
            folder=folder,
            progress=progress,
            ray_address=ray_address,
            stop_after=stop_after,
            retry_failed=retry_failed,
            price_seconds=SECONDS_OF_TIMING,
        )
    options.show(result.to_dict, lambda: tables.show_study(result), as_json)
    if not result.complete:
        sys.exit(GOES_ON if stop_after is not None and _interrupted(result) else 1)


@click.group()
def study() -> None:
    """Check a study file."""


@study.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--no-timing", is_flag=True, help="Skip the timing: train nothing and estimate no hours."
)
@options.json_output
def check(file: Path, no_timing: bool, as_json: bool) -> None:
    """Check a study FILE and estimate its cost: trials, samples, and hours on this machine.

    Opens the data and trains for a few updates at each rung, for at most a minute. Without torch, only the file itself
    is checked.
    """
    import importlib.util

    from hpo.cli.output import prices
    from hpo.runs import api
    from trainers.workloads.described import WORKLOADS

    spec = api.load_study(file)
    spec.check_new()
    price = None
    described = WORKLOADS.get(spec.workload) if spec.workload in WORKLOADS.built_in else None
    if (described and not described.needs_torch) or importlib.util.find_spec("torch") is not None:
        from hpo.runs.checks import check_full_scale, check_workload
        from hpo.runs.price import study_price

        workload = check_workload(spec)
        check_full_scale(spec)
        price = study_price(spec, workload, timed=not no_timing)
    options.show(
        lambda: {"name": spec.name, "price": price and price.to_dict()},
        lambda: prices.show_check(file, spec, price),
        as_json,
    )


def _interrupted(result: StudyResult) -> bool:
    from storage.records import StudyState

    return result.study.state is StudyState.INTERRUPTED


def _submit_sweep(
    spec: StudySpec,
    file: Path,
    on: str,
    storage: str,
    *,
    as_json: bool,
    array: int | None,
    nodes: int,
    gpus: int,
    hours: float,
    slots: int,
    account: str | None,
    partition: str | None,
    output: Path | None,
    no_submit: bool,
    server: str | None,
    token: str | None,
) -> None:
    """Write the folder of a sweep for a scheduler, and submit it."""
    import re

    from hpo.client.address import server_address
    from hpo.client.client import Client
    from hpo.planning.launchers.submit import submit
    from hpo.planning.launchers.sweeps import (
        SweepSlot,
        write_allocation,
        write_array,
    )

    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", spec.name).strip("-.") or "sweep"
    folder = (output or Path(f"{name}-{on}")).absolute()
    slot = SweepSlot(
        name=name if name[0].isalpha() else f"study-{name}",
        nodes=nodes,
        slot_seconds=round(hours * 3600),
        accelerators=gpus,
    )
    program: tuple[str, ...] = ()
    if array is None:
        write_allocation(folder, on, slot, file, storage=_shared(storage), slots=slots)
    else:
        place = server_address(server, token)
        program = write_array(
            folder,
            on,
            slot,
            file,
            name=spec.name,
            agents=array,
            server=place.url,
            token=place.token,
        )
        if not no_submit:
            with Client(place.url, place.token) as client:
                client.submit(spec, for_agents=True)
    job = (
        ""
        if no_submit
        else submit(on, folder, account=account, partition=partition, program=program).job
    )
    options.show(
        lambda: {"folder": str(folder), "job": job or None},
        lambda: click.echo(
            job or f"{folder / 'launch.sh'} was written; its first lines show how to submit it"
        ),
        as_json,
    )


def _shared(storage: str) -> str:
    """Return the storage's URL in a form that the hosts of a slot can use: an SQLite path is made absolute."""
    prefix = "sqlite:///"
    if "://" not in storage:
        return f"{prefix}{Path(storage).absolute()}"
    if storage.startswith(prefix):
        return f"{prefix}{Path(storage.removeprefix(prefix)).absolute()}"
    return storage


@click.command()
@options.storage
@options.json_output
def studies(storage: str, as_json: bool) -> None:
    """List the studies of a storage."""
    from hpo.cli.output import tables
    from hpo.runs import api

    found = api.studies(storage)
    options.show(
        lambda: [
            {
                "name": s.name,
                "state": str(s.state),
                "workload": s.workload,
                "metric": s.metric,
                "threshold": s.threshold,
                "created_at": s.created_at.isoformat(),
                "message": s.message,
            }
            for s in found
        ],
        lambda: tables.show_studies(found),
        as_json,
    )


@click.command()
@click.argument("study")
@options.storage
@options.json_output
def show(study: str, storage: str, as_json: bool) -> None:
    """Show all results of a STUDY: rungs, importance of settings, forecast, plan and outcomes."""
    from hpo.cli.output import tables
    from hpo.errors import ExportError
    from hpo.runs import api

    result = api.with_forecast(api.read_study(study, storage))
    try:
        found = api.importances(result)
    except ExportError as error:
        click.echo(f"the importance of settings cannot be shown: {error}", err=True)
        found = ()
    options.show(
        lambda: {**result.to_dict(), "importances": [each.to_dict() for each in found]},
        lambda: tables.show_study(result, found),
        as_json,
    )


@click.command()
@click.argument("study")
@options.storage
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
)
@click.option(
    "--log",
    "number",
    type=click.IntRange(min=0),
    metavar="TRIAL",
    help="Print the output of this trial's program instead.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".hpo"),
    show_default=True,
    help="Folder in which the study runs, with its logs.",
)
def trials(study: str, storage: str, form: str, number: int | None, folder: Path) -> None:
    """List the trials of a STUDY."""
    from hpo.cli.output import tables
    from hpo.runs import api
    from hpo.study.jobs import trial_folder

    result = api.read_study(study, storage)
    if number is not None:
        click.echo(
            _log(trial_folder(folder, result.study.id, number) / "log.txt", number), nl=False
        )
    elif form == "json":
        options.print_json(tables.trial_rows(result))
    elif form == "csv":
        tables.write_csv(tables.trial_rows(result), sys.stdout)
    else:
        tables.show_trials(result)


def _log(path: Path, number: int) -> str:
    """Return a program's output without control characters; a redrawn line becomes one line per redraw."""
    from storage.schema.column_types import escape_unprintable

    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        return escape_unprintable(text.replace("\r\n", "\n").replace("\r", "\n"))
    except OSError as error:
        if (path.parent / "trial.json").exists():
            click.echo(f"the program of trial {number} has printed nothing", err=True)
            return ""
        raise click.UsageError(
            f"there is no log of trial {number} at {path}; only programs have logs, in the "
            f"folder in which the study was run (--folder)"
        ) from error


@click.command()
@click.argument("study")
@click.option(
    "--at",
    "batches",
    metavar="B",
    type=options.FORECAST_BATCH,
    multiple=True,
    help="Global batch size; may be repeated. Default: the study's full-scale batch size.",
)
@options.budgets
@click.option(
    "--race",
    "raced",
    is_flag=True,
    help="First race a few settings at that batch size on this machine, by gradient "
    "accumulation; a race that was interrupted continues.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".hpo"),
    show_default=True,
    help="Where checkpoints of a race's unfinished trials are kept.",
)
@options.storage
@options.json_output
def forecast(
    study: str,
    batches: tuple[int, ...],
    budgets: tuple[float, ...],
    raced: bool,
    folder: Path,
    storage: str,
    as_json: bool,
) -> None:
    """Forecast settings and epochs to target for a STUDY at any batch size."""
    from hpo.cli.output import tables
    from hpo.cli.output.progress import live_progress
    from hpo.runs import api
    from hpo.runs.study_plan import full_scale_trade_offs

    result = api.read_study(study, storage)
    batches = batches or options.full_scale(result)
    if raced:
        with live_progress() as progress, contextlib.redirect_stdout(sys.stderr):
            for batch in batches:
                result = api.race(result, batch, folder=folder, progress=progress)
    posterior = api.fit_posterior(result, batches)
    forecasts = [api.forecast(result, batch, posterior, budgets=budgets) for batch in batches]
    front = [each.to_dict() for each in full_scale_trade_offs(forecasts[0])]
    further = {"trade_offs": front} if front else {}
    options.show(
        lambda: [{**each.to_dict(), **further} for each in forecasts],
        lambda: tables.show_forecasts([each.numbers for each in forecasts], front),
        as_json,
    )


@click.command()
@click.argument("study")
@options.storage
@options.json_output
def design(study: str, storage: str, as_json: bool) -> None:
    """Show the cost of fewer or more training runs in a STUDY, and how wide the full-scale interval would be."""
    from hpo.cli.output.designs import show_designs
    from hpo.runs import api

    found = api.designs(api.read_study(study, storage))
    options.show(found.to_dict, lambda: show_designs(found), as_json)


@click.command()
@click.argument("study")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The HTML file to write.",
)
@options.storage
def report(study: str, output: Path, storage: str) -> None:
    """Write one self-contained HTML file with the figures of a STUDY."""
    from hpo.dashboard.report import write_report

    write_report(study, storage, output)
    click.echo(f"wrote {output}")
