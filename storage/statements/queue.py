"""The queue of studies and the leases on them: statements on one connection; the contract is in ``storage.store``.

A study in the queue is claimed by one worker at a time, under a lease that the worker renews. Writes are guarded by the
lease's generation (a fencing token), not by the time. Every claim increments the generation. Every write under a lease
first checks, in its own transaction and with the study's row locked, that the lease's generation is still current; a
worker that was replaced gets :class:`LeaseLost` instead of writing. The time only decides when a silent worker's study
may be given to another worker. A clock that jumps can therefore cost a worker's progress since its last write, but
never lets two workers write to one study:

- forward: leases seem to have expired. A worker that renews before another claims keeps its study; otherwise it is
  fenced off, and the study continues from the stored state.
- backward: leases seem to last longer than granted. A claim shortens such a lease to its full length
  from now, so that the study of a dead worker waits for one lease at most.

The clock is that of ``storage.statements.clock``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    case,
    func,
    literal,
    or_,
    select,
    text,
    update,
)

from storage.errors import DamagedRow, LeaseLost
from storage.records import Lease, Study, StudyState
from storage.schema.tables import studies
from storage.statements import clock, damage, trials
from storage.statements.studies import COLUMNS, by_id, to_study

OWN_PRIORITY = 10
"""Priorities up to this value order the studies of one owner; higher priorities rank across all owners."""
_LEASED = and_(studies.c.state == StudyState.RUNNING, studies.c.lease_worker.is_not(None))
_FREE: dict[str, Any] = {
    "lease_worker": None,
    "lease_expires_at": None,
    "lease_seconds": None,
    "cancel_requested": False,
}


def has_work(connection: Connection) -> bool:
    """Return whether a claim may find a study to run, or a lease to correct; takes no lock."""
    now = clock.now(connection)
    waiting = (
        connection.execute(select(studies.c.id).where(_claimable(now)).limit(1)).first() is not None
    )
    return waiting or bool(_too_long_leases(connection, now))


def has_abandoned(connection: Connection) -> bool:
    """Return whether a cancellation was requested for a study whose worker is silent; takes no lock."""
    abandoned = select(studies.c.id).where(_abandoned(clock.now(connection))).limit(1)
    return connection.execute(abandoned).first() is not None


def settle(connection: Connection) -> list[int]:
    """Correct what no worker will: cancelled studies whose worker died, and leases that end too far in the future.

    Return the ids of the studies that were cancelled, except for damaged ones.
    """
    now = clock.now(connection)
    found = connection.execute(
        update(studies)
        .where(_unlocked(_abandoned(now)))
        .values(
            {
                **ended_lease_values(now),
                "state": StudyState.CANCELLED,
                "message": "cancelled after its worker stopped responding",
            }
        )
        .returning(studies.c.id)
    )
    cancelled: list[int] = []
    for study_id in found.scalars().all():
        try:
            trials.requeue(connection, study_id)
        except DamagedRow as error:
            damage.left_out(f"the study with id {study_id}", error)
        else:
            cancelled.append(study_id)
    for lease in _too_long_leases(connection, now):
        same = (studies.c.id == lease.id) & (studies.c.lease_generation == lease.lease_generation)
        connection.execute(
            update(studies).where(_unlocked(same)).values(lease_expires_at=_latest(lease, now))
        )
    return cancelled


def claim(
    connection: Connection,
    worker: str,
    lease_seconds: float,
    per_owner: int | None,
    passed_over: frozenset[str],
) -> Lease | str | None:
    """Lease the next study; return None if there is none, or the owner's name if that owner has enough studies running.

    Owners take turns: first the owner with the fewest running studies, then the owner served longest ago. Among an
    owner's studies, the one with the highest priority goes first, then the oldest. A priority above ``OWN_PRIORITY``,
    which only an administrator may give, takes precedence over the turns. A damaged study is left out and logged.

    On PostgreSQL the row is locked with SKIP LOCKED, so that workers do not wait for one another; with ``per_owner``,
    they wait for workers that claim a study of the same owner.
    """
    now = clock.now(connection)
    wanted = _claimable(now)
    if passed_over:
        wanted &= studies.c.owner.not_in(passed_over)
    if per_owner is not None:
        wanted &= studies.c.owner.not_in(
            select(studies.c.owner)
            .where(_live(now))
            .group_by(studies.c.owner)
            .having(func.count() >= per_owner)
        )
    turns = (
        select(
            studies.c.owner,
            func.sum(case((_live(now), 1), else_=0)).label("running"),
            func.max(studies.c.claimed_at).label("served"),
        )
        .group_by(studies.c.owner)
        .subquery("turns")
    )
    in_turn = (
        select(studies.c.id)
        .select_from(studies.join(turns, turns.c.owner == studies.c.owner))
        .where(wanted)
        .order_by(
            case((studies.c.priority > OWN_PRIORITY, studies.c.priority), else_=0).desc(),
            turns.c.running,
            turns.c.served.asc().nulls_first(),
            studies.c.priority.desc(),
            studies.c.queued_at,
            studies.c.id,
        )
        .limit(1)
        .with_for_update(skip_locked=True, key_share=True, of=studies)
    )
    damaged: list[int] = []
    while True:
        found = connection.execute(in_turn.where(studies.c.id.not_in(damaged))).scalar()
        if found is None:
            return None
        try:
            study = by_id(connection, found)
        except DamagedRow as error:
            damage.left_out(f"the study with id {found}", error)
            damaged.append(found)
            continue
        if per_owner is not None and _running(connection, study.owner, now) >= per_owner:
            return study.owner
        return _take(connection, study, worker, now, lease_seconds)


def take(
    connection: Connection, study: Study, worker: str, lease_seconds: float, instead_of: str | None
) -> Lease | None:
    """Lease this study, whose row is already locked; return None while a worker other than ``instead_of`` runs it."""
    now = clock.now(connection)
    if has_live_lease(study, now) and study.lease_worker != instead_of:
        return None
    connection.execute(
        update(studies).where(studies.c.id == study.id).values(cancel_requested=False)
    )
    return _take(connection, study, worker, now, lease_seconds)


def renew(connection: Connection, lease: Lease, lease_seconds: float) -> Lease:
    """Renew the lease from now on; return it with the study's current state."""
    expires_at = clock.now(connection) + timedelta(seconds=lease_seconds)
    values = {"lease_expires_at": expires_at, "lease_seconds": lease_seconds}
    return replace(lease, study=_changed(connection, lease, values), expires_at=expires_at)


