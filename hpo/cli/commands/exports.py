"""`hpo export`: exports from a database to other tools."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpo.cli.commands import options
from hpo.cli.commands.database import store_errors
from hpo.errors import ExportError, HpoError

if TYPE_CHECKING:
    from hpo.runs.exports.tracking import Tracker
    from hpo.study.spec import StudySpec
    from hpo.study.trackers import TrackerChoice
    from storage.records import Study

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def export() -> None:
    """Export a study to other tools: Parquet, Optuna, TensorBoard, MLflow or its own trackers."""


def _to_folder(text: str) -> Callable[[Command], Command]:
    """Return the option for the output folder, with ``text`` as help."""
    return click.option(
        "--to",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        required=True,
        metavar="DIR",
        help=text,
    )


@export.command()
@click.argument("study")
@_to_folder("Folder for trials.parquet and convergence.parquet.")
@options.storage
@options.json_output
def parquet(study: str, folder: Path, storage: str, as_json: bool) -> None:
    """Write the trials and curves of a STUDY as Parquet files, with the unit of each column in its metadata."""
    from storage.maintenance.parquet import write_parquet
    from storage.store import Store

    with store_errors(), Store.open(storage, create=False) as store:
        made = write_parquet(store, study, folder)
    options.show(
        lambda: {
            "trials": str(made.trials),
            "trial_rows": made.trial_rows,
            "convergence": str(made.convergence),
            "convergence_rows": made.convergence_rows,
        },
        lambda: click.echo(
            f"wrote {made.trials} ({made.trial_rows:,} trials) and {made.convergence} "
            f"({made.convergence_rows:,} points)"
        ),
        as_json,
    )


@export.command()
@click.argument("study", required=False)
@click.option(
    "--to", "url", required=True, metavar="URL", help="Database, such as sqlite:///optuna.db."
)
@click.option("--replace", is_flag=True, help="Replace Optuna studies of the same name.")
@click.option(
    "--by-batch",
    is_flag=True,
    help="An Optuna study for each batch size, named STUDY-BATCH, instead of one with the batch size as a parameter.",
)
@click.option(
    "--points",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Maximum intermediate values per trial; Optuna writes each in a separate statement.",
)
@options.storage
@options.json_output
def optuna(
    study: str | None,
    url: str,
    replace: bool,
    by_batch: bool,
    points: int,
    storage: str,
    as_json: bool,
) -> None:
    """Write a STUDY, or all studies, to an Optuna database, which optuna-dashboard can open."""
    from hpo.runs.exports.optuna_database import write_optuna
    from hpo.study.spec import parse_stored_study
    from storage.store import Store

    with store_errors(), Store.open(storage, create=False) as store:
        found = store.studies() if study is None else [store.study(study)]
        made = [
            write_optuna(
                store,
                each,
                parse_stored_study(each.spec),
                url,
                replace=replace,
                global_batch_size=batch,
                points=points,
            )
            for each in found
            for batch in (sorted(store.counts(each.id)) if by_batch else [None])
        ]
    options.show(
        lambda: [{"study": each.study, "trials": each.trials} for each in made],
        lambda: click.echo(
            "\n".join(f"{each.study}: {_counts(each.trials)}" for each in made)
            or "there are no studies yet"
        ),
        as_json,
    )


_follow = click.option(
    "--follow",
    is_flag=True,
    help="Keep writing until the study ends or you press Ctrl-C: live, wherever its trials are "
    "trained.",
)


@export.command()
@click.argument("study")
@_to_folder("Folder to point TensorBoard at (its --logdir).")
@_follow
@options.storage
@options.json_output
def tensorboard(study: str, folder: Path, follow: bool, storage: str, as_json: bool) -> None:
    """Write the trials of a STUDY for TensorBoard: curves by optimizer step, and hyperparameters."""
    from hpo.runs.exports.tensorboard_log import TensorBoardTracker

    ended = _tracked(
        study, storage, lambda found, spec: TensorBoardTracker(found, spec, folder), follow
    )
    options.show(
        lambda: {"study": study, "trials": ended, "folder": str(folder)},
        lambda: click.echo(
            f"{study}: {ended} trials that have ended; tensorboard --logdir {folder}"
        ),
        as_json,
    )


@export.command()
@click.argument("study")
@click.option(
    "--to",
    "uri",
    required=True,
    metavar="URI",
    help="A tracking server, or a database such as sqlite:///mlflow.db.",
)
@click.option(
    "--experiment", metavar="NAME", help="Experiment in MLflow; default: the study's name."
)
@_follow
@options.storage
@options.json_output
def mlflow(
    study: str, uri: str, experiment: str | None, follow: bool, storage: str, as_json: bool
) -> None:
    """Write the trials of a STUDY as MLflow runs; a second call continues where the first stopped."""
    from hpo.runs.exports.mlflow_log import MlflowTracker

    ended = _tracked(
        study, storage, lambda found, spec: MlflowTracker(found, spec, uri, experiment), follow
    )
    options.show(
        lambda: {"study": study, "trials": ended, "uri": uri},
        lambda: click.echo(f"{study}: {ended} trials that have ended, at {uri}"),
        as_json,
    )


@export.command()
@click.argument("study")
@_follow
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".hpo"),
    show_default=True,
    help="The study's run folder; files for trackers go to its subfolder trackers.",
)
@options.storage
@options.json_output
def trackers(study: str, follow: bool, folder: Path, storage: str, as_json: bool) -> None:
    """Write the trials of a STUDY to the trackers that its file names, adding only what is missing."""
    from hpo.runs.exports.tracking import make_tracker

    choices = _choices(study, storage)
    if not choices:
        raise click.UsageError(
            f"study {study!r} has no tracker; add trackers: [...] to its file and run it "
            f"again, or use "
            "hpo export tensorboard or mlflow"
        )
    place = (folder / "trackers").absolute()
    place.mkdir(parents=True, exist_ok=True)
    ended = []
    for each in choices:
        try:
            ended.append(
                _tracked(
                    study,
                    storage,
                    lambda found, spec: make_tracker(each, found, spec, place),  # noqa: B023
                    follow,
                )
            )
        except (HpoError, click.ClickException):
            raise
        except Exception as error:  # a tracker may be arbitrary code
            raise ExportError(f"tracker {each.name}: {type(error).__name__}: {error}") from error
    names = [each.name for each in choices]
    options.show(
        lambda: {"study": study, "trackers": names, "trials": min(ended)},
        lambda: click.echo(f"{study}: {min(ended)} trials that have ended, in {', '.join(names)}"),
        as_json,
    )


def _choices(study: str, storage: str) -> tuple[TrackerChoice, ...]:
    from hpo.runs.repository import stored_spec
    from storage.store import Store

    with store_errors(), Store.open(storage, create=False) as store:
        return stored_spec(store.study(study)).trackers


def _tracked(
    study: str,
    storage: str,
    make: Callable[[Study, StudySpec], Tracker],
    follow: bool,
) -> int:
    """Write a study to a tracker; return how many of its trials have ended."""
    from hpo.cli.commands.signals import handle_stop_signals
    from hpo.runs.exports.tracking import track_study
    from hpo.runs.repository import stored_spec
    from storage.store import Store

    stopping = threading.Event()
    if follow:
        handle_stop_signals(stopping.set)
    with store_errors(), Store.open(storage, create=False) as store:
        found = store.study(study)
        with contextlib.closing(make(found, stored_spec(found))) as tracker:
            return track_study(store, found, tracker, follow=follow, stopped=stopping.wait)


def _counts(trials: dict[str, int]) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in trials.items() if count)
    return f"{sum(trials.values())} trials ({counts})" if counts else "no trials"
