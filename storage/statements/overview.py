"""Small queries that a server makes about the whole database, as statements on one connection.

The contract is in ``storage.service_store``.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, Table, Text, cast, distinct, func, select

from storage.records import BYTES_OF_A_POINT, StudyState, Totals
from storage.schema.tables import convergence, events, plans, studies, trials
from storage.statements.trials import chunks

BYTES_OF_A_TRIAL, BYTES_OF_A_PLAN, BYTES_OF_AN_EVENT = 1_000, 20_000, 300


def last_event_id(connection: Connection) -> int:
    """Return the id of the newest event, 0 if there are no events."""
    return int(connection.execute(select(func.max(events.c.id))).scalar() or 0)


def trial_ids(connection: Connection, study_id: int, numbers: Collection[int]) -> dict[int, int]:
    """Return the ids of some trials of a study, by number; missing numbers are left out."""
    found: dict[int, int] = {}
    for chunk in chunks(sorted(set(numbers))):
        wanted = select(trials.c.number, trials.c.id).where(
            trials.c.study_id == study_id, trials.c.number.in_(chunk)
        )
        found.update((row.number, row.id) for row in connection.execute(wanted))
    return found


def queued_of(connection: Connection, owner: str, besides: str) -> int:
    """Return how many studies of an owner wait in the queue, not counting the one named ``besides``."""
    waiting = select(func.count()).where(
        studies.c.owner == owner, studies.c.state == StudyState.QUEUED, studies.c.name != besides
    )
    return connection.execute(waiting).scalar_one()


def stored_bytes(connection: Connection, owner: str) -> int:
    """Return the approximate bytes used by an owner's studies: files, and rows of trials, points, plans and events."""
    own = select(studies.c.id).where(studies.c.owner == owner)
    files = connection.execute(
        select(func.sum(func.length(studies.c.spec))).where(studies.c.owner == owner)
    ).scalar()
    count = (
        select(func.count(distinct(trials.c.id)), func.count(convergence.c.step))
        .select_from(trials.outerjoin(convergence))
        .where(trials.c.study_id.in_(own))
    )
    of_trials, of_points = connection.execute(count).one()
    of_plans, of_events = (
        connection.execute(select(func.count()).where(table.c.study_id.in_(own))).scalar_one()
        for table in (plans, events)
    )
    return (
        int(files or 0)
        + BYTES_OF_A_TRIAL * of_trials
        + BYTES_OF_A_POINT * of_points
        + BYTES_OF_A_PLAN * of_plans
        + BYTES_OF_AN_EVENT * of_events
    )


def totals(connection: Connection) -> Totals:
    """Count studies and trials by state, and points, and find when the oldest queued study was queued."""
    waiting = select(func.min(studies.c.queued_at)).where(studies.c.state == StudyState.QUEUED)
    points = connection.execute(select(func.count()).select_from(convergence)).scalar_one()
    return Totals(
        studies=_by_state(connection, studies),
        trials=_by_state(connection, trials),
        points=points,
        oldest_queued=connection.execute(waiting).scalar(),
    )


def _by_state(connection: Connection, table: Table) -> dict[str, int]:
    state = cast(table.c.state, Text)  # a damaged state is counted as plain text
    counted = select(state, func.count()).group_by(state)
    return {str(state): number for state, number in connection.execute(counted)}
