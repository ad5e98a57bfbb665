"""Convergence points, written and read in bulk.

Reads and writes bypass SQLAlchemy's handling of single rows and call the driver. SQLite gets one prepared statement for
all rows. PostgreSQL transfers bytes (``storage.statements.copy_points``); for writing, only from a few hundred points
on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from operator import attrgetter, index
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from storage.errors import InvalidRecord
from storage.records import Convergence, ConvergencePoint
from storage.schema.column_types import NumberType
from storage.schema.tables import convergence
from storage.statements import copy_points, damage, trials

_COLUMNS = tuple(column.name for column in convergence.c)
_DTYPE = np.dtype(
    [
        (column.name, np.float64 if isinstance(column.type, NumberType) else np.int64)
        for column in convergence.c
    ]
)
_NUMBERS = frozenset(name for name in _COLUMNS if _DTYPE[name] == np.float64)
_DRIVERS_OWN = frozenset({int, float, type(None)})
_COPY_FROM = 200  # points; for fewer, COPY's additional statements take longer than the rows


def _replacing(new: Any) -> Any:
    return new.on_conflict_do_update(
        index_elements=["trial_id", "step"],
        set_={name: new.excluded[name] for name in _COLUMNS[2:]},
    )


# Compiled once, because compiling takes longer than writing the ten points of a small trial.
_SQLITE_UPSERT = str(_replacing(sqlite.insert(convergence)).compile(dialect=sqlite.dialect()))


def upsert(connection: Connection, points: Mapping[int, Sequence[ConvergencePoint]]) -> None:
    """Write points by trial, replacing those at the same step."""
    rows = list(_rows(points))
    if connection.dialect.name == "postgresql" and len(rows) >= _COPY_FROM:
        upsert_columns(connection, Convergence(*zip(*rows, strict=True)))  # type: ignore[arg-type]
        return
    trials.check_exist(connection, points.keys())
    _write(connection, rows)


def upsert_columns(connection: Connection, points: Convergence) -> None:
    """Write points given as columns, replacing stored points, and earlier points in the columns, at the same step."""
    table = _table(points)
    trials.check_exist(connection, np.unique(table["trial_id"]).tolist())
    if connection.dialect.name == "postgresql" and len(table) >= _COPY_FROM:
        copy_points.upsert(connection, _last_of_each_step(table))
    else:
        _write(connection, table.tolist())


def continue_curve(
    connection: Connection, trial_id: int, points: Sequence[ConvergencePoint]
) -> None:
    """Write further points of a trial, ordered by step, in place of the points stored from their first step on.

    Stored points after that step come from a training that another one has replaced, from its start or a checkpoint.
    They stay if all of ``points`` are stored already, because then a request has been repeated.
    """
    if points:
        later = convergence.c.trial_id == trial_id, convergence.c.step >= points[0].step
        rows = connection.execute(select(convergence.c.step, convergence.c.seconds).where(*later))
        stored = {row.step: row.seconds for row in rows}
        if stored and any(stored.get(point.step) != point.seconds for point in points):
            connection.execute(delete(convergence).where(*later))
    upsert(connection, {trial_id: points})


def remove(connection: Connection, trial_ids: Sequence[int]) -> None:
    """Delete all points of the given trials."""
    for chunk in trials.chunks(trial_ids):
        connection.execute(delete(convergence).where(convergence.c.trial_id.in_(chunk)))


def read(connection: Connection, trial_ids: Sequence[int]) -> Convergence:
    """Return the points of the given trials, as columns."""
    return _columns(
        [_read_part(connection, chunk) for chunk in trials.chunks(sorted(set(trial_ids)))]
    )


def count(connection: Connection, trial_ids: Sequence[int]) -> dict[int, int]:
    """Return the number of points of each of the given trials; trials without points are left out."""
    counts = dict[int, int]()
    for chunk in trials.chunks(sorted(set(trial_ids))):
        counted = (
            select(convergence.c.trial_id, func.count().label("points"))
            .where(convergence.c.trial_id.in_(chunk))
            .group_by(convergence.c.trial_id)
        )
        counts.update({row.trial_id: row.points for row in connection.execute(counted)})
    return counts


def read_newest(
    connection: Connection, trial_ids: Sequence[int]
) -> tuple[Convergence, dict[int, int]]:
    """Return the last point of each of the given trials, as columns, and how many points each has.

    The points are counted in the database, so that a long curve costs neither memory nor time in this process. A trial
    without points is in neither result.
    """
    parts, counts = [], dict[int, int]()
    for chunk in trials.chunks(sorted(set(trial_ids))):
        last = (
            select(
                convergence.c.trial_id,
                func.max(convergence.c.step).label("step"),
                func.count().label("points"),
            )
            .where(convergence.c.trial_id.in_(chunk))
            .group_by(convergence.c.trial_id)
        )
        counted = connection.execute(last).all()
        counts.update({row.trial_id: row.points for row in counted})
        newest = tuple_(convergence.c.trial_id, convergence.c.step).in_(
            [(row.trial_id, row.step) for row in counted]
        )
        parts.append(_read_rows(connection, select(convergence).where(newest)))
    return _columns(parts), counts


def read_points(connection: Connection, trial_id: int) -> list[ConvergencePoint]:
    """Return the points of one trial, ordered by step."""
    trials.check_exist(connection, [trial_id])
    columns = read(connection, [trial_id])
    rows = zip(*(getattr(columns, name).tolist() for name in _COLUMNS[1:]), strict=True)
    return [
        ConvergencePoint(*(*measured, None if isnan(noise_scale) else noise_scale))
        for *measured, noise_scale in rows
    ]


def read_before(connection: Connection, trial_id: int, step: int) -> ConvergencePoint | None:
    """Return the last point of a trial before a step, or None."""
    statement = select(convergence).where(
        convergence.c.trial_id == trial_id, convergence.c.step < step
    )
    row = connection.execute(statement.order_by(convergence.c.step.desc()).limit(1)).first()
    return None if row is None else ConvergencePoint(*row[1:])


def _read_part(connection: Connection, trial_ids: Sequence[int]) -> Any:
    if connection.dialect.name == "postgresql":
        columns = copy_points.read(connection, trial_ids)
        table = np.empty(len(columns["trial_id"]), _DTYPE)
        for name, column in columns.items():
            table[name] = column
        return table
    return _read_rows(connection, select(convergence).where(convergence.c.trial_id.in_(trial_ids)))


def _read_rows(connection: Connection, statement: Select[Any]) -> Any:
    """Return the statement's points as an array of rows, by trial and step; damaged rows are left out."""
    ordered = statement.order_by(convergence.c.trial_id, convergence.c.step)
    cursor: Any = connection.execute(ordered).cursor
    try:
        return np.fromiter(cursor, dtype=_DTYPE)
    except damage.CAUSES:
        again: Any = connection.execute(ordered).cursor
        return np.fromiter(filter(_is_sound, again), dtype=_DTYPE)


