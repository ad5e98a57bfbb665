"""Records which process runs a plan with a seed, as statements on one connection; the contract is in
``storage.store``.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, delete, select

from storage.database import insert_into
from storage.schema.tables import plan_runs
from storage.statements import clock, plans


def take(
    connection: Connection,
    plan_id: int,
    seed: int,
    holder: str,
    seconds: float,
    instead_of: str | None,
) -> str | None:
    """Take or renew the run of a plan; return None on success, otherwise the current holder."""
    plans.by_id(connection, plan_id)
    now = clock.now(connection)
    new = insert_into(connection, plan_runs).values(
        plan_id=plan_id, seed=seed, holder=holder, expires_at=now + timedelta(seconds=seconds)
    )
    free = (plan_runs.c.expires_at <= now) | plan_runs.c.holder.in_([holder, instead_of or holder])
    taken = connection.execute(
        new.on_conflict_do_update(
            index_elements=["plan_id", "seed"],
            set_={"holder": new.excluded.holder, "expires_at": new.excluded.expires_at},
            where=free,
        ).returning(plan_runs.c.holder)
    ).first()
    if taken is not None:
        return None
    return connection.execute(select(plan_runs.c.holder).where(_is(plan_id, seed))).scalar()


def release(connection: Connection, plan_id: int, seed: int, holder: str) -> None:
    """Release the run of a plan; do nothing if another process holds it."""
    connection.execute(delete(plan_runs).where(_is(plan_id, seed), plan_runs.c.holder == holder))


def _is(plan_id: int, seed: int) -> ColumnElement[bool]:
    return (plan_runs.c.plan_id == plan_id) & (plan_runs.c.seed == seed)
