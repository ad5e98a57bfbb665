"""`hpo worker`: takes studies from the queue."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from hpo.cli.commands import options
from hpo.cli.commands.signals import handle_stop_signals
from hpo.study.restart_limits import STUDY_STARTS


class _Bytes(click.ParamType):  # type: ignore[type-arg]  # no click before 8.2 takes an argument
    """A number of bytes, which may be given as 512M, 64G or 2T (powers of 1000)."""

    name = "size"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        """Return the number of bytes."""
        found = re.fullmatch(r"([1-9][0-9]{0,17})([kMGT]?)", str(value))
        if found is None:
            self.fail(
                f"must be a number of bytes such as 512M, 64G or 2T, but got {value!r}",
                parameter,
                context,
            )
        return int(found[1]) * 1000 ** " kMGT".index(found[2] or " ")


BYTES = _Bytes()


@click.command()
@options.storage
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".hpo"),
    show_default=True,
    help="Where checkpoints and plans are kept; workers that share it continue from each "
    "other's checkpoints.",
)
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    help="Address of a running Ray cluster; by default, Ray starts on this machine.",
)
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    help="Cores of this machine to use for trials; default: all.",
)
@click.option("--name", default="", help="Unique name of this worker; default: host:pid.")
@click.option("--once", is_flag=True, help="Exit after one study.")
@click.option("--drain", is_flag=True, help="Exit when the queue is empty.")
@click.option(
    "--per-owner",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run at most N studies of one user at a time; the others stay in the queue.",
)
@click.option(
    "--poll-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds between polls of an empty queue.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(min=1),
    default=30.0,
    show_default=True,
    help="Lease time in seconds: another worker takes over the study after this long without a "
    "heartbeat.",
)
@click.option(
    "--storage-retry",
    "--storage-patience",  # the name in earlier releases
    "storage_retry_seconds",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long results are kept in memory, in seconds, while the database is unavailable.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(min=1),
    default=STUDY_STARTS,
    show_default=True,
    help="Number of starts after which an unfinished study counts as failed.",
)
@click.option(
    "--data-folder",
    "data_folders",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    multiple=True,
    help="Fail studies whose data is outside these folders; may be repeated.",
)
@click.option(
    "--plugin",
    "plugins",
    metavar="PACKAGE",
    multiple=True,
    help="A package whose plug-ins studies may use; may be repeated; default: none.",
)
@click.option(
    "--tracker",
    "trackers",
    metavar="NAME",
    multiple=True,
    help="A tracker that studies may use (wandb, mlflow, ...); may be repeated; default: none.",
)
@click.option(
    "--program-environment",
    "program_variables",
    metavar="NAME",
    multiple=True,
    help="An environment variable to pass on to programs besides the usual ones, such as "
    "WANDB_*; may be repeated.",
)
@click.option(
    "--program-wrapper",
    metavar="WORDS",
    help="Prefix of a program's command, to run it as another user or in a container.",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=BYTES,
    metavar="SIZE",
    help="Memory limit for all processes of a study together, such as 64G; default: 90 % of "
    "the machine's memory.",
)
@click.option(
    "--disk",
    "disk_bytes",
    type=BYTES,
    metavar="SIZE",
    help="Disk limit for a study below --folder; default: 100G.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the log on stderr.",
)
def worker(
    storage: str,
    folder: Path,
    log_format: str,
    plugins: tuple[str, ...],
    program_variables: tuple[str, ...],
    program_wrapper: str | None,
    **given: object,
) -> None:
    """Take studies from the queue of a database and run them one after another.

    SIGTERM or Ctrl-C puts the current study back into the queue and stops the worker; a second signal stops it at once.
    Modules that a study uses and relative data paths are looked up in the current folder.
    """
    from hpo.runs.study_limits import StudyLimits, bound_process_memory
    from hpo.service import logs
    from hpo.service.worker import StudyWorker, WorkerOptions
    from hpo.study.trackers import check_tracker_names
    from search_spaces.plugins import TAKEN
    from trainers.workloads.program import secrets

    logs.set_up(log_format)
    if plugins or TAKEN not in os.environ:  # a server's own worker inherits its list
        os.environ[TAKEN] = ",".join(plugins)
    # child processes inherit the variables that programs may see, but not the storage's URL
    os.environ[secrets.ALLOWED] = ",".join((*secrets.DEFAULT_ALLOWED, *program_variables))
    os.environ.pop("HPO_STORAGE", None)
    if program_wrapper is not None:
        os.environ[secrets.WRAPPER] = program_wrapper
    try:
        check_tracker_names(given["trackers"])  # type: ignore[arg-type]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--tracker") from error
    worker_options = WorkerOptions(storage=storage, folder=folder.absolute(), **given)  # type: ignore[arg-type]
    limits = StudyLimits.of(worker_options.memory_bytes, worker_options.disk_bytes)
    bound_process_memory(limits)
    running = StudyWorker(worker_options)
    os.environ.setdefault(
        "TUNE_DISABLE_SIGINT_HANDLER", "1"
    )  # otherwise, Ray Tune would handle Ctrl-C
    handle_stop_signals(running.stop)
    # Ray reports dead worker processes on stdout
    with contextlib.redirect_stdout(sys.stderr):
        running.run()
