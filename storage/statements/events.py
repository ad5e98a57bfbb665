"""Events: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, select, text

from storage.errors import DamagedRow, InvalidRecord
from storage.records import Event
from storage.schema.tables import events
from storage.schema.tables import studies as studies_table
from storage.statements import clock, damage, studies

_LOCK_KEY = 0x6C62_6576


def add(
    connection: Connection,
    study_id: int | None,
    kind: str,
    message: str,
    data: Mapping[str, Any] | None,
) -> Event:
    """Store an event; ids become visible in order, so that a reader that asks for later ids misses none."""
    name = studies.by_id(connection, study_id).name if study_id is not None else ""
    content = _to_json(data)
    if (
        connection.dialect.name == "postgresql"
    ):  # an id is assigned before the commit, so another commit could overtake it
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    row = connection.execute(
        insert(events)
        .values(
            study_id=study_id, at=clock.now(connection), kind=kind, message=message, data=content
        )
        .returning(events)
    ).one()
    return _event(row, name)


def after(connection: Connection, last: int, study_id: int | None, limit: int) -> list[Event]:
    """Return events with larger ids, oldest first; a damaged event is replaced by a note."""
    name = func.coalesce(studies_table.c.name, "").label("study_name")
    statement = (
        select(events, name).select_from(events.outerjoin(studies_table)).where(events.c.id > last)
    )
    if study_id is not None:
        statement = statement.where(events.c.study_id == study_id)
    page = statement.order_by(events.c.id).limit(limit)
    try:
        return [*map(_event, connection.execute(page).all())]
    except damage.CAUSES:
        ids = connection.execute(page.with_only_columns(events.c.id)).scalars().all()
        return [_one(connection, statement.where(events.c.id == each), each) for each in ids]


def _one(connection: Connection, statement: Select[Any], event_id: int) -> Event:
    try:
        return _event(connection.execute(statement).one())
    except damage.CAUSES as error:
        said = str(DamagedRow(f"event {event_id}", error))
        return Event(
            id=event_id,
            study_id=None,
            study_name="",
            at=clock.now(connection),
            kind="damaged",
            message=said,
            data=None,
        )


def _event(row: Row[Any], study_name: str | None = None) -> Event:
    damage.check_kinds(events, [row])
    return Event(
        id=row.id,
        study_id=row.study_id,
        study_name=row.study_name if study_name is None else study_name,
        at=row.at,
        kind=row.kind,
        message=row.message,
        data=json.loads(row.data) if row.data is not None else None,
    )


def _to_json(data: Mapping[str, Any] | None) -> str | None:
    try:
        return (
            json.dumps(dict(data), allow_nan=False, separators=(",", ":"))
            if data is not None
            else None
        )
    except (TypeError, ValueError) as error:
        raise InvalidRecord(
            f"the data of an event must be plain JSON values, but {error}"
        ) from error
