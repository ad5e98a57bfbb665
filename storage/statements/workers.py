"""Workers: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from sqlalchemy import Connection, delete, select

from storage.database import insert_into
from storage.errors import NotFound
from storage.records import WorkerBeat, WorkerRecord
from storage.schema.tables import workers
from storage.statements import clock, studies

_FORGOTTEN_AFTER = timedelta(days=7)


def beat(connection: Connection, sign: WorkerBeat) -> None:
    """Store a heartbeat, without its study if that was deleted in the meantime; delete workers not seen for a long
    time.
    """
    now, values = clock.now(connection), asdict(sign)
    if sign.study_id is not None:
        try:
            studies.by_id(connection, sign.study_id)
        except NotFound:
            values["study_id"] = None
    new = insert_into(connection, workers).values(**values, started_at=now, seen_at=now)
    changed = {name: new.excluded[name] for name in (*values, "seen_at") if name != "name"}
    connection.execute(new.on_conflict_do_update(index_elements=["name"], set_=changed))
    connection.execute(delete(workers).where(workers.c.seen_at < now - _FORGOTTEN_AFTER))


def seen(connection: Connection, within_seconds: float) -> list[WorkerRecord]:
    """Return recently seen workers, ordered by name."""
    since = clock.now(connection) - timedelta(seconds=within_seconds)
    statement = select(workers).where(workers.c.seen_at >= since).order_by(workers.c.name)
    return [WorkerRecord(**row._asdict()) for row in connection.execute(statement)]
