"""From a forecast to the full machine and back: plan, launch, record, calibration, machines, recipes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hpo.commands import options


@click.command()
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
@options.storage
@options.json_output
def plan(study: str, machine: str, nodes: int | None, workers: int | None, global_batch_size: int | None,
         output: Path | None, storage: str, as_json: bool) -> None:
    """Plan a STUDY's full-scale run: settings, epochs, time and the script that launches it."""
    from hpo import api
    from hpo.terminal import tables

    result = api.read_study(study, storage)
    made = api.forecast(result, global_batch_size or options.full_scale(result)[0])
    if machine == "local" and nodes is None and workers is None and result.spec.full_scale:
        workers = result.spec.full_scale.workers
    planned = api.make_plan(made, machine, nodes, workers)
    folder = output or Path("plans") / api.folder_name(planned)
    kept = api.store_plan(made, planned, folder)
    options.show(kept.to_dict, lambda: tables.show_plan(kept, folder), as_json)


@click.command()
@click.argument("plan")
@click.option("--backend", type=click.Choice(["horovod", "torch"]), help="Horovod where it is installed, if not given.")
@click.option("--workers", type=click.IntRange(min=1), help="Worker processes; the plan's own number if not given.")
@click.option("--seed", "seeds", type=click.IntRange(min=0), multiple=True, help="May be given several times.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where the runs write their files.")
@options.storage
@options.json_output
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
    options.show(lambda: [outcome.to_dict() for outcome in outcomes],
                 lambda: tables.show_outcomes(found, outcomes), as_json)
    if any(outcome.state != "reached" for outcome in outcomes):
        sys.exit(1)


@click.command()
@click.argument("plan")
@click.argument("outcome", type=click.Path(path_type=Path))
@click.option("--backend", type=click.Choice(["horovod", "torch"]), default="horovod", show_default=True,
              help="What the run used.")
@options.storage
def record(plan: str, outcome: Path, backend: str, storage: str) -> None:
    """Take back the OUTCOME.jsonl that the script of a PLAN (its number, or its folder) wrote."""
    from hpo import api

    kept = api.record(api.find_plan(plan, storage), outcome, storage, backend=backend)
    click.echo(f"recorded: {kept.state} after {kept.epochs:.2f} epochs")


@click.command()
@options.storage
@options.json_output
def calibration(storage: str, as_json: bool) -> None:
    """Show every launched plan, its forecast beside what happened."""
    from hpo import api
    from hpo.terminal import tables

    rows = api.calibration(storage)
    options.show(lambda: [tables.calibration_row(row) for row in rows], lambda: tables.show_calibration(rows), as_json)


@click.command()
@click.argument("machine", default="local")
@options.json_output
def machines(machine: str, as_json: bool) -> None:
    """Show a MACHINE that plans can be made for: local, or the YAML file of one."""
    import dataclasses

    from hpo.planning.machines import load_machine

    found = load_machine(machine)
    options.show(lambda: dataclasses.asdict(found),
                 lambda: click.echo(f"{found.name}: {found.nodes} x {found.accelerators_per_node} accelerators, "
                                    f"{found.source}"), as_json)


@click.command()
@click.argument("name", required=False)
@options.json_output
def recipes(name: str | None, as_json: bool) -> None:
    """List published large-batch recipes, or show the one called NAME with its settings, results and sources."""
    from hpo.terminal import recipes as terminal
    from search_spaces.recipes import RecipeError, recipe
    from search_spaces.recipes import recipes as every

    if name is None:
        found = every()
        options.show(lambda: [each.to_dict() for each in found], lambda: terminal.show_recipes(found), as_json)
        return
    try:
        one = recipe(name)
    except RecipeError as error:
        raise click.UsageError(str(error)) from error
    options.show(one.to_dict, lambda: terminal.show_recipe(one), as_json)
