"""From a forecast to the full machine and back: plan, launch, record, calibration, machines, recipes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hpo.cli.commands import options


@click.command()
@click.argument("study")
@options.plan_request
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for plan.json, job.json and launch.sh; default: plans/STUDY-B.",
)
@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="NAME",
    help="Module to load first; may be repeated.",
)
@click.option("--container", metavar="IMAGE", help="Run every rank in this Apptainer image.")
@click.option("--prefix", metavar="WORDS", help="Prefix for the command of every rank.")
@options.storage
@options.json_output
def plan(
    study: str,
    output: Path | None,
    modules: tuple[str, ...],
    container: str | None,
    prefix: str | None,
    storage: str,
    as_json: bool,
    **asked: Any,
) -> None:
    """Plan a STUDY's full-scale run: placement, settings, epochs, time, cost, and the script that launches it."""
    from hpo.cli.output import plan_text
    from hpo.planning.launchers.job_setup import JobSetup
    from hpo.runs import api

    setup = JobSetup.of(modules, container, prefix)
    result = api.read_study(study, storage)
    made, planned = api.plan_study(result, **asked)
    planned = setup.put_into(planned)
    folder = output or Path("plans") / api.folder_name(planned)
    kept = api.store_plan(made, planned, folder)
    options.show(kept.to_dict, lambda: plan_text.show_plan(kept, folder), as_json)


@click.command()
@click.argument("plan")
@click.option(
    "--backend",
    type=click.Choice(["horovod", "torch"]),
    help="Default: on this machine, Horovod if it is installed; elsewhere, the backend that "
    "suits the scheduler.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Worker processes on this machine, even if the plan is for another one; default: the "
    "plan's number.",
)
@click.option(
    "--seed", "seeds", type=click.IntRange(min=0), multiple=True, help="May be given several times."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the files of the runs or, with a scheduler, for the script.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="How many times a run that lost a worker is restarted from its last checkpoint.",
)
@click.option(
    "--checkpoint-minutes",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="MINUTES",
    help="Save a checkpoint at the first evaluation after this many minutes; default: at every "
    "evaluation.",
)
@options.device
@options.compiles
@click.option("--account", help="Account or project for the scheduler.")
@click.option("--partition", help="Partition or queue for the scheduler.")
@options.storage
@options.json_output
def launch(
    plan: str,
    folder: Path | None,
    storage: str,
    as_json: bool,
    account: str | None,
    partition: str | None,
    **asked: Any,
) -> None:
    """Run a PLAN (its number or folder) and store the outcome with its forecast.

    A plan for this machine runs here and survives lost workers; one for another machine is submitted to its scheduler.
    """
    from hpo.cli.output import tables
    from hpo.cli.output.progress import live_progress
    from hpo.runs import api, launches

    found = api.find_plan(plan, storage)
    given = Path(plan)
    lies = folder or (given if given.is_dir() else given.parent if given.is_file() else None)
    if found.launcher != "local" and asked["workers"] is None:
        job = api.submit_plan(
            found,
            lies or launches.written_folder(found, storage),
            backend=asked["backend"],
            account=account,
            partition=partition,
        )
        options.show(
            lambda: {"launcher": job.launcher, "job": job.job, "folder": str(job.folder)},
            lambda: click.echo(
                f"{job.job}\nwhen it has ended: hpo record {found.id} {job.folder}/outcome.jsonl"
            ),
            as_json,
        )
        return
    with live_progress() as progress:
        runs = api.launch_here(
            found,
            directory=lies,
            backend=asked["backend"],
            workers=asked["workers"],
            seeds=asked["seeds"] or None,
            storage=storage,
            progress=progress,
            max_restarts=asked["max_restarts"],
            checkpoint_minutes=asked["checkpoint_minutes"],
        )
    options.show(
        lambda: [tables.launched_run_to_dict(run) for run in runs],
        lambda: tables.show_launched(found, runs),
        as_json,
    )
    if any(found.job.question.need(run.outcome) is None for run in runs):
        sys.exit(1)


