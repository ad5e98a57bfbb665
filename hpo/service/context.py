"""The state shared by all requests of one server, and the dependencies of routes: the caller and the study."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import urlsplit

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends, Path, Request, Security
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from hpo.service import fit_process
from hpo.service.ask_tell_studies import AskTellStudies
from hpo.service.auth import SESSION_PREFIX, TokenCache, TokenHolder
from hpo.service.checking import PROCESSES, CheckedStudy, CheckerPool
from hpo.service.computations import ComputationPool
from hpo.service.config import ServerConfig
from hpo.service.fair_queue import FairQueue, RequestSlot
from hpo.service.forecast_cache import ForecastCache
from hpo.service.live import EventReader
from hpo.service.metrics import ServerMetrics
from hpo.service.rate_limit import RateLimit
from hpo.service.refusal import RefusedError
from hpo.study import rules
from storage.errors import NotFound, StoreUnavailable
from storage.records import Study
from storage.store import Store

COOKIE = "hpo_session"
SLASH = "\ue000"
"""Replaces an encoded slash within a path segment, such as in a study's name; no name contains this character."""
BIGGEST_ID = 2**63 - 1
COUNT_SECONDS, MOST_COUNTED = 60.0, 10_000
MOST_WAITING = 200
"""Maximum number of requests of one owner, or of one address without a token, that may wait for a slot."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\s:/@\[\]]+))(?::[0-9]{1,5})?")

bearer = HTTPBearer(
    auto_error=False,
    description="`Authorization: Bearer lb_...`; `hpo token create` makes a token.",
)
cookie = APIKeyCookie(
    name=COOKIE,
    auto_error=False,
    description="Set by /login; a request that changes something "
    "must come from a page of this server, or carry X-Requested-With.",
)


class ServerContext:
    """The configuration and the state of one server. The store opens on first use.

    Opening is retried until it succeeds, so a server may start before its database.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.tokens = TokenCache()
        self.rates = RateLimit(config.limits.requests_per_second, config.limits.burst)
        per_minute = config.limits.forecasts_per_minute
        self.computed = RateLimit(per_minute / 60, per_minute)
        self.computations = ComputationPool()
        self._stored: dict[str, tuple[int, float]] = {}
        self.strangers = RateLimit(10, 100)  # requests with unknown tokens, per address
        self.fair_queue = FairQueue(config.threads, config.limits.requests_at_once, MOST_WAITING)
        self.hosts = allowed_hosts(config)
        self._suspects: CapacityLimiter | None = None
        self.metrics = ServerMetrics()
        self.forecasts = ForecastCache()
        self._checker = CheckerPool(config)
        self._checks = ComputationPool(
            PROCESSES, "checks of submissions", wait_seconds=3 * config.limits.check_seconds
        )
        self.live = EventReader(self.open_store)
        self.ask_tell_studies = AskTellStudies(self.open_store)
        self._store: Store | None = None
        self._failed: tuple[float, StoreUnavailable] | None = None
        self._lock = threading.Lock()

    @property
    def suspects(self) -> CapacityLimiter:
        """A single thread that looks up tokens for addresses that have guessed too often."""
        self._suspects = self._suspects or CapacityLimiter(1)
        return self._suspects

    def open_store(self) -> Store:
        """Return the store; raise StoreUnavailable if it cannot be opened. Opening is retried at most once a second."""
        if self._store is not None:
            return self._store
        with self._lock:
            if self._store is None:
                if self._failed is not None and time.monotonic() - self._failed[0] < 1:
                    raise self._failed[1]
                try:
                    self._store = Store.open(self.config.storage, timeout_seconds=10)
                except StoreUnavailable as error:
                    self._failed = time.monotonic(), error
                    raise
            return self._store

    def check_stored(self, owner: str, more: int = 0) -> None:
        """Raise RefusedError (429) if the owner already stores too much; else count ``more`` bytes as stored."""
        most = self.config.limits.stored_bytes
        if most is None:
            return
        stored = self._stored_bytes(owner)
        if stored >= most:
            raise RefusedError(
                429,
                f"the studies of {owner} take up about {stored:,} bytes, but this server allows "
                f"{most:,}",
                way_out="delete studies that are no longer needed",
                retry_after=600,
            )
        self._stored[owner] = stored + more, self._stored[owner][1]

    def _stored_bytes(self, owner: str) -> int:
        """Return the bytes that an owner's studies take up, recounted at most once a minute."""
        counted = self._stored.get(owner)
        if counted is None or time.monotonic() - counted[1] > COUNT_SECONDS:
            if len(self._stored) > MOST_COUNTED:
                self._stored.clear()
            counted = self.open_store().stored_bytes(owner), time.monotonic()
            self._stored[owner] = counted
        return counted[0]

    def check_computation(self, who: TokenHolder) -> None:
        """Raise RefusedError (429) if the owner exceeds the forecasts and plans allowed per minute."""
        wait = self.computed.wait(who.owner)
        if wait > 0:
            raise RefusedError(
                429,
                f"{who.owner} requested more than {self.config.limits.forecasts_per_minute} "
                f"forecasts and plans per minute that need a computation",
                way_out=f"wait {wait:.1f} s",
                retry_after=wait,
            )

    def close(self) -> None:
        """Close the connections and end the processes that check submissions."""
        self._checker.close()
        fit_process.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    async def checked(self, who: TokenHolder, slot: RequestSlot, text: str) -> CheckedStudy:
        """Return the study in a text from the network; raise SpecError if it is invalid, RefusedError on a timeout."""
        return await self._checks.run(who, slot, lambda: self._checker.check(text))

    def check_readable(self, who: TokenHolder, study: Study) -> Study:
        """Return the study; raise RefusedError (404) if reading is private and the study belongs to someone else."""
        if self.config.shared_reading or who.owns(study):
            return study
        raise not_found(study.name)

    def check_changeable(self, who: TokenHolder, study: Study) -> Study:
        """Return the study; raise RefusedError if it belongs to someone else."""
        if who.owns(self.check_readable(who, study)):
            return study
        raise RefusedError(
            403,
            f"study {study.name!r} belongs to {study.owner or 'nobody'}: only its owner and admins "
            "may change it",
            way_out="use a token of its owner, or one with the scope admin",
        )

    def read_study(self, who: TokenHolder, name: str) -> Study:
        """Return the study of that name if the caller may read it; an invalid name costs no query."""
        try:
            rules.check_name(name)
        except ValueError:
            raise not_found(name) from None
        try:
            return self.check_readable(who, self.open_store().study(name))
        except NotFound:
            if self.config.shared_reading:
                raise
            raise not_found(
                name
            ) from None  # the storage's message suggests the names of other studies


