"""Leases on single trials, for ask-and-tell: statements on one connection.

A client that asks for a trial provides a secret key. Every later write under that key first checks, in its own
transaction, that the key is still the trial's: it is a fencing token like the generation of a study's lease
(``storage.statements.queue``). The key of a new holder replaces the previous one, so that two holders never write to
one trial. A client that repeats a request because the answer was lost gets the same answer. The time only decides when
a silent holder's trial may be given to another client. A holder that returns before then continues, because its key is
still valid.

A study is run either by a worker under its own lease or by holders of trials, never by both: :func:`lease` refuses a
study with a live lease, and a worker does not take a study with a live trial (:func:`any_live`). Every function here
locks the study's row first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from storage.errors import Conflict, LeaseLost
from storage.records import NewTrial, Study, StudyState, Trial, TrialLease, TrialResult, TrialState
from storage.schema.tables import studies as studies_table
from storage.schema.tables import trial_leases as table
from storage.schema.tables import trials
from storage.statements import checksums, clock, damage, studies
from storage.statements import trials as trial_statements
from storage.statements.queue import ended_lease_values, has_live_lease

OPEN = (StudyState.QUEUED, StudyState.RUNNING, StudyState.INTERRUPTED)
"""The states of a study in which clients can ask for its trials."""


def lease(
    connection: Connection,
    study_id: int,
    what: int | NewTrial,
    *,
    known: int,
    key: str,
    holder: str,
    seconds: float,
) -> TrialLease | None:
    """Lease the queued trial with this number, or a new trial; if the key already has a trial, return that trial.

    Return None if the trial is no longer queued, or if the number of the study's trials with the new trial's purpose
    differs from ``known``: the caller must then read again.
    """
    study, now = studies.lock(connection, study_id), clock.now(connection)
    again = of_key(connection, study_id, key)
    if again is not None:
        return again
    _check_open(study, now)
    if isinstance(what, NewTrial):
        count = select(func.count()).where(
            trials.c.study_id == study_id, trials.c.purpose == what.purpose
        )
        if connection.execute(count).scalar_one() != known:
            return None
        (trial,) = trial_statements.add(connection, study_id, [what])
    else:
        trial = trial_statements.by_number(connection, study_id, what)
        if trial.state is not TrialState.QUEUED:
            return None
    _take_from_workers(connection, study, now)
    _set_trial(connection, trial.id, state=TrialState.RUNNING, started_at=now)
    values = {
        "key": key,
        "holder": holder,
        "seconds": seconds,
        "expires_at": now + timedelta(seconds=seconds),
    }
    changed = update(table).where(table.c.trial_id == trial.id).values(values)
    if connection.execute(changed).rowcount == 0:
        connection.execute(insert(table).values(trial_id=trial.id, vanished=0, **values))
    return of_key(connection, study_id, key)


def of_key(connection: Connection, study_id: int, key: str) -> TrialLease | None:
    """Return the study's trial requested with this key; None if there is none or another key holds it now."""
    row = connection.execute(
        select(table)
        .join(trials, trials.c.id == table.c.trial_id)
        .where(trials.c.study_id == study_id, table.c.key == key)
    ).first()
    return None if row is None else _to_lease(connection, row)


def renew(
    connection: Connection, study_id: int, number: int, key: str, seconds: float
) -> TrialLease:
    """Renew the lease from now on; a trial that went back into the queue in the meantime returns to its holder."""
    studies.lock(connection, study_id)
    held, now = _held(connection, study_id, number, key), clock.now(connection)
    if held.trial.state.finished:
        raise LeaseLost(f"trial {number} has ended already, as {str(held.trial.state)!r}")
    expires_at = now + timedelta(seconds=seconds)
    _set(connection, held.trial.id, seconds=seconds, expires_at=expires_at)
    trial = held.trial
    if trial.state is TrialState.QUEUED:
        _set_trial(connection, trial.id, state=TrialState.RUNNING, started_at=now)
        trial = replace(trial, state=TrialState.RUNNING, started_at=now)
    return replace(held, trial=trial, seconds=seconds, expires_at=expires_at)


def finish(
    connection: Connection, study_id: int, number: int, key: str, result: TrialResult
) -> tuple[Trial, bool]:
    """Store the result; return the trial and whether this call wrote it, because a client may send the same result
    twice.
    """
    studies.lock(connection, study_id)
    held = _held(connection, study_id, number, key)
    if held.trial.state.finished:
        return held.trial, False
    trial_statements.finish(connection, held.trial.id, result)
    return trial_statements.by_number(connection, study_id, number), True


def release(connection: Connection, study_id: int, number: int, key: str) -> Trial:
    """Put the trial back into its study's queue; a trial that has ended stays as it is."""
    studies.lock(connection, study_id)
    held = _held(connection, study_id, number, key)
    if held.trial.state is TrialState.RUNNING:
        _set_trial(connection, held.trial.id, state=TrialState.QUEUED, started_at=None)
    return trial_statements.by_number(connection, study_id, number)


