"""Database connections: turns a URL into an engine whose transactions are safe across threads and processes.

On SQLite, WAL lets readers continue while another process writes. A writing transaction takes the lock when it starts
(BEGIN IMMEDIATE): a transaction that reads first and then wants to write would fail immediately, without waiting, if
another process wrote in between.
"""

from __future__ import annotations

import os
import select
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, exc, make_url
from sqlalchemy.dialects import postgresql, sqlite

from storage.errors import (
    Conflict,
    DamagedRow,
    InvalidRecord,
    NoDatabaseFile,
    StoreError,
    StoreUnavailable,
)

Clock = Callable[[], datetime]
DATABASES = ("sqlite", "postgresql")
NOTHING_STORED = "check the path or URL; running or submitting a study creates a new database"
SPARE_BYTES = 32_000_000
"""Disk space that a server reserves next to an SQLite database, so that studies can be deleted even when the disk is
full.
"""
CLOCK = "largebatch_clock"
"""Execution option of a connection that holds a replacement clock for tests."""
_IDLE_SECONDS = 60  # between two statements of a transaction; the store never waits that long
_KEPT_CONNECTIONS = 20  # per process, opened on demand; PostgreSQL accepts a hundred by default
_PACKAGES = {"psycopg": "'psycopg[binary]'", "psycopg2": "psycopg2-binary"}


