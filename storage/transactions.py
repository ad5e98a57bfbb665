"""The base class of every part of the Store: transactions, guarded by a lease if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from storage.database import Database
from storage.records import Lease
from storage.statements import queue


class Transactions:
    """Reading and writing transactions on one database, used by all parts of the Store."""

    def __init__(self, database: Database, lease: Lease | None = None) -> None:
        self._database = database
        self._lease = lease

    @contextmanager
    def _read(self, *, single_statement: bool = False) -> Iterator[Connection]:
        with self._database.read(single_statement=single_statement) as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """Open a writing transaction that checks and locks the lease, if there is one, until its end."""
        with self._database.write() as connection:
            if self._lease is not None:
                queue.check(connection, self._lease)
            yield connection