def not_found(name: str) -> RefusedError:
    """Return the error for a study that does not exist or that the caller may not see."""
    return RefusedError(
        404,
        f"there is no study {name[: rules.MAX_NAME_CHARACTERS]!r}",
        way_out="GET /api/v1/studies lists the studies that you may read",
    )


def server_context_of(request: Request) -> ServerContext:
    """Return the server's context."""
    context: ServerContext = request.app.state.context
    return context


async def _shared(request: Request) -> ServerContext:
    """Return the server's context for a route; async, because FastAPI runs other dependencies in a thread."""
    return server_context_of(request)


async def _own_slot(request: Request) -> RequestSlot:
    """Return the slot of the request."""
    slot: RequestSlot = request.state.slot
    return slot


async def _study_name(
    name: Annotated[
        str,
        Path(description="The study's name, percent-encoded; a slash is %2F.", examples=["digits"]),
    ],
) -> str:
    """Return the study's name from the path, with its slashes restored."""
    return name.replace(SLASH, "/")


def requires_scope(scope: str) -> Callable[..., Coroutine[Any, Any, TokenHolder]]:
    """Return a dependency that returns the holder of a token with the scope, or raises RefusedError 401, 403 or 429."""

    async def principal(
        request: Request,
        header: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
        session: Annotated[str | None, Security(cookie)],
    ) -> TokenHolder:
        who = await _authenticate(request, None if header is None else header.credentials, session)
        if not who.allows(scope):
            raise RefusedError(
                403,
                f"this request needs the scope {scope}, but the token has {', '.join(sorted(who.scopes))}",
                way_out=f"use a token made with `hpo token create --scope {scope}`",
            )
        return who

    return principal


