"""The command line: results on stdout, progress on stderr; exit 0 success, 1 failed work, 2 bad usage or bad input.

Nothing heavy is imported before a command needs it, so that ``hpo --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from hpo.results import StudyResult

DEFAULT_STORAGE = "sqlite:///hpo.db"

_storage = click.option("--storage", metavar="URL", envvar="HPO_STORAGE", default=DEFAULT_STORAGE, show_default=True,
                        help="Database URL or SQLite file; also HPO_STORAGE.")
_budgets = click.option("--budget-epochs", "budgets", metavar="E", type=click.FloatRange(min=0, min_open=True),
                        multiple=True, help="Tell the chance of reaching the target within E epochs; may be repeated.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")


class _Commands(click.Group):
    """Prints the service's own errors without a traceback, and leaves with their exit code."""

    def invoke(self, context: click.Context) -> Any:
        from hpo.errors import HpoError

        try:
            return super().invoke(context)
        except HpoError as error:
            click.echo(f"error: {error}", err=True)
            context.exit(error.exit_code)
        except BrokenPipeError:
            sys.stderr.close()
            context.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="largebatch")
def main() -> None:
    """Tune large-batch training at small scale; forecast, plan and launch the full-scale run."""


@main.command()
@click.argument("study", type=click.Path(path_type=Path))
@_storage
@_json
@click.option("--ray-address", metavar="ADDRESS", help="A running Ray cluster; without it Ray starts on this machine.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path(".hpo"), show_default=True,
              help="Where checkpoints of trials in flight and plans are kept.")
def run(study: Path, storage: str, as_json: bool, ray_address: str | None, folder: Path) -> None:
    """Sweep a STUDY.yaml, extrapolate, plan and, where it asks for it, validate. Goes on with a study of that name."""
    from hpo import api
    from hpo.terminal import tables
    from hpo.terminal.progress import live_progress

    spec = api.load_study(study)
    # Ray prints of worker processes that died on stdout, which is for the result alone
    with live_progress() as progress, contextlib.redirect_stdout(sys.stderr):
        result = api.run_study(spec, storage, folder=folder, progress=progress, ray_address=ray_address)
    _show(result.to_dict, lambda: tables.show_study(result), as_json)
    if not result.complete:
        sys.exit(1)


@main.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--at", "batches", metavar="B", type=click.IntRange(min=1), multiple=True, required=True,
              help="Global batch size to forecast for; may be given several times.")
@_budgets
@_json
def extrapolate(table: Path, batches: tuple[int, ...], budgets: tuple[float, ...], as_json: bool) -> None:
    """Forecast epochs to target and settings from a TABLE.csv of batch sizes that were run; no study needed."""
    import numpy as np

    from hpo.extrapolation.forecast import forecast
    from hpo.extrapolation.posterior import fit
    from hpo.extrapolation.table import read_table
    from hpo.terminal import tables

    posterior = fit(read_table(table), rng=np.random.default_rng(0))
    forecasts = [forecast(posterior, batch, budgets=budgets) for batch in batches]
    _show(lambda: [each.to_dict() for each in forecasts], lambda: tables.show_forecasts(forecasts), as_json)


@main.command()
@_storage
@_json
def studies(storage: str, as_json: bool) -> None:
    """List the studies of a storage."""
    from hpo import api
    from hpo.terminal import tables

    found = api.studies(storage)
    _show(lambda: [{"name": s.name, "state": str(s.state), "workload": s.workload, "metric": s.metric,
                    "threshold": s.threshold, "created_at": s.created_at.isoformat(), "message": s.message}
                   for s in found], lambda: tables.show_studies(found), as_json)


@main.command()
@click.argument("study")
@_storage
@_json
def show(study: str, storage: str, as_json: bool) -> None:
    """Show all that is known of a STUDY: its rungs, forecast, plan and what came of it."""
    from hpo import api
    from hpo.terminal import tables

    result = api.with_forecast(api.read_study(study, storage))
    _show(result.to_dict, lambda: tables.show_study(result), as_json)


@main.command()
@click.argument("study")
@_storage
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
def trials(study: str, storage: str, form: str) -> None:
    """List the trials of a STUDY."""
    from hpo import api
    from hpo.terminal import tables

    result = api.read_study(study, storage)
    if form == "json":
        _print_json(tables.trial_rows(result))
    elif form == "csv":
        tables.write_csv(tables.trial_rows(result), sys.stdout)
    else:
        tables.show_trials(result)


@main.command()
@click.argument("study")
@click.option("--at", "batches", metavar="B", type=click.IntRange(min=1), multiple=True,
              help="Global batch size; may be given several times. The study's full-scale batch if not given.")
@_budgets
@_storage
@_json
def forecast(study: str, batches: tuple[int, ...], budgets: tuple[float, ...], storage: str, as_json: bool) -> None:
    """Forecast settings and epochs to target for a STUDY at any batch size."""
    from hpo import api
    from hpo.terminal import tables

    result = api.read_study(study, storage)
    batches = batches or _full_scale(result)
    posterior = api.fit_posterior(result)
    forecasts = [api.forecast(result, batch, posterior, budgets=budgets) for batch in batches]
    _show(lambda: [each.to_dict() for each in forecasts],
          lambda: tables.show_forecasts([each.numbers for each in forecasts]), as_json)


@main.command()
@click.argument("study")
@click.option("--machine", default="local", show_default=True, help="'local', or the YAML file of a machine.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes to use; all of the machine if not given.")
@click.option("--workers", type=click.IntRange(min=1),
              help="Worker processes; as many as accelerators and batch allow if not given.")
