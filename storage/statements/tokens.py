"""Tokens: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Select, insert, or_, select, update

from storage.errors import InvalidRecord, NotFound
from storage.records import NewToken, Token
from storage.schema.tables import tokens
from storage.statements import clock, damage

_TOUCHED_EVERY = timedelta(minutes=1)


def add(connection: Connection, new: NewToken) -> Token:
    """Store a token."""
    wrong = sorted(scope for scope in new.scopes if not re.fullmatch(r"[\w:.-]+", scope))
    if wrong:
        raise InvalidRecord(f"a scope must be one word, but got {wrong[0]!r}")
    row = connection.execute(
        insert(tokens)
        .values(
            name=new.name,
            owner=new.owner,
            digest=new.digest,
            scopes=" ".join(sorted(new.scopes)),
            created_at=clock.now(connection),
            expires_at=new.expires_at,
        )
        .returning(tokens)
    ).one()
    return token_of_row(row)


def by_hashes(connection: Connection, digests: Collection[str]) -> dict[str, Token]:
    """Return the tokens with these digests, valid or not; damaged tokens are left out."""
    wanted = select(tokens).where(tokens.c.digest.in_(sorted(digests)))
    return {token.digest: token for token in _sound(connection, wanted)}


def every(connection: Connection, owner: str | None) -> list[Token]:
    """Return tokens, oldest first; damaged tokens are left out."""
    statement = select(tokens).order_by(tokens.c.id)
    if owner is not None:
        statement = statement.where(tokens.c.owner == owner)
    return _sound(connection, statement)


def _sound(connection: Connection, statement: Select[Any]) -> list[Token]:
    return damage.sound(connection, statement, tokens, lambda rows: [*map(token_of_row, rows)])


def valid(connection: Connection, token_ids: Collection[int]) -> set[int]:
    """Return the ids of the given tokens that are currently valid."""
    now = clock.now(connection)
    wanted = select(tokens.c.id).where(
        tokens.c.id.in_(sorted(token_ids)),
        tokens.c.revoked_at.is_(None),
        or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now),
    )
    return set(connection.execute(wanted).scalars())


def revoke(connection: Connection, token_id: int) -> None:
    """Revoke a token; only the time of the first revocation is kept."""
    if connection.execute(select(tokens.c.id).where(tokens.c.id == token_id)).first() is None:
        raise NotFound(f"there is no token with id {token_id}; Store.tokens() lists them")
    connection.execute(
        update(tokens)
        .where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None))
        .values(revoked_at=clock.now(connection))
    )


def is_stale(connection: Connection, token_id: int) -> bool:
    """Return whether the stored time of the token's last use is out of date."""
    wanted = select(tokens.c.last_used_at).where(tokens.c.id == token_id)
    try:
        row = connection.execute(wanted).first()
    except damage.CAUSES:
        return True  # a damaged time is rewritten
    return row is not None and _is_past(row.last_used_at, clock.now(connection))


def touch(connection: Connection, token_id: int) -> None:
    """Record that a token was used now."""
    connection.execute(
        update(tokens).where(tokens.c.id == token_id).values(last_used_at=clock.now(connection))
    )


def _is_past(used_at: datetime | None, now: datetime) -> bool:
    return used_at is None or abs(now - used_at) >= _TOUCHED_EVERY


def token_of_row(row: Row[Any]) -> Token:
    """Convert a row of the table to a token; raise ValueError for a damaged row."""
    damage.check_kinds(tokens, [row])
    values = row._asdict()
    return Token(**{**values, "scopes": frozenset(values["scopes"].split())})
