"""A whole database as one portable file, which can be restored into either SQLite or PostgreSQL.

The file is a zip archive. ``manifest.json`` holds the schema revision and the columns and row counts of every table.
Each table is one member in the text format of PostgreSQL's COPY (:mod:`storage.maintenance.copy_text`). The manifest is
written last, and the file gets its final name when it is complete, so an archive under its final name is always
complete. Tables are read and written in blocks, so a table may be larger than the available memory.
"""

from __future__ import annotations

import itertools
import json
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text

from storage import migrations
from storage.database import Database
from storage.errors import Conflict, InvalidRecord, SchemaTooNew, StoreUnavailable
from storage.maintenance.copy_text import Kind, column_kind, read_copied_rows, write_copied_rows
from storage.schema.tables import metadata

FORMAT = "largebatch archive"
VERSION = 1
_MANIFEST = "manifest.json"
_BLOCK = 1 << 20
# exceptions that reading a member of a damaged zip may raise
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
)
_ROWS = 10_000


@dataclass(frozen=True)
class ArchivedTable:
    """One table of an archive."""

    name: str
    columns: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class ArchiveManifest:
    """The contents of an archive: its tables, parents before children, and the schema revision."""

    schema: str
    made_at: str
    tables: tuple[ArchivedTable, ...]

    @property
    def rows(self) -> int:
        """The total number of rows in all tables."""
        return sum(table.rows for table in self.tables)


