"""Adding studies to the queue and removing them: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select, tuple_
from sqlalchemy import delete as delete_from

from storage.errors import Conflict
from storage.records import NewStudy, Study, StudyState, SubmittedStudy
from storage.schema.tables import convergence
from storage.schema.tables import studies as table
from storage.schema.tables import trials as trials_table
from storage.statements import clock, studies, trials
from storage.statements.queue import ended_lease_values, has_live_lease


def submit(connection: Connection, new: NewStudy) -> SubmittedStudy:
    """Queue a new study, or return the one from the same submission."""
    created = studies.insert(connection, new, queued_at=clock.now(connection))
    found = studies.by_name(connection, new.name) if created else _found(connection, new)
    return SubmittedStudy(study=found, created=created)


def request_cancel(connection: Connection, study_id: int) -> Study:
    """Ask the study's worker to stop, or cancel the study at once if it has no worker."""
    study, now = studies.lock(connection, study_id), clock.now(connection)
    if study.state in (StudyState.FINISHED, StudyState.CANCELLED):
        return study
    if has_live_lease(study, now):
        return studies.change(connection, study_id, cancel_requested=True)
    trials.requeue(connection, study_id)  # those that were running when the worker died
    return studies.change(
        connection,
        study_id,
        **ended_lease_values(now),
        state=StudyState.CANCELLED,
        message="cancelled",
    )


def requeue(connection: Connection, study_id: int) -> Study:
    """Put a study that has ended back in the queue."""
    study, now = studies.lock(connection, study_id), clock.now(connection)
    _refuse_running(study, now)
    if study.state is StudyState.QUEUED and study.queued_at is not None:
        return study
    return studies.change(
        connection,
        study_id,
        **ended_lease_values(now),
        state=StudyState.QUEUED,
        message="",
        queued_at=now,
        attempts=0,
    )


def lock_resting(connection: Connection, study_id: int) -> Study:
    """Return a study, locked until the transaction ends; raise :class:`Conflict` if it is running."""
    study = studies.lock(connection, study_id)
    _refuse_running(study, clock.now(connection))
    return study


def delete(connection: Connection, study_id: int) -> None:
    """Delete a study that is not running."""
    lock_resting(connection, study_id)
    studies.remove(connection, study_id)


def delete_points(connection: Connection, study_id: int, most: int) -> bool:
    """Delete some of the points of a study that is not running; return False if none are left."""
    lock_resting(connection, study_id)
    key = (convergence.c.trial_id, convergence.c.step)
    some = select(*key).join(trials_table).where(trials_table.c.study_id == study_id).limit(most)
    deleted = connection.execute(delete_from(convergence).where(tuple_(*key).in_(some)))
    return deleted.rowcount > 0


def rename(connection: Connection, study_id: int, name: str, spec: str) -> Study:
    """Rename a study that is not running; its idempotency key is dropped with the old name."""
    lock_resting(connection, study_id)
    taken = connection.execute(
        select(table.c.id).where(table.c.name == name, table.c.id != study_id)
    ).first()
    if taken is not None:
        raise Conflict(f"a study named {name!r} exists already; give this one another name")
    return studies.change(connection, study_id, name=name, spec=spec, idempotency_key=None)


def set_state(
    connection: Connection, study_id: int, state: StudyState, message: str, *, leased: bool
) -> None:
    """Set a study's state; without a lease, this also ends the lease of a worker that stopped responding."""
    if leased:
        studies.change(connection, study_id, state=state, message=message)
        return
    study, now = studies.lock(connection, study_id), clock.now(connection)
    if has_live_lease(study, now):
        raise Conflict(
            f"worker {study.lease_worker!r} is working on the study {study.name!r}; cancel it "
            f"first, or wait until it ends"
        )
    studies.change(connection, study_id, **ended_lease_values(now), state=state, message=message)


def reopen(connection: Connection, study_id: int, message: str) -> None:
    """Interrupt a study if it is finished, so that its trials can be requested; leave it as it is otherwise."""
    if studies.lock(connection, study_id).state is StudyState.FINISHED:
        set_state(connection, study_id, StudyState.INTERRUPTED, message, leased=False)


def _refuse_running(study: Study, now: datetime) -> None:
    """Refuse a running study; if it has no lease, an unknown process runs it and counts as alive."""
    if study.state is StudyState.RUNNING and (
        study.lease_worker is None or has_live_lease(study, now)
    ):
        raise Conflict(
            f"the study {study.name!r} is running; cancel it first, or wait until it ends"
        )


def _found(connection: Connection, new: NewStudy) -> Study:
    """Return the study that has this name or key, if it comes from the same submission."""
    name, owner, key = new.name, new.owner, new.idempotency_key
    if key is not None:
        of_key = connection.execute(
            select(table.c.name).where(table.c.owner == owner, table.c.idempotency_key == key)
        ).scalar()
        if of_key is not None and of_key != name:
            raise Conflict(
                f"the idempotency key {key!r} was used for the study {of_key!r}; give each submission "
                "its own key"
            )
    study = studies.by_name(connection, name)
    if study.owner != owner:
        raise Conflict(
            f"a study named {name!r} exists and belongs to another owner; give this one "
            f"another name"
        )
    if study.spec != new.spec:
        raise Conflict(
            f"a study named {name!r} exists with another spec; give this one another name, "
            f"restore the spec of the existing study, continue that with this spec (`hpo "
            f"resume STUDY --file FILE`), or rename it (`hpo rename`) or remove it (`hpo delete`)"
        )
    taken_by = connection.execute(
        select(table.c.idempotency_key).where(table.c.id == study.id)
    ).scalar()
    if key is not None and key != taken_by:
        raise Conflict(
            f"a study named {name!r} exists from an earlier submission; give this one another "
            f"name, or queue the existing study again"
        )
    return study
