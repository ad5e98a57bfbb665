"""Browser sessions: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from storage.records import Token
from storage.schema.tables import sessions, tokens
from storage.statements import clock
from storage.statements.tokens import token_of_row

MOST_OF_A_TOKEN = 1_000
"""The maximum number of sessions per token: a further login ends the oldest one, so that logins cannot fill
the table.
"""


def add(connection: Connection, digest: str, token_id: int, expires_at: datetime) -> None:
    """Store a session of a token; delete expired sessions, and the oldest ones beyond the token's limit."""
    connection.execute(delete(sessions).where(sessions.c.expires_at <= clock.now(connection)))
    connection.execute(
        insert(sessions).values(digest=digest, token_id=token_id, expires_at=expires_at)
    )
    of_token = sessions.c.token_id == token_id
    newest = (
        select(sessions.c.digest)
        .where(of_token, sessions.c.digest != digest)
        .order_by(sessions.c.expires_at.desc(), sessions.c.digest)
        .limit(MOST_OF_A_TOKEN - 1)
    )
    connection.execute(
        delete(sessions).where(
            of_token, sessions.c.digest != digest, sessions.c.digest.not_in(newest)
        )
    )


def token_of(connection: Connection, digest: str) -> Token | None:
    """Return a session's token, valid or not; None if the session is unknown or has expired."""
    row = connection.execute(
        select(tokens)
        .select_from(sessions.join(tokens))
        .where(sessions.c.digest == digest, sessions.c.expires_at > clock.now(connection))
    ).first()
    return None if row is None else token_of_row(row)


def remove(connection: Connection, digest: str) -> None:
    """End a session, if it exists."""
    connection.execute(delete(sessions).where(sessions.c.digest == digest))
