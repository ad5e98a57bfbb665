"""The history of the schema, and the way from any point of it to the present one.

The revision is kept in a table of our own, not in Alembic's ``alembic_version``: Optuna and MLflow keep
theirs there, and a server's database may be shared with them.
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
HEAD = "0012"  # the newest revision; a test holds it to the files in versions/
_LOCK_KEY = 0x6C617262  # any number, as long as every process that upgrades takes the same


def upgrade(engine: Engine, *, create: bool = True) -> None:
    """Create the tables or bring them up to date, in one transaction; does nothing where they are.

    Raises :class:`SchemaTooNew` for a revision unknown here, :class:`StoreUnavailable` where another program
    uses our table names, and without ``create`` for a database without our tables.
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
    """A transaction that may change the schema, one process at a time; SQLite's foreign keys are off in it."""
    locking = engine.execution_options(sqlite_begin="IMMEDIATE")
    with locking.connect() as connection, _foreign_keys_off(connection), connection.begin():
        _lock(connection)
        yield connection


def revision(connection: Connection) -> str | None:
    """The schema's revision, or None in a database without our tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(
        text(f"SELECT version_num FROM {VERSION_TABLE}")
    ).scalar()
    return found


def differences(connection: Connection) -> list[str]:
    """How the tables that are there differ from those of this release, one line each; none for a sound database."""
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
    """Create the tables as of a revision, or bring them up to it, in the transaction of :func:`changing`.

    A new database gets the present tables at once, not revision by revision: tests hold the two to the same.
    """
    url, found = connection.engine.url.render_as_string(), revision(connection)
    if found is None:
        _refuse_foreign_tables(connection, url)
        if to == HEAD:
            _create_tables(connection)
            return
    # Alembic takes a tenth of a second to import, and most databases that are opened are up to date.
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
    """The tables of this release in a database without any, and its revision as Alembic writes it."""
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
    """The statements that make the tables in such a database; compiled once, which takes longer than to run them."""
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
    """One process upgrades at a time; SQLite's BEGIN IMMEDIATE has seen to that already."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})


@contextmanager
def _foreign_keys_off(connection: Connection) -> Iterator[None]:
    """SQLite changes a table by copying and dropping it, and the drop would cascade into its children."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver = (
        connection.connection.cursor()
    )  # not through SQLAlchemy: no effect once a transaction has begun
    driver.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys = ON")
