"""Reads rows that may be damaged, by a bad sector or by edits that bypassed the store.

A read of many rows first converts them all at once. If that fails, it converts them one by one, leaves out invalid
rows, and logs them. A read of one row raises an error that gives the reason. `hpo db check` lists all damage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from sqlalchemy import Boolean, Connection, DateTime, Integer, Row, Select, Table, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

from storage.errors import DamagedRow
from storage.schema.column_types import FloatList, MeasuresType

_log = logging.getLogger(__name__)
_Record = TypeVar("_Record")
CAUSES = (LookupError, ValueError, TypeError, ArithmeticError, DamagedRow)
"""The errors that column types and records raise for a damaged value."""


_KINDS = ((Text, str), (Boolean, bool), (Integer, int), (DateTime, datetime))
_sound: set[tuple[Any, ...]] = set()  # tables, column names and value types that match


def check_kinds(table: Table, rows: Sequence[Row[Any]]) -> None:
    """Raise ValueError if a value does not have its column's type, which SQLite does not enforce.

    Columns that do not belong to the table may hold anything.
    """
    for row in rows:
        kinds = (table.name, row._fields, *map(type, row))
        if kinds not in _sound:  # most rows of a table have the same value types
            for name, value in zip(row._fields, row, strict=True):
                if value is not None and name in table.c:
                    _check_kind(name, table.c[name].type, value)
            _sound.add(kinds)


def _check_kind(name: str, kind: TypeEngine[Any], value: object) -> None:
    if isinstance(kind, (FloatList, MeasuresType)) or isinstance(value, Enum):
        return  # the column's type converts or refuses the value
    plain = kind.impl_instance if isinstance(kind, TypeDecorator) else kind
    wanted: Any = next((each for of, each in _KINDS if isinstance(plain, of)), (float, int))
    if not isinstance(value, wanted):
        raise ValueError(f"{name} holds {type(value).__name__}, which does not match its type")


@contextmanager
def named(what: str) -> Iterator[None]:
    """Convert the error raised by a damaged row to :class:`DamagedRow`."""
    try:
        yield
    except CAUSES as error:
        raise DamagedRow(what, error) from error


def left_out(what: str, cause: object) -> None:
    """Log which record was left out, and why."""
    _log.error("left out: %s", DamagedRow(what, cause))


def sound(
    connection: Connection,
    statement: Select[Any],
    table: Table,
    made: Callable[[Sequence[Any]], list[_Record]],
    *,
    page: Select[Any] | None = None,
    limit: int | None = None,
) -> list[_Record]:
    """Return the records that ``made`` creates from a statement's rows, leaving out damaged rows.

    ``table`` is the table of the rows; each row is read from it again by its id. ``page`` selects the statement's first
    ``limit`` rows: only these are returned, and the rows after them replace damaged ones, so that only the last page is
    short.
    """
    try:
        return made(connection.execute(statement if page is None else page).all())
    except CAUSES:
        pass
    records: list[_Record] = []
    for each in connection.execute(statement.with_only_columns(table.c.id)).scalars().all():
        if len(records) == limit:
            break
        try:
            records += made(connection.execute(statement.where(table.c.id == each)).all())
        except CAUSES as error:
            left_out(f"row {each} of {table.name}", error)
    return records
