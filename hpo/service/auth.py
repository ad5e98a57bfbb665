"""Authentication by bearer tokens, each with scopes, an owner and an expiry.

A secret is ``lb_`` and 256 bits of :func:`secrets.token_urlsafe`. The database holds only its SHA-256. Slow,
salted hashes (bcrypt, Argon2) protect passwords, which people choose and attackers can guess. A secret of 256 random
bits cannot be guessed or precomputed even with a fast hash, and a slow hash would delay every request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hpo.service.refusal import RefusedError
from storage.records import NewToken, Study, Token
from storage.store import Store

SCOPES = ("read", "submit", "admin")
"""Each scope includes the scopes before it."""
PREFIX, SESSION_PREFIX = "lb_", "ls_"
REMEMBERED_SECONDS = 1.0
"""How long a looked-up token stays cached; a revocation in another process takes effect within this time."""
BUSY_SECONDS, MOST_TOGETHER = 2.0, 500
"""Tokens used within the last BUSY_SECONDS are looked up with any other token, at most MOST_TOGETHER per query."""
TOUCH_SECONDS = 60.0
_SECRET = re.compile(PREFIX + r"[A-Za-z0-9_-]{20,100}")
_SESSION = re.compile(SESSION_PREFIX + r"[A-Za-z0-9_-]{20,100}")
_OWNER = re.compile(r"[^\s/][^\x00-\x1f\x7f]{0,99}")


@dataclass(frozen=True)
class TokenHolder:
    """The holder of a token."""

    token_id: int
    owner: str
    scopes: frozenset[str]
    expires_at: datetime | None = None

    def allows(self, scope: str) -> bool:
        """Return whether the token has the scope, or one that includes it."""
        return any(each in self.scopes for each in SCOPES[SCOPES.index(scope) :])

    def owns(self, study: Study) -> bool:
        """Return whether the token may change the study: its holder owns the study or is an admin."""
        return self.allows("admin") or (bool(self.owner) and study.owner == self.owner)


def new_secret() -> str:
    """Return a new secret; it is shown once and stored nowhere."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """Return the digest that the database stores for a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(
    store: Store, *, owner: str, scope: str, name: str = "", lifetime: timedelta | None = None
) -> tuple[str, Token]:
    """Create a token; return it with its secret, which cannot be read again.

    Raises RefusedError for an invalid scope, owner or name.
    """
    if scope not in SCOPES:
        raise RefusedError(422, f"scope must be one of {', '.join(SCOPES)}, but got {scope!r}")
    if not _OWNER.fullmatch(owner) or not owner.isprintable() or owner != owner.strip():
        raise RefusedError(
            422,
            "owner must be 1 to 100 printable characters with no space at the ends, "
            f"but got {owner[:100]!r}",
        )
    if not name.isprintable() or len(name) > 100:
        raise RefusedError(
            422, f"name must be at most 100 printable characters, but got {name[:100]!r}"
        )
    secret = new_secret()
    expires_at = None if lifetime is None else datetime.now(UTC) + lifetime
    token = store.add_token(
        NewToken(
            name=name,
            owner=owner,
            digest=digest_of(secret),
            scopes=frozenset({scope}),
            expires_at=expires_at,
        )
    )
    return secret, token


def check_token(token: Token | None, digest: str, now: datetime) -> TokenHolder:
    """Return the holder of a stored token; raise RefusedError (401) if it is missing, revoked or expired."""
    if token is None or not hmac.compare_digest(token.digest, digest):
        raise RefusedError(401, "this token is unknown", way_out="`hpo token create` makes one")
    if token.revoked_at is not None:
        raise RefusedError(
            401, "this token was revoked", way_out="ask for a new one: `hpo token create`"
        )
    if token.expires_at is not None and token.expires_at <= now:
        raise RefusedError(
            401,
            f"this token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC",
            way_out="ask for a new one: `hpo token create`",
        )
    return TokenHolder(token.id, token.owner, token.scopes, token.expires_at)


