"""Studies: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, select, update

from storage.database import insert_into
from storage.errors import Conflict, NotFound, nearest
from storage.records import Study, StudyState
from storage.tables import studies


def create(connection: Connection, name: str, values: dict[str, Any]) -> Study:
    """A new study, or the one that is there with the same spec."""
    now = datetime.now(UTC)
    new = insert_into(connection, studies).values(name=name, state=StudyState.QUEUED, created_at=now,
                                                  updated_at=now, message="", **values)
    connection.execute(new.on_conflict_do_nothing(index_elements=["name"]))
    study = by_name(connection, name)
    if study.spec != values["spec"]:
        raise Conflict(f"a study named {name!r} exists with another spec; give this one another name, or "
                       "restore the spec of the study that exists")
    return study


def by_name(connection: Connection, name: str) -> Study:
    """The study of that name."""
    row = connection.execute(select(studies).where(studies.c.name == name)).first()
    if row is None:
        known = connection.execute(select(studies.c.name)).scalars()
        raise NotFound(f"there is no study {name!r}; {nearest(name, known, 'studies')}")
    return _study(row)


def every(connection: Connection) -> list[Study]:
    """All studies, oldest first."""
    return [_study(row) for row in connection.execute(select(studies).order_by(studies.c.id))]


def change(connection: Connection, study_id: int, **values: Any) -> None:
    """Set columns of one study, and the time of the change."""
    statement = update(studies).where(studies.c.id == study_id).values(updated_at=datetime.now(UTC), **values)
    if connection.execute(statement).rowcount == 0:
        raise NotFound(_no_study(study_id))


def lock(connection: Connection, study_id: int) -> None:
    """Check that the study exists, and keep others from adding to it until the transaction ends."""
    statement = select(studies.c.id).where(studies.c.id == study_id).with_for_update()
    if connection.execute(statement).first() is None:
        raise NotFound(_no_study(study_id))


def _no_study(study_id: int) -> str:
    return f"there is no study with id {study_id}; Store.studies() lists them"


def _study(row: Row[Any]) -> Study:
    return Study(**row._asdict())