async def _authenticate(request: Request, secret: str | None, session: str | None) -> TokenHolder:
    context, known = server_context_of(request), getattr(request.state, "principal", None)
    if known is not None:  # looked up before the body was read
        return known  # type: ignore[no-any-return]
    by_session = secret is None and session is not None
    if by_session:
        check_own_page(request)
        secret = session
    if secret is None:
        raise RefusedError(
            401,
            "this request needs a token",
            way_out="send Authorization: Bearer TOKEN; `hpo token create` makes a token",
        )
    of_its_kind = by_session == secret.startswith(SESSION_PREFIX)
    who = (of_its_kind and context.tokens.remembered(secret)) or await look_up_token(
        request, secret, session=by_session
    )
    request.state.principal, request.state.secret = who, secret
    wait = context.rates.wait(who.token_id)
    if wait > 0:
        raise RefusedError(
            429,
            f"this token sends more than {context.config.limits.requests_per_second:g} "
            f"requests per second",
            way_out=f"wait {wait:.1f} s",
            retry_after=wait,
        )
    return who


async def look_up_token(request: Request, secret: str, *, session: bool = False) -> TokenHolder:
    """Return the holder of a secret that is not in the cache.

    Addresses that guess tokens are refused after a while, but a valid token is still accepted from them: it is
    looked up first, by a thread that all such addresses share.
    """
    context = server_context_of(request)
    address = request.client.host if request.client else ""
    suspect = context.strangers.left(address) < 1
    try:
        return await run_sync(
            lambda: context.tokens.look_up(context.open_store(), secret, session=session),
            limiter=context.suspects if suspect else None,
        )
    except RefusedError:
        if not suspect:
            context.strangers.wait(address)
            raise
        raise RefusedError(
            429,
            "too many requests with unknown tokens",
            way_out="wait a second",
            retry_after=1,
        ) from None


async def authenticate_early(request: Request) -> None:
    """Authenticate the caller before the body is read; raise RefusedError 401, 403 or 429 on failure."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    bearing = secret if kind.lower() == "bearer" and secret else None
    await _authenticate(request, bearing, request.cookies.get(COOKIE))


def allowed_hosts(config: ServerConfig) -> frozenset[str] | None:
    """Return the host names that requests may use, without port; None for any.

    This blocks DNS rebinding, where a foreign page's host name is made to resolve to this machine.
    """
    if config.hosts:
        return frozenset(name.lower() for name in (*config.hosts, *LOCAL_HOSTS))
    return frozenset({config.host.lower(), *LOCAL_HOSTS}) if config.is_local else None


def host_header_name(header: str) -> str:
    """Return the name in a Host header in lower case, without port; "" if the header is malformed."""
    found = _HOST.fullmatch(header.strip().lower())
    return "" if found is None else found["address"] or found["name"]


def check_own_page(request: Request) -> None:
    """Refuse a state-changing request that another site makes a browser send with the cookie (CSRF)."""
    if request.method in ("GET", "HEAD"):
        return
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    own = bool(host) and origin is not None and _host_of(origin) == host
    if not own and "x-requested-with" not in request.headers:
        raise RefusedError(
            403,
            "a request with a login cookie must come from a page of this server"
            + (f", but it came from {origin[:100]!r} to {host[:100]!r}" if origin else ""),
            way_out="send the header X-Requested-With, or a bearer token"
            + ("; a proxy must forward the original Host header" if origin else ""),
        )


def _host_of(origin: str) -> str:
    """Return the host and port of an Origin header; "" if it has none or is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


Reader = Annotated[TokenHolder, Depends(requires_scope("read"))]
Submitter = Annotated[TokenHolder, Depends(requires_scope("submit"))]
READS, ADMINS = Depends(requires_scope("read")), Depends(requires_scope("admin"))
"""Dependencies of routes that need the scope but not the caller's identity."""
StudyName = Annotated[str, Depends(_study_name)]
Shared = Annotated[ServerContext, Depends(_shared)]
OwnSlot = Annotated[RequestSlot, Depends(_own_slot)]