def start_session(store: Store, who: TokenHolder, lifetime: timedelta) -> tuple[str, timedelta]:
    """Start a browser session, which acts for the login token and ends with it; return its secret and lifetime."""
    secret, now = SESSION_PREFIX + secrets.token_urlsafe(32), datetime.now(UTC)
    ends = min(now + lifetime, who.expires_at or now + lifetime)
    store.add_session(digest_of(secret), who.token_id, ends)
    return secret, ends - now


@dataclass
class _Known:
    """A cached token: its holder, when it was read from the database, and when it was last used (seconds)."""

    principal: TokenHolder
    read_at: float
    asked_at: float
    by_session: bool


class TokenCache:
    """Looks up tokens and caches them for a second, so that a busy client does not cause a query per request.

    Recently used secrets are looked up together, in one query per second, however many clients are busy.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._touched: dict[int, float] = {}
        self._lock = threading.Lock()

    def remembered(self, secret: str) -> TokenHolder | None:
        """Return the holder of the secret from the cache of recent look-ups, or None."""
        found, now = self._known.get(digest_of(secret)), time.monotonic()
        if found is None:
            return None
        found.asked_at = now
        ends = found.principal.expires_at
        if now - found.read_at > REMEMBERED_SECONDS or (ends and ends <= datetime.now(UTC)):
            return None
        return found.principal

    def look_up(self, store: Store, secret: str, *, session: bool = False) -> TokenHolder:
        """Return the holder of the secret of a token or session; raise RefusedError (401) if there is none."""
        digest, began, now = digest_of(secret), time.monotonic(), datetime.now(UTC)
        if session:
            token = store.token_by_session(digest) if _SESSION.fullmatch(secret) else None
            if token is None:
                raise _no_session()
            principal = check_token(token, token.digest, now)
            self._remember(store, digest, _Known(principal, began, began, by_session=True))
            return principal
        if not _SECRET.fullmatch(secret):
            raise RefusedError(
                401,
                f"a token starts with {PREFIX}, followed by letters, digits, - and _",
                way_out="`hpo token create` makes one",
            )
        busy = self._busy(began)
        found = store.tokens_by_hashes([digest, *busy])
        for other, asked_at in busy.items():
            try:
                principal = check_token(found.get(other), other, now)
                self._remember(store, other, _Known(principal, began, asked_at, by_session=False))
            except RefusedError:
                self._known.pop(other, None)
        principal = check_token(found.get(digest), digest, now)
        self._remember(store, digest, _Known(principal, began, began, by_session=False))
        return principal

    def _busy(self, now: float) -> dict[str, float]:
        """Return the time of last use, by digest, of recently used tokens that are soon due for another look-up."""
        with self._lock:
            known = list(self._known.items())
        asked = {
            digest: each.asked_at
            for digest, each in known
            if now - each.asked_at < BUSY_SECONDS
            and now - each.read_at > REMEMBERED_SECONDS / 2
            and not each.by_session
        }
        return dict(sorted(asked.items(), key=lambda each: -each[1])[:MOST_TOGETHER])

    def _remember(self, store: Store, digest: str, found: _Known) -> None:
        token_id = found.principal.token_id
        with self._lock:
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[digest] = found
            touch = time.monotonic() - self._touched.get(token_id, -TOUCH_SECONDS) >= TOUCH_SECONDS
            if touch:
                self._touched[token_id] = time.monotonic()
        if touch:
            store.touch_token(token_id)

    def end_session(self, store: Store, secret: str) -> None:
        """End a session in this cache and in the database."""
        store.remove_session(digest_of(secret))
        self.forget()

    def forget(self) -> None:
        """Clear the cache, for example after a revocation."""
        with self._lock:
            self._known.clear()


def _no_session() -> RefusedError:
    return RefusedError(
        401, "you are not logged in, or your session has ended", way_out="log in again: /login"
    )
