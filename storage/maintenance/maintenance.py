"""Database maintenance: upgrade, check, vacuum, backup, restore, prune; each call opens and closes the database.

All errors are from :mod:`storage.errors`. Backups and pruning are safe while others use the database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import text

from storage import migrations
from storage.database import NOTHING_STORED, Database
from storage.errors import Conflict, InvalidRecord, NoDatabaseFile, StoreUnavailable
from storage.maintenance.archive import load_archive, write_archive
from storage.maintenance.checks import CheckFinding, check_database, orphan_checkpoints
from storage.maintenance.retention import PrunedRows, prune_database
from storage.schema.tables import metadata

SQLITE_SIGNATURE = b"SQLite format 3\x00"
_SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
TIMEOUT_SECONDS = 30
_PAGES = 1024  # number of pages copied at a time, so that writers can proceed in between


@dataclass(frozen=True)
class DatabaseBackup:
    """A backup that was written or read, with its kind (``sqlite`` or ``archive``), schema and size."""

    path: Path
    form: str
    schema: str
    rows: int | None
    file_bytes: int


def upgrade(url: str) -> tuple[str | None, str]:
    """Create or upgrade the tables; return the schema revision before (None if there was none) and after."""
    with open_without_upgrade(url) as database:
        with database.read() as connection:
            before = migrations.revision(connection)
        with database.translated():
            migrations.upgrade(database.engine)
    return before, migrations.HEAD


def holds_our_tables(url: str) -> bool:
    """Return whether a database exists and holds the store's tables; other programs may use the same table names."""
    try:
        with open_without_upgrade(url, create=False) as database, database.read() as connection:
            return migrations.revision(connection) is not None
    except NoDatabaseFile:
        return False


def check(url: str, folder: Path | None = None) -> list[CheckFinding]:
    """Check everything without changing anything; see :func:`storage.maintenance.checks.check_database`."""
    with _existing(url) as database:
        return check_database(database, folder)


def vacuum(url: str) -> tuple[int, int]:
    """Free unused space and refresh the planner's statistics; return the database's bytes before and after.

    SQLite's file shrinks; others cannot write in the meantime, and the disk needs space for a copy. PostgreSQL keeps
    the space for new rows of its tables, and does not block others.
    """
    with _existing(url) as database:
        before = _size(database)
        with database.translated(), database.engine.connect() as connection:
            free = connection.execution_options(isolation_level="AUTOCOMMIT")
            if database.file is not None:
                driver = (
                    free.connection.cursor()
                )  # outside a transaction, which SQLAlchemy would start
                for statement in ("VACUUM", "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"):
                    driver.execute(statement)
            else:
                free.exec_driver_sql(
                    f"VACUUM (ANALYZE) {', '.join(table.name for table in metadata.sorted_tables)}"
                )
        return before, _size(database)


def backup(url: str, path: Path) -> DatabaseBackup:
    """Copy a consistent snapshot of the database while other processes use it.

    If ``path`` ends in ``.db`` or ``.sqlite``, SQLite's online backup makes the copy; any other name gives an archive,
    which can be restored into either SQLite or PostgreSQL. Raises :class:`Conflict` if the file exists.
    """
    if path.exists():
        raise Conflict(
            f"the backup must be a new file, but {path} exists; give another name, or remove it"
        )
    with _existing(url) as database:
        if path.suffix in _SQLITE_SUFFIXES:
            return _copy_sqlite(database, path)
        manifest = write_archive(database, path)
    return DatabaseBackup(path, "archive", manifest.schema, manifest.rows, path.stat().st_size)


def restore(url: str, path: Path, *, replace: bool = False) -> DatabaseBackup:
    """Fill an empty database from a backup of either kind, and upgrade it to the current schema.

    Either everything is restored or nothing. Raises :class:`Conflict` if rows exist, unless ``replace``.
    """
    with open_without_upgrade(url) as database:
        if _is_sqlite_file(path):
            return _restore_sqlite(database, path, replace=replace)
        manifest = load_archive(database, path, replace=replace)
    return DatabaseBackup(path, "archive", manifest.schema, manifest.rows, path.stat().st_size)