def release(connection: Connection, lease: Lease, state: StudyState, message: str) -> Study:
    """Release the study and set its state; with ``queued``, a study that was never in the queue is added to it.

    A study that would continue later is cancelled instead if that was requested.
    """
    now = clock.now(connection)
    values = {"state": state, "message": message, "updated_at": now, **_FREE}
    if state in (StudyState.QUEUED, StudyState.INTERRUPTED):
        instead = {"state": StudyState.CANCELLED, "message": "cancelled when its worker stopped"}
        for name, value in instead.items():
            kind = studies.c[name].type
            requested = (studies.c.cancel_requested, literal(value, kind))
            values[name] = case(requested, else_=literal(values[name], kind))
    if state is StudyState.QUEUED:
        values["queued_at"] = func.coalesce(studies.c.queued_at, now)
    return _changed(connection, lease, values)


def check(connection: Connection, lease: Lease) -> None:
    """Raise :class:`LeaseLost` unless the lease is still held; lock it until the transaction ends."""
    held = select(studies.c.id).where(*_is(lease)).with_for_update(key_share=True)
    if connection.execute(held).first() is None:
        raise _lost(connection, lease)


def ended_lease_values(now: datetime) -> dict[str, Any]:
    """Return the column values that end the lease of a study's current holder."""
    return {**_FREE, "lease_generation": studies.c.lease_generation + 1, "updated_at": now}


def has_live_lease(study: Study, now: datetime) -> bool:
    """Return whether a worker runs the study and appears to be alive."""
    return (
        study.state is StudyState.RUNNING
        and study.lease_expires_at is not None
        and study.lease_expires_at > now
    )


def _changed(connection: Connection, lease: Lease, values: dict[str, Any]) -> Study:
    """Set columns of the study under the lease; raise :class:`LeaseLost` if the lease is no longer held."""
    statement = update(studies).where(*_is(lease)).values(values).returning(*COLUMNS)
    with damage.named(f"study {lease.study.name!r}"):
        row = connection.execute(statement).first()
        if row is not None:
            return to_study(row)
    raise _lost(connection, lease)


