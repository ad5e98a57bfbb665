"""The history of the schema, and the upgrade from any revision to the current one.

The revision is stored in a table of this package, not in Alembic's ``alembic_version``, because Optuna and MLflow use
that table and may share a server's database with this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Dialect,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    create_mock_engine,
    inspect,
    text,
)

from storage.database import NOTHING_STORED
from storage.errors import SchemaTooNew, StoreUnavailable
from storage.schema import tables

VERSION_TABLE = "largebatch_schema"
HEAD = "0012"  # the newest revision; a test compares it with the files in versions/
_LOCK_KEY = 0x6C617262  # arbitrary, but the same for every process that upgrades


def upgrade(engine: Engine, *, create: bool = True) -> None:
    """Create or upgrade the tables in one transaction; do nothing if they are up to date.

    Raises :class:`SchemaTooNew` for a revision that is newer than this release, and :class:`StoreUnavailable` if
    another program uses the store's table names or, without ``create``, if the database does not have the store's
    tables.
    """
    with engine.begin() as connection:
        found = revision(connection)
    if found == HEAD:
        return
    if found is None and not create:
        raise StoreUnavailable(
            engine.url.render_as_string(), "nothing is stored in it yet", NOTHING_STORED
        )
    with changing(engine) as connection:
        bring_to(connection)


@contextmanager
def changing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that may change the schema, in one process at a time, with SQLite's foreign keys off."""
    locking = engine.execution_options(sqlite_begin="IMMEDIATE")
    with locking.connect() as connection, _foreign_keys_off(connection), connection.begin():
        _lock(connection)
        yield connection


def revision(connection: Connection) -> str | None:
    """Return the schema's revision, or None in a database without the store's tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(
        text(f"SELECT version_num FROM {VERSION_TABLE}")
    ).scalar()
    return found


def differences(connection: Connection) -> list[str]:
    """Return how the existing tables differ from this release's, one line per difference; empty if they match."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    ours = {VERSION_TABLE, *tables.metadata.tables}
    context = MigrationContext.configure(
        connection,
        opts={
            "version_table": VERSION_TABLE,
            "compare_type": True,
            "include_name": lambda name, kind, _: kind != "table" or name in ours,
        },
    )  # the database may be shared
    found = compare_metadata(context, tables.metadata)
    return [
        " ".join(map(str, change[:4] if isinstance(change, tuple) else change[0][:4]))
        for change in found
    ]


def bring_to(connection: Connection, to: str = HEAD) -> None:
    """Create the tables as of a revision, or upgrade them to it, in the transaction of :func:`changing`.

    A new database gets the current tables directly, not revision by revision; tests verify that the result is the same.
    """
    url, found = connection.engine.url.render_as_string(), revision(connection)
    if found is None:
        _refuse_foreign_tables(connection, url)
        if to == HEAD:
            _create_tables(connection)
            return
    # Alembic takes a tenth of a second to import, and most databases are already up to date.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaTooNew(url, found, HEAD)
    command.upgrade(config, to)


def _create_tables(connection: Connection) -> None:
    """Create the tables of this release in an empty database, and record their revision as Alembic does."""
    for statement in _statements(connection.dialect):
        connection.exec_driver_sql(statement)
    number = Column("version_num", String(32), nullable=False)
    version = Table(
        VERSION_TABLE,
        MetaData(),
        number,
        PrimaryKeyConstraint(number, name=f"{VERSION_TABLE}_pkc"),
    )
    version.create(connection)
    connection.execute(version.insert().values(version_num=HEAD))


def _statements(dialect: Dialect) -> list[str]:
    """Return the statements that create the tables. They are compiled once, because compiling takes longer than running
    them.
    """
    if dialect.name not in _made:
        made: list[str] = []

        def keep(statement: Any, _: object) -> None:
            made.append(str(statement.compile(dialect=dialect)))

        mock = create_mock_engine(f"{dialect.name}+{dialect.driver}://", keep)
        tables.metadata.create_all(mock, checkfirst=False)
        _made[dialect.name] = made
    return _made[dialect.name]


_made: dict[str, list[str]] = {}


def _refuse_foreign_tables(connection: Connection, url: str) -> None:
    taken = sorted(set(tables.metadata.tables) & set(inspect(connection).get_table_names()))
    if taken:
        raise StoreUnavailable(
            url,
            f"another program uses it, with tables named {', '.join(taken)}",
            "give a new file or database",
        )


def _lock(connection: Connection) -> None:
    """Let only one process upgrade at a time; on SQLite, BEGIN IMMEDIATE already ensures this."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})


@contextmanager
def _foreign_keys_off(connection: Connection) -> Iterator[None]:
    """Disable foreign keys: SQLite alters a table by copying and dropping it, and the drop would cascade."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver = (
        connection.connection.cursor()
    )  # not through SQLAlchemy, as the pragma has no effect inside a transaction
    driver.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys = ON")
