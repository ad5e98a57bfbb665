"""Reading rows of which one may be damaged: by a bad sector, or by a hand below the store.

A read of many rows takes them at once, as it always did. Where that fails, it takes them one by one, leaves out the
one that is no record, and names it in the log; a read of one row says what is the matter. `hpo db check` names all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, Table

from storage.errors import DamagedRow

_log = logging.getLogger(__name__)
_Record = TypeVar("_Record")
CAUSES = (LookupError, ValueError, TypeError, ArithmeticError)
"""What the types of columns and the making of records raise for a value that none of them is."""


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
