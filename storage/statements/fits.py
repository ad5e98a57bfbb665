"""Fitted laws of studies, and answers computed from them, as statements on one connection.

The contract is in ``storage.store``.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from storage.database import insert_into
from storage.schema.tables import fits
from storage.statements import clock, studies

MOST_OF_A_STUDY = 24
"""The maximum number of fits kept per study: some for each left-out outcome, a forecast, and the figures of each
setting.
"""


def keep(connection: Connection, study_id: int, fingerprint: str, content: str) -> None:
    """Store a fit, replacing any fit with the same fingerprint."""
    studies.by_id(connection, study_id)
    now = clock.now(connection)
    new = insert_into(connection, fits).values(
        study_id=study_id, fingerprint=fingerprint, content=content, made_at=now
    )
    connection.execute(
        new.on_conflict_do_update(
            index_elements=["study_id", "fingerprint"],
            set_={"content": new.excluded.content, "made_at": new.excluded.made_at},
        )
    )
    newest = (
        select(fits.c.fingerprint)
        .where(fits.c.study_id == study_id)
        .order_by(fits.c.made_at.desc(), fits.c.fingerprint)
        .limit(MOST_OF_A_STUDY)
    )
    connection.execute(
        delete(fits).where(fits.c.study_id == study_id, fits.c.fingerprint.not_in(newest))
    )


def find(connection: Connection, study_id: int, fingerprint: str) -> str | None:
    """Return a stored fit; None if no fit has that fingerprint."""
    statement = select(fits.c.content).where(
        fits.c.study_id == study_id, fits.c.fingerprint == fingerprint
    )
    return connection.execute(statement).scalar()
