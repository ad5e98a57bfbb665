"""Reading rows of which one may be damaged: by a bad sector, or by a hand below the store.

A read of many rows takes them at once, as it always did. Where that fails, it takes them one by one, leaves out the
one that is no record, and names it in the log; a read of one row says what is the matter. `hpo db check` names all.
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
from storage.schema.column_types import FloatList, Measures

_log = logging.getLogger(__name__)
_Record = TypeVar("_Record")
CAUSES = (LookupError, ValueError, TypeError, ArithmeticError, DamagedRow)
"""The errors that column types and records raise for a damaged value."""


_KINDS = ((Text, str), (Boolean, bool), (Integer, int), (DateTime, datetime))
_sound: set[tuple[Any, ...]] = set()  # a table, names of columns and kinds of values that agree


def check_kinds(table: Table, rows: Sequence[Row[Any]]) -> None:
    """Raise ValueError where a value is not of its column's kind, which SQLite does not ask for.

    Columns that are not the table's may hold anything.
    """
    for row in rows:
        kinds = (table.name, row._fields, *map(type, row))
        if kinds not in _sound:  # most rows of a table are alike
            for name, value in zip(row._fields, row, strict=True):
                if value is not None and name in table.c:
                    _check_kind(name, table.c[name].type, value)
            _sound.add(kinds)


def _check_kind(name: str, kind: TypeEngine[Any], value: object) -> None:
    if isinstance(kind, (FloatList, Measures)) or isinstance(value, Enum):
        return  # made, or refused, by the type of the column
    plain = kind.impl_instance if isinstance(kind, TypeDecorator) else kind
    wanted: Any = next((each for of, each in _KINDS if isinstance(plain, of)), (float, int))
    if not isinstance(value, wanted):
        raise ValueError(f"{name} holds {type(value).__name__}, which is not its type")


@contextmanager
def named(what: str) -> Iterator[None]:
    """Turn what a damaged row raises into :class:`DamagedRow`."""
    try:
        yield
    except CAUSES as error:
        raise DamagedRow(what, error) from error


def left_out(what: str, cause: object) -> None:
    """Say in the log what was left out."""
    _log.error("left out: %s", DamagedRow(what, cause))


def sound(
    connection: Connection,
    statement: Select[Any],
    table: Table,
    made: Callable[[Sequence[Any]], list[_Record]],
) -> list[_Record]:
    """The records that ``made`` makes of a statement's rows, without those that are damaged.

    ``table`` is that of which the rows are, each found again by its id.
    """

    try:
        return made(connection.execute(statement).all())
    except CAUSES:
        pass
    records: list[_Record] = []
    for each in connection.execute(statement.with_only_columns(table.c.id)).scalars().all():
        try:
            records += made(connection.execute(statement.where(table.c.id == each)).all())
        except CAUSES as error:
            left_out(f"row {each} of {table.name}", error)
    return records
