"""Transfers convergence points to and from PostgreSQL as bytes laid out by numpy, without a Python object per value.

Writing uses binary COPY into a temporary table of the session, then an upsert from that table. Reading returns each
column as one value, the bytes of its numbers. Every number takes the same number of bytes, but NULL takes none, so NULL
in the table is transferred as NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql

from storage.schema.column_types import NumberType
from storage.schema.tables import convergence

_DIALECT: Any = postgresql.dialect()  # type: ignore[no-untyped-call]
_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)  # signature, flags, length of the extension
_TRAILER = b"\xff\xff"
_ROWS = 50_000  # per block: 6.6 MB
_NAMES = tuple(column.name for column in convergence.c)
_NUMBERS = frozenset(column.name for column in convergence.c if isinstance(column.type, NumberType))
_TYPES = {column.name: column.type.compile(_DIALECT) for column in convergence.c}
_LAYOUT = np.dtype(
    [
        ("columns", ">i2"),
        *(
            field
            for name in _NAMES
            for field in ((f"{name} bytes", ">i4"), (name, ">f8" if name in _NUMBERS else ">i8"))
        ),
    ]
)

_CREATE = (
    "CREATE TEMPORARY TABLE IF NOT EXISTS incoming_convergence ("
    + ", ".join(f"{name} {'double precision' if name in _NUMBERS else 'bigint'}" for name in _NAMES)
    + ") ON COMMIT DELETE ROWS"
)
_COPY = f"COPY incoming_convergence ({', '.join(_NAMES)}) FROM STDIN (FORMAT BINARY)"
_UPSERT = (
    f"INSERT INTO convergence ({', '.join(_NAMES)}) SELECT "
    + ", ".join(
        f"NULLIF({name}, 'NaN')" if name in _NUMBERS else f"{name}::{_TYPES[name]}"
        for name in _NAMES
    )
    + " FROM incoming_convergence ON CONFLICT (trial_id, step) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _NAMES[2:])
)
_READ = (
    "SELECT "
    + ", ".join(
        f"string_agg({'float8send' if name in _NUMBERS else 'int8send'}({name}), '')"
        for name in _NAMES
    )
    + " FROM (SELECT "
    + ", ".join(
        f"COALESCE({name}, 'NaN')::float8 AS {name}"
        if name in _NUMBERS
        else f"{name}::int8 AS {name}"
        for name in _NAMES
    )
    + " FROM convergence WHERE trial_id = ANY(%s) ORDER BY trial_id, step) AS points"
)


def upsert(connection: Connection, table: Any) -> None:
    """Write rows, a structured array of shape (points,) with the table's column names and without duplicates."""
    connection.exec_driver_sql(_CREATE)
    driver: Any = connection.connection.cursor()
    with driver, driver.copy(_COPY) as copy:
        copy.write(_HEADER)
        for first in range(0, len(table), _ROWS):
            copy.write(_laid_out(table[first : first + _ROWS]))
        copy.write(_TRAILER)
    connection.exec_driver_sql(_UPSERT)


def read(connection: Connection, trial_ids: Sequence[int]) -> dict[str, Any]:
    """Return the columns of the given trials' points, each of shape (points,), by trial and step; integers are int64.

    Each column is one value with the bytes of its numbers, so the driver handles eleven values for any number of
    points. PostgreSQL allows 1 GB per value, or 134 million points.
    """
    driver: Any = connection.connection.cursor(binary=True)
    with driver:
        row = driver.execute(_READ, (list(trial_ids),)).fetchone()
    return {
        name: np.frombuffer(content or b"", ">f8" if name in _NUMBERS else ">i8")
        for name, content in zip(_NAMES, row, strict=True)
    }


def _laid_out(table: Any) -> bytes:
    rows = np.empty(len(table), _LAYOUT)
    rows["columns"] = len(_NAMES)
    for name in _NAMES:
        rows[f"{name} bytes"] = 8
        rows[name] = table[name]
    return rows.tobytes()