def write_archive(database: Database, path: Path) -> ArchiveManifest:
    """Write a consistent snapshot of all tables, while other processes continue to write.

    Raises :class:`StoreUnavailable` if the database has none of the store's tables, or if the file cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)  # the archive holds all contents of the database
        with (
            database.read() as connection,
            zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as out,
        ):
            manifest = ArchiveManifest(
                _revision(connection, database.url),
                datetime.now(UTC).isoformat(timespec="seconds"),
                tuple(_write_table(connection, out, name) for name in _tables(connection)),
            )
            out.writestr(
                _MANIFEST,
                json.dumps({"format": FORMAT, "version": VERSION, **asdict(manifest)}, indent=1),
            )
        partial.replace(path)
    except OSError as error:
        raise StoreUnavailable(
            str(path),
            f"the archive cannot be written ({error.strerror or error})",
            "give a file in a writable folder, on a disk with free space",
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return manifest


def read_manifest(path: Path) -> ArchiveManifest:
    """Return the manifest of an archive; raise :class:`InvalidRecord` for a file that is truncated or not
    an archive.
    """
    try:
        with zipfile.ZipFile(path) as file:
            plain = json.loads(file.read(_MANIFEST))
        if plain["format"] != FORMAT or plain["version"] > VERSION:
            raise InvalidRecord(
                f"{path} must be a {FORMAT} of version {VERSION} or earlier, but is "
                f"{plain['format']!r} of version {plain['version']}; upgrade largebatch"
            )
        tables = tuple(
            ArchivedTable(each["name"], tuple(each["columns"]), each["rows"])
            for each in plain["tables"]
        )
        _check_manifest(plain["schema"], tables)
        for table in tables:
            if table.name not in metadata.tables:
                raise InvalidRecord(
                    f"{path} must hold tables of largebatch, but holds {table.name!r}"
                )
        return ArchiveManifest(plain["schema"], plain["made_at"], tables)
    except FileNotFoundError:
        raise InvalidRecord(f"there is no file {path}; `hpo db backup {path}` writes one") from None
    except (*_UNREADABLE, KeyError, TypeError, ValueError, OSError) as error:
        if isinstance(error, InvalidRecord):
            raise
        raise InvalidRecord(
            f"{path} must be an archive that `hpo db backup` wrote, but it is not one, or is "
            f"incomplete ({error})"
        ) from error


def _check_manifest(schema: object, tables: Sequence[ArchivedTable]) -> None:
    """Raise ValueError for a manifest that :func:`write_archive` cannot have written."""
    if not isinstance(schema, str) or not re.fullmatch(r"\d{4}", schema) or schema < "0001":
        raise ValueError(f"its schema must be four digits from 0001, but is {schema!r}")
    if len({table.name for table in tables}) < len(tables):
        raise ValueError("it names a table twice")
    for table in tables:
        if not all(isinstance(each, str) for each in table.columns):
            raise ValueError(f"the columns of {table.name!r} must have names")


def load_archive(database: Database, path: Path, *, replace: bool = False) -> ArchiveManifest:
    """Fill a database from an archive, all or nothing, and upgrade it to the current schema.

    Raises :class:`Conflict` if rows exist already, unless ``replace``; :class:`SchemaTooNew` for an archive from a
    newer release; and :class:`InvalidRecord` for a damaged one.
    """
    manifest = read_manifest(path)
    if manifest.schema > migrations.HEAD:
        raise SchemaTooNew(str(path), manifest.schema, migrations.HEAD)
    with (
        database.translated(),
        migrations.changing(database.engine) as connection,
        zipfile.ZipFile(path) as file,
    ):
        _make_room(connection, database.url, replace=replace)
        migrations.bring_to(connection, manifest.schema)
        try:
            for table in manifest.tables:
                _load_table(connection, file, table)
            migrations.bring_to(connection)
            if broken := broken_references(connection):
                raise InvalidRecord(broken[0])
        except (*_UNREADABLE, OSError, KeyError, InvalidRecord) as error:
            raise InvalidRecord(
                f"{path} is damaged: {error}; nothing was restored; use another backup"
            ) from error
    return manifest


def broken_references(connection: Connection) -> list[str]:
    """Describe rows that reference missing rows, one line per table; PostgreSQL never allows such rows."""
    if connection.dialect.name != "sqlite":
        return []
    found = Counter(
        (row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check")
    )
    return [
        f"{count} rows of {child} refer to missing rows of {parent}"
        for (child, parent), count in found.items()
    ]


def _revision(connection: Connection, url: str) -> str:
    found = migrations.revision(connection)
    if found is None:
        raise StoreUnavailable(
            url, "it holds no tables of largebatch", "check the URL, or run `hpo db upgrade`"
        )
    return found


def _tables(connection: Connection) -> list[str]:
    there = set(inspect(connection).get_table_names())
    return [table.name for table in metadata.sorted_tables if table.name in there]


def _columns(connection: Connection, table: str) -> dict[str, Kind]:
    return {
        column["name"]: column_kind(column["type"])
        for column in inspect(connection).get_columns(table)
    }


def _write_table(connection: Connection, out: zipfile.ZipFile, name: str) -> ArchivedTable:
    columns, rows = _columns(connection, name), 0
    lines = _written_by_sqlite if connection.dialect.name == "sqlite" else _written_by_postgresql
    with out.open(f"{name}.tsv", "w", force_zip64=True) as member:
        for block in lines(connection, name, columns):
            rows += block.count(b"\n")
            member.write(block)
    return ArchivedTable(name, tuple(columns), rows)


def _written_by_sqlite(
    connection: Connection, name: str, columns: dict[str, Kind]
) -> Iterator[bytes]:
    cursor: Any = connection.exec_driver_sql(f"SELECT {_names(columns)} FROM {name}").cursor
    lines = write_copied_rows(iter(cursor), list(columns.values()))
    while block := b"".join(itertools.islice(lines, _ROWS)):
        yield block


def _written_by_postgresql(
    connection: Connection, name: str, columns: dict[str, Kind]
) -> Iterator[bytes]:
    for setting in ("timezone = 'UTC'", "datestyle = 'ISO, YMD'", "client_encoding = 'UTF8'"):
        connection.execute(text(f"SET LOCAL {setting}"))
    with (
        _cursor(connection) as cursor,
        cursor.copy(f"COPY {name} ({_names(columns)}) TO STDOUT") as copy,
    ):
        yield from map(bytes, copy)


def _load_table(connection: Connection, file: zipfile.ZipFile, table: ArchivedTable) -> None:
    columns = _columns(connection, table.name)
    surplus = [name for name in table.columns if name not in columns]
    if surplus:
        raise InvalidRecord(
            f"{table.name} has no column {', '.join(surplus)}: the archive does not match its "
            f"schema"
        )
    with file.open(f"{table.name}.tsv") as member:
        if connection.dialect.name == "sqlite":
            kinds = [columns[name] for name in table.columns]
            rows = _into_sqlite(
                connection, table, read_copied_rows(iter(member), kinds, f"{table.name}.tsv")
            )
        else:
            rows = _into_postgresql(connection, table, iter(lambda: member.read(_BLOCK), b""))
    if rows != table.rows:
        raise InvalidRecord(
            f"{table.name} must have {table.rows} rows, but the archive holds {rows}"
        )


def _into_sqlite(
    connection: Connection, table: ArchivedTable, rows: Iterator[tuple[Any, ...]]
) -> int:
    marks = ", ".join("?" * len(table.columns))
    statement, count = f"INSERT INTO {table.name} ({_names(table.columns)}) VALUES ({marks})", 0
    while block := list(itertools.islice(rows, _ROWS)):
        connection.exec_driver_sql(statement, block)
        count += len(block)
    return count


def _into_postgresql(connection: Connection, table: ArchivedTable, blocks: Iterator[bytes]) -> int:
    connection.execute(text("SET LOCAL client_encoding = 'UTF8'"))
    with _cursor(connection) as cursor:
        try:
            with cursor.copy(f"COPY {table.name} ({_names(table.columns)}) FROM STDIN") as copy:
                for block in blocks:
                    copy.write(block)
        except connection.dialect.loaded_dbapi.Error as error:
            raise InvalidRecord(
                f"{table.name} cannot be restored: {str(error).splitlines()[0]}"
            ) from error
        rows = int(cursor.rowcount)
    if "id" in table.columns:  # otherwise the next inserted row would get an id that is taken
        connection.execute(
            text(
                f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), max(id)) "
                f"FROM {table.name} HAVING count(*) > 0"
            )
        )
    return rows


def _cursor(connection: Connection) -> Any:
    return connection.connection.cursor()


def _names(columns: Sequence[str] | dict[str, Kind]) -> str:
    return ", ".join(f'"{name}"' for name in columns)


def _make_room(connection: Connection, url: str, *, replace: bool) -> None:
    """Drop the store's tables, which must be empty or replaceable; the archive may have an earlier schema."""
    tables = _tables(connection)
    for table in tables:
        if not replace and connection.execute(text(f"SELECT 1 FROM {table} LIMIT 1")).first():
            raise Conflict(
                f"{url} must be empty to restore into, but its table {table} has rows; give a "
                f"new database, or --replace, which removes existing rows"
            )
    if migrations.revision(connection) is not None:
        for table in [*reversed(tables), migrations.VERSION_TABLE]:
            connection.execute(text(f"DROP TABLE {table}"))
