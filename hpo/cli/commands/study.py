"""Studies in a database: run one, list them, show what is known of one, forecast."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from hpo.cli.commands import options
from hpo.study.jobs import trial_folder


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@options.storage
@options.json_output
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    help="A running Ray cluster; without it Ray starts on this machine.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(".hpo"),
    show_default=True,
    help="Where checkpoints of trials in flight and plans are kept.",
)
def run(study: Path, storage: str, as_json: bool, ray_address: str | None, folder: Path) -> None:
    """Sweep a STUDY.yaml, extrapolate, plan and, where it asks for it, validate. Goes on with a study of that name."""
    from hpo import api
    from hpo.cli.output import tables
    from hpo.cli.output.progress import live_progress

    spec = api.load_study(study)
    # Ray prints of worker processes that died on stdout, which is for the result alone
    with live_progress() as progress, contextlib.redirect_stdout(sys.stderr):
        result = api.run_study(
            spec, storage, folder=folder, progress=progress, ray_address=ray_address
        )
    options.show(result.to_dict, lambda: tables.show_study(result), as_json)
    if not result.complete:
        sys.exit(1)


@click.command()
@options.storage
@options.json_output
def studies(storage: str, as_json: bool) -> None:
    """List the studies of a storage."""
    from hpo import api
    from hpo.cli.output import tables

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
    """Show all that is known of a STUDY: its rungs, forecast, plan and what came of it."""
    from hpo import api
    from hpo.cli.output import tables

    result = api.with_forecast(api.read_study(study, storage))
    options.show(result.to_dict, lambda: tables.show_study(result), as_json)


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
    help="Print what the program of this trial has printed, instead.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".hpo"),
    show_default=True,
    help="Where the study is run, and the logs are.",
)
def trials(study: str, storage: str, form: str, number: int | None, folder: Path) -> None:
    """List the trials of a STUDY."""
    from hpo import api
    from hpo.cli.output import tables

    result = api.read_study(study, storage)
    if number is not None:
        click.echo(_log(trial_folder(folder, result.study.id, number) / "log.txt", number))
    elif form == "json":
        options.print_json(tables.trial_rows(result))
    elif form == "csv":
        tables.write_csv(tables.trial_rows(result), sys.stdout)
    else:
        tables.show_trials(result)


def _log(path: Path, number: int) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise click.UsageError(
            f"there is no log of trial {number} at {path}; programs have logs, in the folder in which the study was "
            "run (--folder)"
        ) from error


@click.command()
@click.argument("study")
@click.option(
    "--at",
    "batches",
    metavar="B",
    type=click.IntRange(min=1),
    multiple=True,
    help="Global batch size; may be given several times. The study's full-scale batch if not given.",
)
@options.budgets
@click.option(
    "--race",
    "raced",
    is_flag=True,
    help="First train a few settings at that batch size, here, by accumulation; goes on with a race begun.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".hpo"),
    show_default=True,
    help="Where checkpoints of a race's trials in flight are kept.",
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
    from hpo import api
    from hpo.cli.output import tables
    from hpo.cli.output.progress import live_progress

    result = api.read_study(study, storage)
    batches = batches or options.full_scale(result)
    if raced:
        with live_progress() as progress, contextlib.redirect_stdout(sys.stderr):
            for batch in batches:
                result = api.race(result, batch, folder=folder, progress=progress)
    posterior = api.fit_posterior(result, batches)
    forecasts = [api.forecast(result, batch, posterior, budgets=budgets) for batch in batches]
    options.show(
        lambda: [each.to_dict() for each in forecasts],
        lambda: tables.show_forecasts([each.numbers for each in forecasts]),
        as_json,
    )


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
    """Write one self-contained HTML file with the pictures of a STUDY."""
    from hpo.dashboard.report import write_report

    write_report(study, storage, output)
    click.echo(f"wrote {output}")