def _columns(parts: Sequence[Any]) -> Convergence:
    table = np.concatenate(parts) if parts else np.empty(0, _DTYPE)
    return Convergence(**{name: np.ascontiguousarray(table[name]) for name in _COLUMNS})


def _is_sound(row: tuple[Any, ...]) -> bool:
    """Return whether a row holds only numbers; if not, log it."""
    try:
        np.array([row], dtype=_DTYPE)
    except damage.CAUSES as error:
        damage.left_out(f"the point at step {row[1]} of the trial with id {row[0]}", error)
        return False
    return True


def _write(connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_SQLITE_UPSERT, rows)
    else:
        statement = _replacing(postgresql.insert(convergence))
        connection.execute(statement, [dict(zip(_COLUMNS, row, strict=True)) for row in rows])


def _rows(points: Mapping[int, Sequence[ConvergencePoint]]) -> Iterator[tuple[Any, ...]]:
    """Yield tuples in column order; the driver handles NaN, which SQLite converts to NULL by itself.

    Numbers of other types, such as NumPy's, become Python's own: SQLite would store their bytes. Raises
    :class:`InvalidRecord` for a value that is not a number.
    """
    get = attrgetter(*_COLUMNS[1:])
    for trial_id, of_trial in points.items():
        for point in of_trial:
            row = (trial_id, *get(point))
            yield row if _DRIVERS_OWN.issuperset(map(type, row)) else _as_numbers(row)


def _as_numbers(row: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return tuple(
            value if value is None else float(value) if name in _NUMBERS else index(value)
            for name, value in zip(_COLUMNS, row, strict=True)
        )
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"a point must hold numbers, but {error}") from error


def _table(points: Convergence) -> Any:
    """Return the columns as an array of rows, with NaN for None; raise an error for non-numeric values or unequal
    lengths.
    """
    columns = {}
    for name in _COLUMNS:
        try:
            columns[name] = np.asarray(getattr(points, name), dtype=_DTYPE[name])
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRecord(
                f"the column {name} of the points must hold numbers, but {error}"
            ) from error
    shapes = {name: column.shape for name, column in columns.items()}
    if set(shapes.values()) != {(len(points),)}:
        raise InvalidRecord(
            f"columns of points must have one length, shape (points,), but got {shapes}"
        )
    table = np.empty(len(points), _DTYPE)
    for name, column in columns.items():
        table[name] = column
    return table


def _last_of_each_step(table: Any) -> Any:
    """Return the last row for each trial and step, because PostgreSQL cannot change a row twice in one statement."""
    order = np.lexsort((table["step"], table["trial_id"]))
    table = table[order]
    same = (table["trial_id"][1:] == table["trial_id"][:-1]) & (
        table["step"][1:] == table["step"][:-1]
    )
    return table[np.append(~same, True)] if same.any() else table
