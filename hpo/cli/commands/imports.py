"""What was run elsewhere, into a storage: `hpo import`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpo.cli.commands import options

if TYPE_CHECKING:
    from hpo.past_runs.importing import ImportedRuns
    from hpo.past_runs.mlperf.importing import Imported
    from hpo.past_runs.past_run import PastRun

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(name="import")
def importing() -> None:
    """Read results of trainings that were run elsewhere."""


@importing.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--round",
    "round_name",
    metavar="ROUND",
    help="Such as training_v2.1; from the folder's name if not given.",
)
@options.storage
@options.json_output
def mlperf(path: Path, round_name: str | None, storage: str, as_json: bool) -> None:
    """Import MLPerf results (ResNet-50, DeepCAM) from the folder PATH of a round, a submitter or a system.

    Their outcomes are evidence for forecasts, and their throughputs for the time model. Importing twice adds nothing.
    """
    from hpo.past_runs.mlperf.importing import import_results
    from hpo.runs.repository import open_store

    with open_store(storage) as store:
        imported = import_results(store, path, round_name)
    for fault in imported.faults:
        click.echo(f"left out: {fault}", err=True)
    options.show(imported.to_dict, lambda: _show(imported), as_json)


def _show(imported: Imported) -> None:
    for study, count in imported.outcomes.items():
        click.echo(f"{study}: {count} new outcome{'' if count == 1 else 's'}")
    if imported.known:
        click.echo(f"{imported.known} were there already")
    if imported.faults:
        click.echo(f"{len(imported.faults)} logs were left out; why is said above")


def _run_options(command: Command) -> Command:
    """The options of every command that turns past runs into trials of a study."""
    for option in (
        options.json_output,
        options.storage,
        click.option(
            "--dry-run", is_flag=True, help="Say what would be imported, and store nothing."
        ),
        click.option(
            "--train-samples",
            type=click.IntRange(min=1),
            metavar="N",
            help="Size of the training set; needed for curves, unless the study's data section says it.",
        ),
        click.option(
            "--axis",
            type=click.Choice(["epochs", "epoch-index", "updates", "samples"]),
            default="updates",
            show_default=True,
            help="What a step of a curve counts: epochs done, epochs from 0, updates or samples. A curve that is "
            "mapped to epochs goes before.",
        ),
        click.option(
            "--state",
            "states",
            multiple=True,
            metavar="THEIRS=OURS",
            help="What a run's status stands for where its curve does not tell: censored, diverged, pruned, failed "
            "or skip; may be repeated. As it is, runs that failed or were killed are left out.",
        ),
        click.option(
            "--map",
            "mapping",
            multiple=True,
            metavar="THEIRS=OURS",
            help="What a name of the source is called here, such as lr=learning_rate, bs=global_batch_size or "
            "val_acc=metric; may be repeated. Equal names need none.",
        ),
        click.option(
            "--study",
            required=True,
            metavar="NAME|FILE",
            help="A study of the storage by its name, or the file of a study, which is entered if it is new.",
        ),
    ):
        command = option(command)
    return command


@importing.command("csv")
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--curves",
    type=click.Path(path_type=Path),
    help="A second table with the columns run and step, and a column for each metric.",
)
@_run_options
def csv_table(source: Path, curves: Path | None, **settings: Any) -> None:
    """Import a table with one row per run as trials of a study; a column run names the runs."""
    from hpo.past_runs.csv_tables import read_csv

    _import(read_csv(source, curves), **settings)


@importing.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--chart",
    "charts",
    type=click.Path(path_type=Path),
    multiple=True,
    help="The CSV export of a chart, with the curves of the runs; may be repeated.",
)
@_run_options
def wandb(source: Path, charts: Sequence[Path], **settings: Any) -> None:
    """Import the CSV export of a table of runs of Weights & Biases as trials of a study."""
    from hpo.past_runs.csv_tables import read_wandb

    _import(read_wandb(source, charts), **settings)


@importing.command()
@click.argument("source")
@click.option("--experiment", metavar="NAME", help="Only the runs of this experiment.")
@_run_options
def mlflow(source: str, experiment: str | None, **settings: Any) -> None:
    """Import runs of MLflow as trials of a study: from a folder mlruns, sqlite:///mlflow.db, or a tracking server."""
    from hpo.past_runs.mlflow_store import read_mlflow

    _import(read_mlflow(source, experiment), **settings)


@importing.command()
@click.argument("source", type=click.Path(path_type=Path))
@_run_options
def tensorboard(source: Path, **settings: Any) -> None:
    """Import runs of TensorBoard as trials of a study: every folder below SOURCE with event files is one."""
    from hpo.past_runs.tensorboard_folder import read_tensorboard

    _import(read_tensorboard(source), **settings)


@importing.command("optuna")
@click.argument("source")
@click.option("--name", metavar="NAME", help="The study in Optuna, where there are several.")
@_run_options
def optuna_database(source: str, name: str | None, **settings: Any) -> None:
    """Import the trials of an Optuna study as trials of a study here; SOURCE is a URL or a file.

    What a trial returned is called value, and what it reported at its steps intermediate_value.
    """
    from hpo.past_runs.optuna_database import read_optuna

    _import(read_optuna(source, name), **settings)


def _import(
    runs: list[PastRun],
    *,
    study: str,
    mapping: Sequence[str],
    states: Sequence[str],
    axis: Any,
    train_samples: int | None,
    dry_run: bool,
    storage: str,
    as_json: bool,
) -> None:
    from hpo.past_runs.conversion import ImportOptions
    from hpo.past_runs.importing import import_runs
    from hpo.runs.repository import enter_study, open_store, stored_spec
    from hpo.study.spec import load_study

    how = ImportOptions(
        mapping=_pairs("--map", mapping),
        states={status.lower(): state for status, state in _pairs("--state", states).items()},
        axis=axis,
        train_samples=train_samples,
    )
    from_file = study.endswith((".yaml", ".yml"))
    with open_store(storage, create=from_file) as store:
        if from_file:
            spec = load_study(study)
            entered = enter_study(store, spec)
        else:
            entered = store.study(study)
            spec = stored_spec(entered)
        done = import_runs(store, entered, spec, runs, how, dry_run=dry_run)
    for run, reason in done.skipped:
        click.echo(f"left out: {run}: {reason}", err=True)
    options.show(done.to_dict, lambda: _show_runs(done, dry_run=dry_run), as_json)


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        theirs, equals, ours = text.rpartition("=")
        if not (theirs and equals and ours):
            raise click.UsageError(f"{option} must be THEIRS=OURS, but got {text!r}")
        if theirs in pairs:
            raise click.UsageError(f"{option} names {theirs!r} twice")
        pairs[theirs] = ours
    return pairs


def _show_runs(done: ImportedRuns, *, dry_run: bool) -> None:
    states = ", ".join(f"{count} {state}" for state, count in sorted(done.states.items()))
    would = "would gain" if dry_run else "gained"
    trials = "trial" if done.trials == 1 else "trials"
    click.echo(f"{done.study} {would} {done.trials} {trials}{f': {states}' if states else ''}")
    if done.known:
        click.echo(f"{done.known} were there already")
    if done.assumed:
        click.echo(f"no run says {', '.join(done.assumed)}: taken to be as in the study")
    if done.skipped:
        click.echo(f"{len(done.skipped)} were left out; why is said above")
