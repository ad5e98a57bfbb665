"""Checksums over what no longer changes: each trial that has ended, with its settings, points and end; each study file.

BLAKE2b (RFC 7693), 8 bytes as a signed integer, over the values as the database gives them back, so that SQLite,
PostgreSQL and an archive of either have the same. They are written in the transaction that wrote the values, and tell
damage by a disk or a hand, not by an enemy, who would write another sum too. A column that holds nothing, or what
earlier releases did, counts as absent: a later release may add columns, and the sums stay.

Rows are read as they are, without the types of the present tables: a migration sums them before later columns are
there, and a damaged value is summed like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from sqlalchemy import Connection

from storage.schema.setting_types import EARLIER_VALUES, OWN_SETTINGS

_CHUNK = 500  # trials whose points are read at a time
_NO_PART = frozenset(
    {"checksum", "started_at", "finished_at"}
)  # times differ between the databases' own forms
_OF_A_STUDY = ("workload", "metric", "threshold", "higher_is_better", "spec")
_POINT = (
    "step, samples, epochs, seconds, train_loss, loss, metric, learning_rate, global_batch_size, "
    "gradient_noise_scale"
)
_EARLIER = {
    **{name: value.strip("'") for name, value in EARLIER_VALUES.items()},
    OWN_SETTINGS: "{}",
}


@dataclass(frozen=True)
class Summed:
    """A row and the sum that it must have: the ``id``, the ``number`` of a trial or the ``name`` of a study, its state,
    and what is ``stored``. ``found`` is None where its values cannot be read as numbers.
    """

    id: int
    study_id: int
    name: str
    state: str
    stored: int | None
    found: int | None


def write_of_trials(connection: Connection, ids: Sequence[int]) -> None:
    """Sum trials that have ended; their points and their end are there."""
    _write(connection, "trials", of_trials(connection, ids))


def write_of_study(connection: Connection, study_id: int) -> None:
    """Sum a study's file, and what was read from it."""
    _write(connection, "studies", of_studies(connection, study_id))


def write_all(connection: Connection) -> None:
    """Sum everything that is there, as a database that had no sums is upgraded."""
    _write(connection, "studies", of_studies(connection))
    ended = "SELECT id FROM trials WHERE state NOT IN ('queued', 'running') ORDER BY id"
    ids = [int(row[0]) for row in connection.exec_driver_sql(ended)]
    for first in range(0, len(ids), _CHUNK):
        write_of_trials(connection, ids[first : first + _CHUNK])


def of_studies(connection: Connection, study_id: int | None = None) -> Iterator[Summed]:
    """The sums of one study or of all."""
    which = "" if study_id is None else f" WHERE id = {int(study_id)}"
    names = f"id, name, state, checksum, {', '.join(_OF_A_STUDY)}"
    for row in connection.exec_driver_sql(f"SELECT {names} FROM studies{which}").mappings():
        found = _sum(_lines({name: row[name] for name in _OF_A_STUDY}))
        yield Summed(
            row["id"], row["id"], str(row["name"]), str(row["state"]), row["checksum"], found
        )


def of_trials(connection: Connection, ids: Sequence[int]) -> Iterator[Summed]:
    """The sums of some trials, :data:`_CHUNK` at a time, by id."""
    for first in range(0, len(ids), _CHUNK):
        listed = ", ".join(str(int(each)) for each in sorted(ids[first : first + _CHUNK]))
        curves = _curves(connection, listed)
        rows = connection.exec_driver_sql(f"SELECT * FROM trials WHERE id IN ({listed})")
        for row in rows.mappings().all():
            curve = curves.get(row["id"], b"")
            settled = {name: value for name, value in row.items() if name not in _NO_PART}
            yield Summed(
                row["id"],
                row["study_id"],
                str(row["number"]),
                str(row["state"]),
                row["checksum"],
                None if curve is None else _sum(_lines(settled), curve),
            )


def _curves(connection: Connection, listed: str) -> dict[int, bytes | None]:
    """The points of each trial as bytes; None where one of them is no number."""
    points: Any = connection.exec_driver_sql(
        f"SELECT trial_id, {_POINT} FROM convergence WHERE trial_id IN ({listed}) ORDER BY trial_id, step"
    ).cursor
    curves: dict[int, bytes | None] = {}
    for trial_id, rows in groupby(points, key=lambda row: row[0]):
        try:
            numbers = (
                np.array(list(rows), dtype="<f8") + 0.0
            )  # without the sign of 0, which SQLite drops
        except (TypeError, ValueError):
            curves[trial_id] = None
            continue
        numbers[np.isnan(numbers)] = np.nan  # of all bit patterns one
        curves[trial_id] = numbers.tobytes()
    return curves


def _lines(values: Mapping[str, Any]) -> bytes:
    """The values that count, by name."""
    return b"".join(
        f"{name}={_text(value)}\n".encode("utf-8", "surrogateescape")
        for name, value in sorted(values.items())
        if value is not None and not _is_earlier(name, value)
    )


def _is_earlier(name: str, value: Any) -> bool:
    earlier = _EARLIER.get(name)
    if earlier is None or isinstance(value, str):
        return earlier is not None and earlier == value
    try:
        return bool(float(earlier) == value)
    except ValueError:
        return False


def _text(value: Any) -> str:
    if isinstance(value, float):
        return repr(value + 0.0)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _sum(*parts: bytes) -> int:
    digest = hashlib.blake2b(b"".join(parts), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _write(connection: Connection, table: str, sums: Iterable[Summed]) -> None:
    values = [(each.found, each.id) for each in sums]
    if not values:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"UPDATE {table} SET checksum = ? WHERE id = ?", values)
    else:
        connection.exec_driver_sql(f"UPDATE {table} SET checksum = %s WHERE id = %s", values)