@click.option("--global-batch-size", type=click.IntRange(min=1), metavar="B",
              help="Batch to plan for; the study's full-scale batch if not given.")
@click.option("--launcher", type=click.Choice(["local"]), default="local", show_default=True, expose_value=False)
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Folder for plan.json, job.json and launch.sh; plans/STUDY-B if not given.")
@_storage
@_json
def plan(study: str, machine: str, nodes: int | None, workers: int | None, global_batch_size: int | None,
         output: Path | None, storage: str, as_json: bool) -> None:
    """Plan a STUDY's full-scale run: settings, epochs, time and the script that launches it."""
    from hpo import api
    from hpo.terminal import tables

    result = api.read_study(study, storage)
    made = api.forecast(result, global_batch_size or _full_scale(result)[0])
    if machine == "local" and nodes is None and workers is None and result.spec.full_scale:
        workers = result.spec.full_scale.workers
    planned = api.make_plan(made, machine, nodes, workers)
    folder = output or Path("plans") / api.folder_name(planned)
    kept = api.store_plan(made, planned, folder)
    _show(kept.to_dict, lambda: tables.show_plan(kept, folder), as_json)


@main.command()
@click.argument("plan")
@click.option("--backend", type=click.Choice(["horovod", "torch"]), help="Horovod where it is installed, if not given.")
@click.option("--workers", type=click.IntRange(min=1), help="Worker processes; the plan's own number if not given.")
@click.option("--seed", "seeds", type=click.IntRange(min=0), multiple=True, help="May be given several times.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where the runs write their files.")
@_storage
@_json
def launch(plan: str, backend: str | None, workers: int | None, seeds: tuple[int, ...], folder: Path | None,
           storage: str, as_json: bool) -> None:
    """Run a PLAN (its number, or its folder) on this machine and keep the outcome beside its forecast."""
    from hpo import api
    from hpo.terminal import tables
    from hpo.terminal.progress import live_progress

    found = api.find_plan(plan, storage)
    with live_progress() as progress:
        outcomes = api.launch(found, directory=folder, backend=backend, workers=workers, seeds=seeds or None,
                              storage=storage, progress=progress)
    _show(lambda: [outcome.to_dict() for outcome in outcomes], lambda: tables.show_outcomes(found, outcomes), as_json)
    if any(outcome.state != "reached" for outcome in outcomes):
        sys.exit(1)


@main.command()
@click.argument("plan")
@click.argument("outcome", type=click.Path(path_type=Path))
@click.option("--backend", type=click.Choice(["horovod", "torch"]), default="horovod", show_default=True,
              help="What the run used.")
@_storage
def record(plan: str, outcome: Path, backend: str, storage: str) -> None:
    """Take back the OUTCOME.jsonl that the script of a PLAN (its number, or its folder) wrote."""
    from hpo import api

    kept = api.record(api.find_plan(plan, storage), outcome, storage, backend=backend)
    click.echo(f"recorded: {kept.state} after {kept.epochs:.2f} epochs")


@main.command()
@_storage
@_json
def calibration(storage: str, as_json: bool) -> None:
    """Show every launched plan, its forecast beside what happened."""
    from hpo import api
    from hpo.terminal import tables

    rows = api.calibration(storage)
    _show(lambda: [tables.calibration_row(row) for row in rows], lambda: tables.show_calibration(rows), as_json)


@main.command()
@click.argument("study")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("report.html"),
              show_default=True, help="The HTML file to write.")
@_storage
def report(study: str, output: Path, storage: str) -> None:
    """Write one self-contained HTML file with the pictures of a STUDY."""
    from hpo.dashboard.report import write_report

    write_report(study, storage, output)
    click.echo(f"wrote {output}")


@main.command()
@click.argument("machine", default="local")
@_json
def machines(machine: str, as_json: bool) -> None:
    """Show a MACHINE that plans can be made for: local, or the YAML file of one."""
    import dataclasses

    from hpo.planning.machines import load_machine

    found = load_machine(machine)
    _show(lambda: dataclasses.asdict(found),
          lambda: click.echo(f"{found.name}: {found.nodes} x {found.accelerators_per_node} accelerators, "
                             f"{found.source}"), as_json)


@main.command()
@click.argument("name", required=False)
@_json
def recipes(name: str | None, as_json: bool) -> None:
    """List published large-batch recipes, or show the one called NAME with its settings, results and sources."""
    from hpo.terminal import recipes as terminal
    from search_spaces.recipes import RecipeError, recipe
    from search_spaces.recipes import recipes as every

    if name is None:
        found = every()
        _show(lambda: [each.to_dict() for each in found], lambda: terminal.show_recipes(found), as_json)
        return
    try:
        one = recipe(name)
    except RecipeError as error:
        raise click.UsageError(str(error)) from error
    _show(one.to_dict, lambda: terminal.show_recipe(one), as_json)


def _full_scale(result: StudyResult) -> tuple[int, ...]:
    if result.spec.full_scale is None:
        raise click.UsageError(f"study {result.study.name!r} names no full_scale batch size; give one")
    return (result.spec.full_scale.global_batch_size,)


def _show(document: Callable[[], Any], shown: Callable[[], None], as_json: bool) -> None:
    if as_json:
        _print_json(document())
    else:
        shown()


def _print_json(document: Any) -> None:
    click.echo(json.dumps(_finite(document), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: what was not measured is null."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


if __name__ == "__main__":
    main()
