"""Sample images of outcomes: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select

from storage.errors import Conflict, InvalidRecord, NotFound
from storage.schema.tables import exhibits, outcomes
from storage.statements import plans

MAX_BYTES = 8_000_000
"""The maximum size of an outcome's sample images, in bytes of JSON."""


def add(connection: Connection, outcome_id: int, images: Mapping[str, Any]) -> None:
    """Store the sample images of an outcome."""
    content = _to_json(images)
    if connection.execute(select(outcomes.c.id).where(outcomes.c.id == outcome_id)).first() is None:
        raise NotFound(
            f"there is no outcome with id {outcome_id}; Store.outcomes(plan_id) lists a plan's outcomes"
        )
    if (
        connection.execute(
            select(exhibits.c.outcome_id).where(exhibits.c.outcome_id == outcome_id)
        ).first()
        is not None
    ):
        raise Conflict(f"outcome {outcome_id} has sample images already")
    connection.execute(insert(exhibits).values(outcome_id=outcome_id, content=content))


def of_plan(connection: Connection, plan_id: int) -> dict[int, dict[str, Any]]:
    """Return the sample images of a plan's outcomes, by the id of the outcome."""
    plans.by_id(connection, plan_id)
    statement = (
        select(exhibits.c.outcome_id, exhibits.c.content)
        .select_from(exhibits.join(outcomes))
        .where(outcomes.c.plan_id == plan_id)
        .order_by(exhibits.c.outcome_id)
    )
    return {row.outcome_id: json.loads(row.content) for row in connection.execute(statement)}


def _to_json(images: Mapping[str, Any]) -> str:
    try:
        content = json.dumps(dict(images), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"sample images must hold plain JSON values, but {error}") from error
    if len(content) > MAX_BYTES:  # json writes ASCII, so each character is one byte
        raise InvalidRecord(
            f"sample images must have at most {MAX_BYTES:,} bytes as JSON, but got {len(content):,}; "
            "keep fewer or smaller panels"
        )
    return content
