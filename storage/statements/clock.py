"""The authoritative clock: the database's own, so that machines whose clocks differ agree on leases.

On PostgreSQL it is the server's clock at the beginning of the transaction. SQLite has no server, and its file is used
from one host, so it is the clock of that host.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, func, select

from storage.database import CLOCK, Clock


def now(connection: Connection) -> datetime:
    """Return the time, in UTC."""
    clock: Clock | None = connection.get_execution_options().get(CLOCK)
    if clock is not None:
        return clock()
    if connection.dialect.name == "postgresql":
        return connection.execute(select(func.now())).scalar_one().astimezone(UTC)
    return datetime.now(UTC)
