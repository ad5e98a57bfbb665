"""The authoritative clock: the database's own, so that machines with different clocks agree on leases.

On PostgreSQL, this is the server's clock at the start of the transaction. SQLite has no server and its file is used
from one host, so this is the clock of that host.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, func, select

from storage.database import CLOCK, Clock


def now(connection: Connection) -> datetime:
    """Return the current time in UTC."""
    clock: Clock | None = connection.get_execution_options().get(CLOCK)
    if clock is not None:
        return clock()
    if connection.dialect.name == "postgresql":
        return connection.execute(select(func.now())).scalar_one().astimezone(UTC)
    return datetime.now(UTC)
