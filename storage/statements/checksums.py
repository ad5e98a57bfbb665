"""Checksums of immutable data: each ended trial, with its settings, points and result, and each study file.

They are BLAKE2b hashes (RFC 7693) of 8 bytes, stored as signed integers, over the values as the database returns them,
so that SQLite, PostgreSQL and an archive of either have the same checksums. They are written in the same transaction as
the values, and detect accidental damage but not an attacker, who would change the checksum too. A column that is empty,
or holds the default of earlier releases, counts as absent, so that a later release may add columns without changing the
checksums.

Rows are read raw, without the types of the current tables, because a migration computes checksums before later columns
exist, and a damaged value must be included like any other.
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
)  # SQLite and PostgreSQL format times differently
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
class ChecksummedRow:
    """A row with its checksums; ``name`` is the name of a study or the number of a trial.

    ``stored`` is the stored checksum; ``found`` is the computed one, None if the values cannot be read as numbers.
    """

    id: int
    study_id: int
    name: str
    state: str
    stored: int | None
    found: int | None


def write_of_trials(connection: Connection, ids: Sequence[int]) -> None:
    """Write the checksums of ended trials, whose points and results must already be stored."""
    _write(connection, "trials", of_trials(connection, ids))


def write_of_study(connection: Connection, study_id: int) -> None:
    """Write the checksum of a study's file and of the values read from that file."""
    _write(connection, "studies", of_studies(connection, study_id))


def write_all(connection: Connection) -> None:
    """Write all checksums when a database without checksums is upgraded."""
    _write(connection, "studies", of_studies(connection))
    ended = "SELECT id FROM trials WHERE state NOT IN ('queued', 'running') ORDER BY id"
    ids = [int(row[0]) for row in connection.exec_driver_sql(ended)]
    for first in range(0, len(ids), _CHUNK):
        write_of_trials(connection, ids[first : first + _CHUNK])


def of_studies(connection: Connection, study_id: int | None = None) -> Iterator[ChecksummedRow]:
    """Yield the checksums of one study or of all studies."""
    which = "" if study_id is None else f" WHERE id = {int(study_id)}"
    names = f"id, name, state, checksum, {', '.join(_OF_A_STUDY)}"
    for row in connection.exec_driver_sql(f"SELECT {names} FROM studies{which}").mappings():
        found = _sum(_lines({name: row[name] for name in _OF_A_STUDY}))
        yield ChecksummedRow(
            row["id"], row["id"], str(row["name"]), str(row["state"]), row["checksum"], found
        )


def of_trials(connection: Connection, ids: Sequence[int]) -> Iterator[ChecksummedRow]:
    """Yield the checksums of the given trials by id, reading :data:`_CHUNK` trials at a time."""
    for first in range(0, len(ids), _CHUNK):
        listed = ", ".join(str(int(each)) for each in sorted(ids[first : first + _CHUNK]))
        curves = _curves(connection, listed)
        rows = connection.exec_driver_sql(f"SELECT * FROM trials WHERE id IN ({listed})")
        for row in rows.mappings().all():
            curve = curves.get(row["id"], b"")
            settled = {name: value for name, value in row.items() if name not in _NO_PART}
            yield ChecksummedRow(
                row["id"],
                row["study_id"],
                str(row["number"]),
                str(row["state"]),
                row["checksum"],
                None if curve is None else _sum(_lines(settled), curve),
            )


def _curves(connection: Connection, listed: str) -> dict[int, bytes | None]:
    """Return the points of each trial as bytes; None if one of them is not a number."""
    points: Any = connection.exec_driver_sql(
        f"SELECT trial_id, {_POINT} FROM convergence WHERE trial_id IN ({listed}) ORDER BY trial_id, step"
    ).cursor
    curves: dict[int, bytes | None] = {}
    for trial_id, rows in groupby(points, key=lambda row: row[0]):
        try:
            numbers = (
                np.array(list(rows), dtype="<f8") + 0.0
            )  # normalizes -0.0 to 0.0, as SQLite drops the sign
        except (TypeError, ValueError):
            curves[trial_id] = None
            continue
        numbers[np.isnan(numbers)] = np.nan  # gives all NaNs the same bit pattern
        curves[trial_id] = numbers.tobytes()
    return curves


def _lines(values: Mapping[str, Any]) -> bytes:
    """Return the values covered by the checksum as lines, sorted by name."""
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


def _write(connection: Connection, table: str, sums: Iterable[ChecksummedRow]) -> None:
    values = [(each.found, each.id) for each in sums]
    if not values:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"UPDATE {table} SET checksum = ? WHERE id = ?", values)
    else:
        connection.exec_driver_sql(f"UPDATE {table} SET checksum = %s WHERE id = %s", values)
