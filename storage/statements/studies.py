"""Studies: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from storage.database import insert_into
from storage.errors import Conflict, NotFound, nearest_or_all
from storage.records import NewStudy, Study, StudyState
from storage.schema.tables import studies
from storage.statements import checksums, clock, damage

COLUMNS = tuple(studies.c[field.name] for field in fields(Study))
_CONSIDERED, _SHOWN = 200, 20
"""How many of the newest names are compared with an unknown name, and how many of them its error lists at most."""


def create(connection: Connection, new: NewStudy) -> Study:
    """Create a study, or return the existing one with the same spec."""
    insert(connection, new)
    study = by_name(connection, new.name)
    if study.spec != new.spec:
        raise Conflict(
            f"a study named {new.name!r} exists with another spec; give this one another name, "
            f"or restore the spec of the existing study"
        )
    return study


def insert(connection: Connection, new: NewStudy, **more: Any) -> bool:
    """Add a queued study; return False if its name or key is taken."""
    now = clock.now(connection)
    inserted = insert_into(connection, studies).values(
        **vars(new), state=StudyState.QUEUED, created_at=now, updated_at=now, message="", **more
    )
    added = connection.execute(inserted.on_conflict_do_nothing().returning(studies.c.id)).scalar()
    if added is not None:
        checksums.write_of_study(connection, added)
    return added is not None


def by_name(connection: Connection, name: str) -> Study:
    """Return the study with the given name."""
    with damage.named(f"study {name!r}"):
        row = connection.execute(select(*COLUMNS).where(studies.c.name == name)).first()
        if row is not None:
            return to_study(row)
    newest = select(studies.c.name).order_by(studies.c.id.desc()).limit(_CONSIDERED)
    known = [each for each in connection.execute(newest).scalars() if isinstance(each, str)]
    raise NotFound(f"there is no study {name!r}; {nearest_or_all(name, known, 'studies', _SHOWN)}")


def by_id(connection: Connection, study_id: int) -> Study:
    """Return the study with the given id."""
    with damage.named(f"the study with id {study_id}"):
        row = connection.execute(select(*COLUMNS).where(studies.c.id == study_id)).first()
        if row is not None:
            return to_study(row)
    raise no_study(study_id)


def every(connection: Connection) -> list[Study]:
    """Return all studies, oldest first."""
    return damage.sound(
        connection,
        select(*COLUMNS).order_by(studies.c.id),
        studies,
        lambda rows: [to_study(row) for row in rows],
    )


def change(connection: Connection, study_id: int, **values: Any) -> Study:
    """Set columns of one study, and its time of last change."""
    statement = (
        update(studies)
        .where(studies.c.id == study_id)
        .values({"updated_at": clock.now(connection), **values})
    )
    with damage.named(f"the study with id {study_id}"):
        row = connection.execute(statement.returning(*COLUMNS)).first()
        if row is None:
            raise no_study(study_id)
        study = to_study(row)
    if "spec" in values:
        checksums.write_of_study(connection, study_id)
    return study


def lock(connection: Connection, study_id: int) -> Study:
    """Lock and return the study; others can neither change it nor add to it until the transaction ends."""
    statement = select(*COLUMNS).where(studies.c.id == study_id).with_for_update(key_share=True)
    with damage.named(f"the study with id {study_id}"):
        row = connection.execute(statement).first()
        if row is not None:
            return to_study(row)
    raise no_study(study_id)


def remove(connection: Connection, study_id: int) -> None:
    """Delete a study with all its data."""
    connection.execute(delete(studies).where(studies.c.id == study_id))


def no_study(study_id: int) -> NotFound:
    """Return the error for an unknown study id."""
    return NotFound(f"there is no study with id {study_id}; Store.studies() lists them")


def to_study(row: Row[Any]) -> Study:
    """Convert a row with all of :data:`COLUMNS` to a study; raise ValueError for a damaged row."""
    damage.check_kinds(studies, [row])
    return Study(**{column.name: getattr(row, column.name) for column in COLUMNS})
