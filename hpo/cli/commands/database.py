"""`hpo db`: maintenance of a database."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpo.cli.commands import options

if TYPE_CHECKING:
    from storage.maintenance.retention import PrunedRows

UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".hpo"),
    show_default=True,
    help="Where checkpoints of unfinished trials are kept.",
)


class AgeParameter(click.ParamType):  # type: ignore[type-arg]  # no click before 8.4 takes an argument
    """A duration such as 12h, 90d or 8w."""

    name = "age"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        """Return the duration as a timedelta."""
        found = re.fullmatch(r"([0-9]{1,5})([hdw])", value) if isinstance(value, str) else None
        if found is None:
            self.fail(
                f"must be a number with a unit, such as 12h, 90d or 8w, but got {value!r}",
                parameter,
                context,
            )
        return timedelta(**{UNITS[found[2]]: int(found[1])})


@contextmanager
def store_errors() -> Iterator[None]:
    """Convert errors of the storage into errors of the service, which the command line prints."""
    from hpo.errors import ExportError, StorageUnavailableError, StudyNotFoundError
    from storage.errors import Conflict, InvalidRecord, NotFound, StoreError

    try:
        yield
    except NotFound as error:
        raise StudyNotFoundError(str(error)) from error
    except (Conflict, InvalidRecord) as error:
        raise ExportError(str(error)) from error
    except StoreError as error:
        raise StorageUnavailableError(str(error)) from error


@click.group()
def db() -> None:
    """Maintain a database: upgrade, check, vacuum, backup, restore, prune."""


@db.command()
@options.storage
@options.json_output
def upgrade(storage: str, as_json: bool) -> None:
    """Create the tables of a database, or bring them up to date.

    Every command that writes also upgrades. With a server, it is better to upgrade once before other processes start.
    """
    from storage.maintenance import maintenance

    with store_errors():
        before, after = maintenance.upgrade(storage)
    said = (
        f"the schema was already {after}, the newest"
        if before == after
        else f"upgraded the schema from {before} to {after}"
        if before
        else f"created the tables of schema {after}"
    )
    options.show(lambda: {"before": before, "after": after}, lambda: click.echo(said), as_json)


@db.command()
@_folder
@options.storage
@options.json_output
def check(folder: Path, storage: str, as_json: bool) -> None:
    """Check for damage to the file, references and schema, for lost curves and orphaned files. Nothing is changed.

    The exit code is 1 if a check failed; warnings do not count as failures.
    """
    from hpo.cli.output import findings
    from storage.maintenance import maintenance

    with store_errors():
        found = maintenance.check(storage, folder if folder.is_dir() else None)
    options.show(lambda: findings.plain(found), lambda: findings.show_findings(found), as_json)
    if any(each.level == "fail" for each in found):
        sys.exit(1)


@db.command()
@options.storage
@options.json_output
def vacuum(storage: str, as_json: bool) -> None:
    """Free the space of removed rows, and refresh the statistics of the query planner."""
    from storage.maintenance import maintenance

    with store_errors():
        before, after = maintenance.vacuum(storage)
    options.show(
        lambda: {"bytes_before": before, "bytes_after": after},
        lambda: click.echo(f"{_size(before)} before, {_size(after)} after"),
        as_json,
    )


@db.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@options.storage
@options.json_output
def backup(file: Path, storage: str, as_json: bool) -> None:
    """Write a consistent copy of the whole database to a new FILE, while other processes keep working.

    A FILE ending in .db is a copy of an SQLite database. Any other FILE, such as backup.zip, is an archive that can be
    restored into SQLite or PostgreSQL, and so can move data between the two.
    """
    from storage.maintenance import maintenance

    with store_errors():
        made = maintenance.backup(storage, file)
    rows = "" if made.rows is None else f", {made.rows:,} rows"
    options.show(
        lambda: {
            "file": str(made.path),
            "form": made.form,
            "schema": made.schema,
            "rows": made.rows,
            "bytes": made.file_bytes,
        },
        lambda: click.echo(
            f"wrote {made.path}: {_size(made.file_bytes)}{rows}, schema {made.schema}"
        ),
        as_json,
    )


@db.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--replace", is_flag=True, help="Remove what is in the database first.")
@options.storage
@options.json_output
def restore(file: Path, replace: bool, storage: str, as_json: bool) -> None:
    """Fill an empty database from a FILE written by `hpo db backup`, either completely or not at all.

    The backup may come from an earlier release or from the other kind of database.
    """
    from storage.maintenance import maintenance

    with store_errors():
        read = maintenance.restore(storage, file, replace=replace)
    options.show(
        lambda: {
            "file": str(read.path),
            "form": read.form,
            "schema": read.schema,
            "rows": read.rows,
        },
        lambda: click.echo(f"restored {read.rows:,} rows of schema {read.schema}"),
        as_json,
    )


@db.command()
@click.option(
    "--older-than",
    type=AgeParameter(),
    required=True,
    metavar="AGE",
    help="Age, such as 12h, 90d or 8w.",
)
@click.option("--keep-best", is_flag=True, help="Keep the curve of the best trial of every rung.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@_folder
@options.storage
@options.json_output
def prune(
    older_than: timedelta, keep_best: bool, dry_run: bool, folder: Path, storage: str, as_json: bool
) -> None:
    """Remove curves of ended studies that have not been used for AGE, and old events, workers and tokens.

    Trials and their results, forecasts, plans, outcomes and the last point of every curve are kept.
    """
    import dataclasses

    from storage.maintenance import maintenance

    with store_errors():
        pruned = maintenance.prune(
            storage,
            older_than,
            keep_best=keep_best,
            dry_run=dry_run,
            folder=folder if folder.is_dir() else None,
        )
    options.show(lambda: dataclasses.asdict(pruned), lambda: _show_pruned(pruned), as_json)


def _show_pruned(pruned: PrunedRows) -> None:
    verb = "would remove" if pruned.dry_run else "removed"
    click.echo(
        f"{verb} {pruned.points:,} points of {pruned.trials:,} trials, {pruned.events:,} events, "
        f"{pruned.tokens:,} tokens, {pruned.workers:,} workers and {pruned.checkpoints:,} checkpoints"
    )
    if pruned.points and not pruned.dry_run:
        click.echo("`hpo db vacuum` frees the space")


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return ""