class Database:
    """An engine with reading and writing transactions; driver errors are converted to :class:`StoreError`."""

    def __init__(
        self, url: str, *, timeout_seconds: float, create: bool = True, clock: Clock | None = None
    ) -> None:
        parsed = _parse(url)
        if not create:
            _check_file(parsed, url)
        elif parsed.get_backend_name() == "sqlite":
            _make_private(Path(parsed.database or ""))
        self.url = parsed.render_as_string(hide_password=True)
        self.engine = _engine(_with_driver(parsed), timeout_seconds).execution_options(
            **{CLOCK: clock}
        )
        self._driver: Any = self.engine.dialect.dbapi
        self._reader, self._writer = (
            self.engine,
            self.engine.execution_options(sqlite_begin="IMMEDIATE"),
        )
        self._glance = self.engine
        if self.engine.dialect.name == "postgresql":  # else each statement sees its own snapshot
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ")
            self._glance = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._open = True

    @contextmanager
    def read(self, *, single_statement: bool = False) -> Iterator[Connection]:
        """Open a transaction that sees one consistent state of the database.

        With ``single_statement``, no transaction is needed for that: without BEGIN and COMMIT, the statement takes one
        round trip to PostgreSQL instead of three.
        """
        reader = self._glance if single_statement else self._reader
        with self.translated(), self._usable(reader).begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that commits at its end or is rolled back; on SQLite it holds the write lock."""
        with self.translated(), self._usable(self._writer).begin() as connection:
            yield connection

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Convert errors from SQLAlchemy and the driver to the store's own errors."""
        try:
            yield
        except exc.SQLAlchemyError as error:
            raise _translate(error, self.url) from error
        except self._driver.Error as error:  # raised by direct calls to the driver
            _tell_damaged_text(error)
            known = exc.DBAPIError.instance(
                None, None, error, self._driver.Error, dialect=self.engine.dialect
            )
            raise _translate(known, self.url) from error

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database; None for a server or an in-memory database."""
        name = self.engine.url.database
        if self.engine.dialect.name != "sqlite" or not name or name == ":memory:":
            return None
        return Path(name)

    def keep_spare(self) -> None:
        """Reserve disk space for an SQLite database, in a file next to it, if there is enough space.

        SQLite needs some disk space even to delete rows.
        """
        spare = self._spare()
        if spare is None or spare.exists():
            return
        try:
            if shutil.disk_usage(spare.parent).free < 2 * SPARE_BYTES:
                return
            with spare.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, SPARE_BYTES)
        except OSError:
            spare.unlink(missing_ok=True)

    def give_spare(self) -> bool:
        """Release the space reserved by :meth:`keep_spare`; return False if none is reserved."""
        spare = self._spare()
        if spare is None or not spare.exists():
            return False
        spare.unlink()
        return True

    def _spare(self) -> Path | None:
        file = self.file
        return file and file.with_name(f"{file.name}-spare")

    def close(self) -> None:
        """Close all connections; closing twice is harmless."""
        self._open = False
        self.engine.dispose()

    def _usable(self, engine: Engine) -> Engine:
        if not self._open:
            raise StoreUnavailable(
                self.url, "this store was closed", "open it again with Store.open"
            )
        return engine


def insert_into(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that supports ON CONFLICT, in the dialect of the connection."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def _parse(url: str) -> URL:
    """Parse the URL; a bare path means SQLite. The error for an unusable URL says how to correct it."""
    text = str(url).strip()
    if not text:
        raise StoreUnavailable(text, "the URL is empty", "give a path such as hpo.db, or a URL")
    if "://" not in text:
        parsed = URL.create("sqlite", database=str(Path(text).expanduser()))
    else:
        try:
            parsed = make_url(
                text.replace("postgres://", "postgresql://", 1)
                if text.startswith("postgres:")
                else text
            )
        except (exc.ArgumentError, ValueError) as error:
            raise StoreUnavailable(
                text,
                "this is not a database URL",
                "write sqlite:///PATH or postgresql://USER@HOST/DATABASE",
            ) from error
    if parsed.get_backend_name() not in DATABASES:
        raise StoreUnavailable(
            text,
            f"{parsed.get_backend_name()!r} is not supported",
            f"the supported databases are {' and '.join(DATABASES)}",
        )
    if parsed.get_backend_name() == "sqlite":
        _check_path(parsed, text)
    return parsed


def _with_driver(url: URL) -> URL:
    """Use psycopg 3, the installed driver, unless the URL names another driver."""
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _check_path(url: URL, text: str) -> None:
    if not url.database or url.database == ":memory:":
        raise StoreUnavailable(
            text,
            "a database in memory cannot be shared between threads and processes",
            "give the path of a file, such as sqlite:///hpo.db",
        )
    path = Path(url.database)
    if not path.parent.is_dir():
        raise StoreUnavailable(
            text, f"the folder {path.parent} does not exist", f"create it: mkdir -p {path.parent}"
        )
    if path.is_dir():
        raise StoreUnavailable(
            text, "the path is a folder", f"give a file in it, such as {path / 'hpo.db'}"
        )


def _check_file(url: URL, text: str) -> None:
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise NoDatabaseFile(text, f"there is no file {url.database}", NOTHING_STORED)


def _make_private(path: Path) -> None:
    """Create a new database file readable only by its user, unless ``HPO_UMASK`` says otherwise (octal, as umask(1)).

    SQLite gives the files next to it the same permissions, and reports an error if the folder is not writable.
    """
    try:
        mask = int(os.environ.get("HPO_UMASK", "") or "077", 8)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o666 & ~mask))
    except (OSError, ValueError):
        return


def _engine(url: URL, timeout_seconds: float) -> Engine:
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_engine(url, connect_args={"timeout": timeout_seconds})
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            event.listen(
                engine,
                "handle_error",
                lambda context: _tell_damaged_text(context.original_exception),
            )
            return engine
        return _postgresql(url, timeout_seconds)
    except exc.NoSuchModuleError as error:
        raise StoreUnavailable(
            str(url),
            f"there is no driver {url.drivername!r}",
            "write sqlite:///PATH or postgresql://USER@HOST/DATABASE",
        ) from error
    except ImportError as error:
        package = _PACKAGES.get(url.get_driver_name(), error.name)
        raise StoreUnavailable(
            str(url),
            f"the driver {url.get_driver_name()!r} cannot be loaded ({error})",
            f"install it: pip install {package}",
        ) from error


def _postgresql(url: URL, timeout_seconds: float) -> Engine:
    """Create an engine that reconnects after losing the server, and make the server end transactions of lost clients.

    Otherwise, a machine that dies during a transaction would hold its locks until a network timeout, hours later.
    """
    engine = create_engine(
        url,
        pool_size=_KEPT_CONNECTIONS,
        max_overflow=0,
        pool_use_lifo=True,  # the most recently used connection has prepared statements
        connect_args={
            "connect_timeout": ceil(timeout_seconds),
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
        },
    )
    settings = {
        "lock_timeout": f"{ceil(timeout_seconds * 1000)}ms",
        "idle_in_transaction_session_timeout": f"{_IDLE_SECONDS}s",
    }

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, record: object) -> None:  # noqa: ARG001
        with connection.cursor() as cursor:
            for name, value in settings.items():
                cursor.execute(f"SET {name} = '{value}'")
        connection.commit()

    @event.listens_for(engine, "checkout")
    def check_open(connection: Any, record: object, proxy: object) -> None:  # noqa: ARG001
        if _has_ended(connection):
            raise exc.DisconnectionError  # the pool reconnects

    return engine


def _has_ended(connection: Any) -> bool:
    """Return whether PostgreSQL has closed an idle connection: if so, data can be read although no query was sent.

    This check costs one system call; a test statement (``pool_pre_ping``) would cost a round trip each time.
    """
    if connection.closed:
        return True
    resting = select.poll()
    resting.register(connection.fileno(), select.POLLIN)
    return bool(resting.poll(0))


def _set_up_sqlite(connection: Any, record: object) -> None:  # noqa: ARG001
    connection.isolation_level = (
        None  # transactions begin in `_begin_sqlite`, not implicitly in the driver
    )
    connection.execute("PRAGMA foreign_keys = ON")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    # File systems without shared memory (some NFS, Lustre) keep a rollback journal, which requires FULL.
    connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'FULL'}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(
        f"BEGIN {connection.get_execution_options().get('sqlite_begin', 'DEFERRED')}"
    )


def _tell_damaged_text(error: BaseException) -> None:
    """Report text that is not valid UTF-8 as damage to its row, not to the database."""
    if "decode to UTF-8" in str(error):
        raise DamagedRow("a row", "it holds text that is not UTF-8") from error


def _translate(error: exc.SQLAlchemyError, url: str) -> StoreError:
    cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    if isinstance(error, exc.IntegrityError):
        if "unique" in cause.lower():
            return Conflict(f"this exists already: {cause}")
        return InvalidRecord(f"a constraint of the tables is violated: {cause}")
    if isinstance(error, _LOST) or type(error) is exc.DatabaseError:
        return StoreUnavailable(url, cause, _way_out(cause))
    return InvalidRecord(f"the database does not accept this value: {cause}")


_LOST = (exc.OperationalError, exc.TimeoutError, exc.InternalError)
_WAYS_OUT = {
    "locked": "another process is writing: wait for it, or open with a larger timeout_seconds",
    "readonly": "make the file and its folder writable, or give another path",
    "unable to open": "check that the path is right and that you may read and write the file and its folder",
    "not a database": "give the path of a new file, or of a database created by largebatch",
    "malformed": "the file is damaged: restore a copy, or give the path of a new file",
    "lock timeout": "another process is writing: wait for it, or open with a larger timeout_seconds",
    "terminating connection": "the server was stopped: once it is back, the next call reconnects",
    "closed the connection": "the server was stopped: once it is back, the next call reconnects",
    "starting up": "wait until the server has started",
    "shutting down": "start the server again",
    "no such file": "start the server, or correct host and port in the URL",
    "disk i/o": "check that the disk is healthy and has space, and that no limit or quota "
    "keeps the file from growing",
    "full": "free some space, or give a path on another disk",
    "refused": "start the server, or correct host and port in the URL",
    "password": "correct the user and password in the URL",
    "does not exist": "create the database on the server, or correct its name in the URL",
}


def _way_out(cause: str) -> str:
    for sign, way in _WAYS_OUT.items():
        if sign in cause.lower():
            return way
    return "check the URL and that the database can be reached"