@click.command()
@click.argument("plan")
@click.argument("outcome", type=click.Path(path_type=Path))
@click.option(
    "--backend",
    type=click.Choice(["horovod", "torch"]),
    help="Backend of the run; default: the backend that suits the plan's scheduler.",
)
@click.option(
    "--nodes", type=click.IntRange(min=1), help="Nodes of the run; default: from the report."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Ranks of the run; default: from the report.",
)
@options.storage
def record(
    plan: str,
    outcome: Path,
    backend: str | None,
    nodes: int | None,
    workers: int | None,
    storage: str,
) -> None:
    """Store the OUTCOME.jsonl that the script of a PLAN (its number or folder) wrote."""
    from hpo.runs import api

    kept = api.record(
        api.find_plan(plan, storage),
        outcome,
        storage,
        backend=backend,
        nodes=nodes,
        workers=workers,
    )
    speed = f", {kept.samples_per_second:.4g} samples/s" if kept.samples_per_second else ""
    restarts = (
        f", {kept.restarts} restart{'s' if kept.restarts > 1 else ''}" if kept.restarts else ""
    )
    click.echo(
        f"recorded: {kept.state} after {kept.epochs:.2f} epochs on {kept.workers} workers of {kept.nodes} "
        f"node{'s' if (kept.nodes or 1) > 1 else ''}{speed}{restarts}"
    )


@click.command()
@options.storage
@options.json_output
def calibration(storage: str, as_json: bool) -> None:
    """Compare the forecast of every launched plan with its outcome."""
    from hpo.cli.output import tables
    from hpo.runs import api

    rows = api.calibration(storage)
    options.show(
        lambda: [tables.calibration_row(row) for row in rows],
        lambda: tables.show_calibration(rows),
        as_json,
    )


@click.command()
@click.argument("machine", required=False)
@click.option(
    "--measure",
    is_flag=True,
    help="Measure this machine first and save the figures; only with 'local'.",
)
@click.option(
    "--yaml", "as_yaml", is_flag=True, help="Print the machine's file, as a template for your own."
)
@options.json_output
def machines(machine: str | None, measure: bool, as_yaml: bool, as_json: bool) -> None:
    """List the machines that plans can be made for, or check and show one MACHINE, given by name or YAML file."""
    from hpo.cli.output import machines as terminal
    from hpo.planning.machines import load_machine, machine_names, machine_text, measure_local

    if measure and machine != "local":
        raise click.UsageError(
            "only this machine can be measured: `hpo machines local --measure`, but got "
            f"{machine or 'no machine'}"
        )
    if as_yaml and machine not in machine_names():
        raise click.UsageError(
            f"--yaml needs one of the machines {', '.join(machine_names())}, but got "
            f"{machine or 'none'}"
        )
    if measure:
        click.echo(f"measured; saved in {measure_local()}", err=True)
    if machine is None:
        found = [load_machine(name) for name in machine_names()]
        options.show(
            lambda: [each.to_dict() for each in found],
            lambda: terminal.show_machines(found),
            as_json,
        )
    elif as_yaml:
        click.echo(machine_text(machine), nl=False)
    else:
        one = load_machine(machine)
        options.show(one.to_dict, lambda: terminal.show_machine(one), as_json)


@click.command()
@click.argument("name", required=False)
@options.json_output
def recipes(name: str | None, as_json: bool) -> None:
    """List published large-batch recipes, or show the one called NAME with its settings, results and sources."""
    from hpo.cli.output import recipes as terminal
    from search_spaces.recipes import RecipeError, recipe
    from search_spaces.recipes import recipes as every

    if name is None:
        found = every()
        options.show(
            lambda: [each.to_dict() for each in found],
            lambda: terminal.show_recipes(found),
            as_json,
        )
        return
    try:
        one = recipe(name)
    except RecipeError as error:
        raise click.UsageError(str(error)) from error
    options.show(one.to_dict, lambda: terminal.show_recipe(one), as_json)