def expire(connection: Connection, study_id: int, most_vanished: int) -> list[Trial]:
    """Queue trials whose holder stopped responding, or fail them if that happened too often; return these trials.

    If a clock was set back, a lease may end later than a new lease would; it is shortened to its full length from now.
    """
    studies.lock(connection, study_id)
    now, found = clock.now(connection), []
    for row in _rows(connection, study_id):
        latest = now + timedelta(seconds=row.seconds)
        if row.expires_at > latest:
            _set(connection, row.trial_id, expires_at=latest)
        if row.expires_at > now:
            continue
        vanished = row.vanished + 1
        _set(connection, row.trial_id, vanished=vanished)
        if vanished > most_vanished:
            reason = (
                f"its holder stopped responding {vanished} times, last {row.holder}: the "
                f"trial may kill its process, for example by using up the memory"
            )
            result = TrialResult(state=TrialState.FAILED, reason=reason)
            trial_statements.finish(connection, row.trial_id, result)
            trial_statements.count_samples(connection, row.trial_id)
            checksums.write_of_trials(connection, [row.trial_id])
        else:
            _set_trial(connection, row.trial_id, state=TrialState.QUEUED, started_at=None)
        found.append(_to_lease(connection, row).trial)
    return found


def running(connection: Connection, study_id: int) -> list[TrialLease]:
    """Return the running trials that have holders, by number, whether or not their leases have expired."""
    return [_to_lease(connection, row) for row in _rows(connection, study_id)]


def any_live(connection: Connection, study_id: int) -> bool:
    """Return whether any trial of the study has a live lease."""
    now = clock.now(connection)
    return any(row.expires_at > now for row in _rows(connection, study_id))


def forget(connection: Connection, trial_ids: Sequence[int]) -> None:
    """End the leases of these trials; until then, their holders could send their results again."""
    for ids in trial_statements.chunks(trial_ids):
        connection.execute(delete(table).where(table.c.trial_id.in_(ids)))


def forget_unfinished(connection: Connection, study_id: int) -> None:
    """End the leases of all trials that have not ended, so that their holders can no longer write."""
    unfinished = select(trials.c.id).where(
        trials.c.study_id == study_id,
        trials.c.state.in_([TrialState.QUEUED, TrialState.RUNNING]),
    )
    connection.execute(delete(table).where(table.c.trial_id.in_(unfinished)))


def _check_open(study: Study, now: datetime) -> None:
    if has_live_lease(study, now):
        raise Conflict(
            f"worker {study.lease_worker!r} is running study {study.name!r}: its trials cannot "
            f"be requested; cancel it first, or wait until it ends"
        )
    if study.state not in OPEN:
        raise Conflict(
            f"study {study.name!r} is {study.state}: its trials cannot be requested; resume it "
            f"first"
        )


def _take_from_workers(connection: Connection, study: Study, now: datetime) -> None:
    """Reserve the study for clients that ask for trials; trials of a worker that stopped responding are
    queued again.
    """
    if study.state is StudyState.RUNNING and study.for_agents and study.lease_worker is None:
        return
    connection.execute(
        update(studies_table)
        .where(studies_table.c.id == study.id)
        .values(
            {
                **ended_lease_values(now),
                "state": StudyState.RUNNING,
                "message": "",
                "for_agents": True,
            }
        )
    )
    connection.execute(
        update(trials)
        .where(
            trials.c.study_id == study.id,
            trials.c.state == TrialState.RUNNING,
            trials.c.id.not_in(select(table.c.trial_id)),
        )
        .values(state=TrialState.QUEUED, started_at=None)
    )


def _set(connection: Connection, trial_id: int, **values: Any) -> None:
    connection.execute(update(table).where(table.c.trial_id == trial_id).values(values))


def _set_trial(connection: Connection, trial_id: int, **values: Any) -> None:
    connection.execute(update(trials).where(trials.c.id == trial_id).values(values))


def _held(connection: Connection, study_id: int, number: int, key: str) -> TrialLease:
    """Return the trial held under this key; raise :class:`LeaseLost` if the key is not valid for it, or no longer."""
    trial = trial_statements.by_number(connection, study_id, number)
    row = connection.execute(
        select(table).where(table.c.trial_id == trial.id, table.c.key == key)
    ).first()
    if row is None:
        raise LeaseLost(
            f"trial {number} is no longer yours: it went back into the queue for others; stop, "
            f"and ask for another"
        )
    return _lease_of(row, trial)


def _rows(connection: Connection, study_id: int) -> Sequence[Row[Any]]:
    """Return the leases of running trials, ordered by number."""
    return connection.execute(
        select(table)
        .join(trials, trials.c.id == table.c.trial_id)
        .where(trials.c.study_id == study_id, trials.c.state == TrialState.RUNNING)
        .order_by(trials.c.number)
    ).all()


def _to_lease(connection: Connection, row: Row[Any]) -> TrialLease:
    with damage.named(f"the trial with id {row.trial_id}"):
        trial = connection.execute(select(trials).where(trials.c.id == row.trial_id)).one()
        return _lease_of(row, trial_statements.to_trial(trial))


def _lease_of(row: Row[Any], trial: Trial) -> TrialLease:
    values = row._asdict()
    del values["trial_id"]
    return TrialLease(trial=trial, **values)
