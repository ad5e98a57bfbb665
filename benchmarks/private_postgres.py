"""A private PostgreSQL server from the ``pgserver`` wheel, for benchmarks and tests; it is removed when they end.

It listens on a socket in a temporary folder. If started by root, it runs as the user ``pgserver``, which that wheel
creates, as PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

RECOVERY_SECONDS = 120.0


class PrivatePostgres:
    """A running server; databases are created empty or as copies of another."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._numbers = itertools.count(1)

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres@/{database}?host={self._server.get_postmaster_info().socket_dir}"

    def new_database(self, template: str = "template0") -> str:
        """Create a database as a copy of ``template``; return its name."""
        name = f"database_{next(self._numbers)}"
        self.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return name

    def drop(self, database: str) -> None:
        """Remove a database, and end the connections to it."""
        self.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database))
        )

    def execute(self, *statements: sql.Composable | str) -> None:
        """Run statements outside of transactions."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            for statement in statements:
                connection.execute(
                    statement if isinstance(statement, sql.Composable) else sql.SQL(statement)
                )

    def wait_for_commits(self, wait: bool) -> None:
        """Set whether commits wait for the disk, for connections from now on; they do by default."""
        self.execute(
            f"ALTER SYSTEM SET synchronous_commit = {'on' if wait else 'off'}",
            "SELECT pg_reload_conf()",
        )

    def stop(self) -> None:
        """Stop at once, as in a crash: open transactions are lost, committed ones are not."""
        _commands().pg_ctl(
            ["-w", "-m", "immediate", "stop"],
            pgdata=self._server.pgdata,
            user=self._server.system_user,
        )

    def start(self) -> None:
        """Restart after :meth:`stop`, with the existing databases.

        The wheel waits 10 s for it; on a busy machine the recovery after a crash takes longer, and continues meanwhile.
        """
        end = time.monotonic() + RECOVERY_SECONDS
        while True:
            try:
                self._server.ensure_postgres_running()
                return
            except (
                subprocess.TimeoutExpired,
                AssertionError,
            ):  # it asserts that the server is ready
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    @property
    def pid(self) -> int:
        """The process id of its main process, whose children answer connections."""
        return int(self._server.get_pid())


@contextmanager
def private_postgres(
    *, durable: bool = True, folder: Path | None = None
) -> Iterator[PrivatePostgres]:
    """Start a new server; with ``durable=False`` commits survive a crash of the server, but not of the machine.

    Its files go into ``folder``, or the folder for temporary files. Raises ImportError without the wheel.
    """
    server = _pgserver().get_server(
        Path(tempfile.mkdtemp(prefix="postgres-", dir=folder)), cleanup_mode="delete"
    )
    try:
        found = PrivatePostgres(server)
        if not durable:
            found.execute(
                "ALTER SYSTEM SET fsync = off",
                "ALTER SYSTEM SET full_page_writes = off",
                "SELECT pg_reload_conf()",
            )
        yield found
    finally:
        server.cleanup()


def _pgserver() -> Any:
    with warnings.catch_warnings():  # it warns if XDG_RUNTIME_DIR is not set
        warnings.simplefilter("ignore")
        import pgserver
    return pgserver


def _commands() -> Any:
    from pgserver import _commands

    return _commands