def prune(
    url: str, older_than: timedelta, *, keep_best: bool, dry_run: bool, folder: Path | None = None
) -> PrunedRows:
    """Remove old data that is not evidence, including files of trials: see :mod:`storage.maintenance.retention`."""
    with _existing(url) as database:
        with database.translated():
            migrations.upgrade(database.engine)
        before = datetime.now(UTC) - older_than
        with database.read() as connection:
            files = [] if folder is None else orphan_checkpoints(connection, folder)
        old = [file for file in files if datetime.fromtimestamp(file.stat().st_mtime, UTC) < before]
        pruned = prune_database(
            database, before, keep_best=keep_best, dry_run=dry_run, checkpoints=len(old)
        )
        for file in () if dry_run else old:
            file.unlink(missing_ok=True)
        return pruned


def _copy_sqlite(database: Database, path: Path) -> DatabaseBackup:
    source = database.file
    if source is None:
        raise InvalidRecord(
            f"{path} would be an SQLite file, but the database is PostgreSQL; name the file "
            f"{path.with_suffix('.zip').name} for an archive, which restores into both"
        )
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)  # the backup holds all contents of the database
        with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(partial)) as copy:
            live.backup(copy, pages=_PAGES, sleep=0.001)
            copy.execute("PRAGMA journal_mode = DELETE")  # a single file, without -wal and -shm
            schema = _schema_of(copy)
        partial.replace(path)
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(
            str(path),
            f"the backup cannot be written ({error})",
            "give a file in a writable folder, on a disk with free space",
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return DatabaseBackup(path, "sqlite", schema, None, path.stat().st_size)


def _restore_sqlite(database: Database, path: Path, *, replace: bool) -> DatabaseBackup:
    """Restore from a temporary copy, because opening the backup would write to it, and through an archive, to reuse its
    import.
    """
    with TemporaryDirectory() as folder:
        copied, archive = Path(folder, "copy.db"), Path(folder, "archive.zip")
        try:
            with (
                closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(copied)) as copy,
            ):
                source.backup(copy)
        except sqlite3.Error as error:
            raise InvalidRecord(f"{path} is damaged: {error}") from error
        with open_without_upgrade(str(copied)) as source_database:
            manifest = write_archive(source_database, archive)
        load_archive(database, archive, replace=replace)
    return DatabaseBackup(path, "sqlite", manifest.schema, manifest.rows, path.stat().st_size)


def _schema_of(copy: sqlite3.Connection) -> str:
    return str(copy.execute(f"SELECT version_num FROM {migrations.VERSION_TABLE}").fetchone()[0])


def _is_sqlite_file(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_SIGNATURE)) == SQLITE_SIGNATURE
    except FileNotFoundError:
        raise InvalidRecord(f"there is no file {path}; `hpo db backup {path}` writes one") from None
    except OSError as error:
        raise InvalidRecord(f"{path} cannot be read: {error.strerror or error}") from error


@contextmanager
def open_without_upgrade(url: str, *, create: bool = True) -> Iterator[Database]:
    """Open a database without upgrading its schema."""
    database = Database(url, timeout_seconds=TIMEOUT_SECONDS, create=create)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def _existing(url: str) -> Iterator[Database]:
    """Open a database that must hold the store's tables; a wrong path must not create a new file."""
    with open_without_upgrade(url, create=False) as database:
        with database.read() as connection:
            found = migrations.revision(connection)
        if found is None:
            raise StoreUnavailable(database.url, "it holds no tables of largebatch", NOTHING_STORED)
        yield database


def _size(database: Database) -> int:
    file = database.file
    if file is not None:
        return sum(
            each.stat().st_size
            for each in (file, file.with_name(f"{file.name}-wal"))
            if each.exists()
        )
    with database.read() as connection:
        names = [table.name for table in metadata.sorted_tables]
        return sum(
            connection.execute(
                text("SELECT pg_total_relation_size(CAST(:name AS regclass))"), {"name": name}
            ).scalar_one()
            for name in names
        )
