"""Convergence points, written and read in bulk.

On SQLite both ways go past SQLAlchemy's handling of single rows, to the driver: about three times as fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from operator import attrgetter
from typing import Any

import numpy as np
from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from storage import trials
from storage.column_types import Number
from storage.records import Convergence, ConvergencePoint
from storage.tables import convergence

_COLUMNS = tuple(column.name for column in convergence.c)
_DTYPE = np.dtype([(column.name, np.float64 if isinstance(column.type, Number) else np.int64)
                   for column in convergence.c])


def _replacing(new: Any) -> Any:
    return new.on_conflict_do_update(index_elements=["trial_id", "step"],
                                     set_={name: new.excluded[name] for name in _COLUMNS[2:]})


# Compiled once: that takes longer than writing the ten points of a small trial.
_SQLITE_UPSERT = str(_replacing(sqlite.insert(convergence)).compile(dialect=sqlite.dialect()))


def upsert(connection: Connection, points: Mapping[int, Sequence[ConvergencePoint]]) -> None:
    """Write points by trial; a point at a step that is there replaces it."""
    trials.check_exist(connection, points.keys())
    rows = list(_rows(points))
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_SQLITE_UPSERT, rows)
    else:
        statement = _replacing(postgresql.insert(convergence))
        connection.execute(statement, [dict(zip(_COLUMNS, row, strict=True)) for row in rows])


def read(connection: Connection, trial_ids: Sequence[int]) -> Convergence:
    """The points of some trials, in columns."""
    parts = [_read_part(connection, chunk) for chunk in trials.chunks(sorted(set(trial_ids)))]
    table = np.concatenate(parts) if parts else np.empty(0, _DTYPE)
    return Convergence(**{name: np.ascontiguousarray(table[name]) for name in _COLUMNS})


def read_points(connection: Connection, trial_id: int) -> list[ConvergencePoint]:
    """The points of one trial, by step."""
    trials.check_exist(connection, [trial_id])
    columns = read(connection, [trial_id])
    rows = zip(*(getattr(columns, name).tolist() for name in _COLUMNS[1:]), strict=True)
    return [ConvergencePoint(*(*measured, None if isnan(noise_scale) else noise_scale))
            for *measured, noise_scale in rows]


def _read_part(connection: Connection, trial_ids: Sequence[int]) -> Any:
    statement = select(convergence).where(convergence.c.trial_id.in_(trial_ids))
    cursor: Any = connection.execute(statement.order_by(convergence.c.trial_id, convergence.c.step)).cursor
    return np.fromiter(cursor, dtype=_DTYPE)


def _rows(points: Mapping[int, Sequence[ConvergencePoint]]) -> Iterator[tuple[Any, ...]]:
    """Tuples in the order of the columns; NaN is left to the driver, as SQLite makes it NULL by itself."""
    get = attrgetter(*_COLUMNS[1:])
    for trial_id, of_trial in points.items():
        for point in of_trial:
            yield (trial_id, *get(point))