def _take(
    connection: Connection, study: Study, worker: str, now: datetime, lease_seconds: float
) -> Lease:
    expires_at = now + timedelta(seconds=lease_seconds)
    values = {
        "state": StudyState.RUNNING,
        "lease_worker": worker,
        "lease_seconds": lease_seconds,
        "lease_expires_at": expires_at,
        "lease_generation": studies.c.lease_generation + 1,
        "attempts": studies.c.attempts + 1,
        "claimed_at": now,
        "updated_at": now,
    }
    statement = update(studies).where(studies.c.id == study.id).values(values)
    with damage.named(f"study {study.name!r}"):
        taken = connection.execute(statement.returning(*COLUMNS, studies.c.lease_generation)).one()
        return Lease(
            study=to_study(taken),
            worker=worker,
            generation=taken.lease_generation,
            expires_at=expires_at,
            taken_over=study.state is StudyState.RUNNING,
        )


def _claimable(now: datetime) -> ColumnElement[bool]:
    waiting = (studies.c.state == StudyState.QUEUED) & studies.c.queued_at.is_not(None)
    silent = _LEASED & (studies.c.lease_expires_at <= now)
    return or_(waiting, silent) & studies.c.for_agents.is_(False)


def _abandoned(now: datetime) -> ColumnElement[bool]:
    return _LEASED & (studies.c.lease_expires_at <= now) & studies.c.cancel_requested


def _live(now: datetime) -> ColumnElement[bool]:
    return _LEASED & (studies.c.lease_expires_at > now)


def _running(connection: Connection, owner: str, now: datetime) -> int:
    """Count the leased studies of an owner; this blocks other claims for the owner until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(
            text("SELECT pg_advisory_xact_lock(hashtext('largebatch owner'), hashtext(:owner))"),
            {"owner": owner},
        )
    statement = (
        select(func.count()).select_from(studies).where(studies.c.owner == owner, _live(now))
    )
    return connection.execute(statement).scalar_one()


def _too_long_leases(connection: Connection, now: datetime) -> list[Row[*tuple[Any, ...]]]:
    """Return the leases that end later than if they were renewed now; damaged ones are left out."""

    def too_long(leases: Sequence[Row[*tuple[Any, ...]]]) -> list[Row[*tuple[Any, ...]]]:
        damage.check_kinds(studies, leases)
        return [lease for lease in leases if lease.lease_expires_at > _latest(lease, now)]

    columns = ("id", "lease_generation", "lease_seconds", "lease_expires_at")
    statement = select(*(studies.c[name] for name in columns)).where(_LEASED)
    return damage.sound(connection, statement, studies, too_long)


def _latest(lease: Row[*tuple[Any, ...]], now: datetime) -> datetime:
    """Return the latest possible expiry of a lease renewed now."""
    end: datetime = now + timedelta(seconds=lease.lease_seconds)
    return end


def _unlocked(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition for matching studies that no other transaction has locked."""
    return studies.c.id.in_(
        select(studies.c.id).where(condition).with_for_update(skip_locked=True, key_share=True)
    )


def _is(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    """Return the condition for the study under this lease; a deleted study's id could have been reused."""
    return (
        studies.c.id == lease.study.id,
        studies.c.created_at == lease.study.created_at,
        studies.c.lease_worker == lease.worker,
        studies.c.lease_generation == lease.generation,
    )


def _lost(connection: Connection, lease: Lease) -> LeaseLost:
    row = connection.execute(
        select(studies.c.name, studies.c.state, studies.c.lease_worker).where(
            studies.c.id == lease.study.id
        )
    ).first()
    if row is None or row.name != lease.study.name:
        now_is = "the study was deleted"
    elif row.lease_worker is not None:
        now_is = f"{row.lease_worker!r} has taken it over"
    else:
        now_is = f"the study is {str(row.state)!r} now"
    return LeaseLost(
        f"worker {lease.worker!r} no longer holds the study {lease.study.name!r}: {now_is}; "
        f"stop working on it; stored results are kept"
    )
