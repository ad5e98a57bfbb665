"""Middleware for every request: authentication, body limit, slot, headers, log line, metrics."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpo.service.context import SLASH, ServerContext, authenticate_early, host_header_name
from hpo.service.errors import error_reply, service_error_reply
from hpo.service.logs import ACCESS, LOG
from hpo.service.refusal import RefusedError
from storage.errors import StoreError

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BODILESS = ("GET", "HEAD", "OPTIONS")
_ENCODED_SLASH = re.compile(rb"%2f", re.IGNORECASE)


class RequestMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self.app, self.context = app, context
        self._proxy_told = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope["path"] = _path(scope, self.context.config.path)
        given = headers.get("x-request-id", "")
        passing = _Passing(
            scope, send, given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        )
        scope.setdefault("state", {})["request_id"] = passing.request_id
        self._look_for_proxy(headers)
        try:
            refusal, body = self._host(headers), None
            if refusal is None:
                refusal = await self._who(scope, headers, receive)
            if refusal is None and _has_body(scope, headers):
                refusal, body = await self._body(scope, headers, receive)
            if refusal is not None:
                await refusal(scope, receive, passing.send)
            else:
                await self._answer(
                    scope, receive if body is None else _replay(body, receive), passing
                )
        except Exception as error:
            passing.failure = f"{type(error).__name__}: {error}"
            LOG.exception(
                "request %s failed",
                passing.request_id,
                extra={"fields": {"request_id": passing.request_id}},
            )
            if not passing.status:
                answer = error_reply(
                    500,
                    "the server failed on this request; its log has the request ID "
                    f"{passing.request_id}",
                )
                await answer(scope, receive, passing.send)
        finally:
            self._tell(scope, passing)

    async def _answer(self, scope: Scope, receive: Receive, passing: _Passing) -> None:
        """Answer the request once its owner has a free slot.

        A stream releases its slot when it starts. A response to an unauthenticated caller does too, so that others at
        the same address need not wait until it is read.
        """
        who = scope["state"].get("principal")
        client = scope["client"][0] if scope.get("client") else ""
        owner = ("address", client) if who is None else ("owner", who.owner)
        try:
            async with self.context.fair_queue.slot(owner) as slot:
                passing.on_begin, passing.begins_early = slot.end, who is None
                scope["state"]["slot"] = slot
                await self.app(scope, receive, passing.send)
        except asyncio.QueueFull:
            refusal = error_reply(
                429,
                f"too many requests of {owner[1]} are waiting for a response",
                way_out="wait for responses before sending more",
                headers={"Retry-After": "1"},
            )
            await refusal(scope, receive, passing.send)

    def _look_for_proxy(self, headers: Headers) -> None:
        """Log once that requests come through a proxy that the configuration does not name."""
        if self._proxy_told or self.context.config.trusted_proxies:
            return
        if "x-forwarded-proto" in headers or "x-forwarded-for" in headers:
            self._proxy_told = True
            LOG.warning(
                "a request was forwarded by a proxy (X-Forwarded-...), but trusted_proxies is "
                "empty: all clients share the proxy's address and its limits, and https "
                "cookies are not marked Secure"
            )

    def _host(self, headers: Headers) -> Response | None:
        """Return an error response if the request is for a host name that is not this server's, else None."""
        allowed, names = self.context.hosts, headers.getlist("host")
        host = ", ".join(names)  # more than one is refused: RFC 9112, section 3.2
        if allowed is None or (len(names) == 1 and host_header_name(host) in allowed):
            return None
        return error_reply(
            400,
            f"this server is not known as {host[:100]!r}",
            way_out="use one of its names, listed under hosts in its configuration; a "
            "proxy must forward the original Host header",
            headers={"Connection": "close"},
        )

    async def _who(self, scope: Scope, headers: Headers, receive: Receive) -> Response | None:
        """Authenticate the caller before the body is read; return an error response if that fails, else None.

        Pages authenticate callers themselves, and a login has its token in the body.
        """
        of_api = scope["path"].startswith(_API)
        if scope["path"] in _OPEN or not (of_api or _has_body(scope, headers)):
            return None
        try:
            await authenticate_early(Request(scope, receive))
        except (RefusedError, StoreError) as error:
            answer = service_error_reply(error)
            answer.headers["Connection"] = "close"
            return answer
        return None

    async def _body(
        self, scope: Scope, headers: Headers, receive: Receive
    ) -> tuple[Response | None, bytes | None]:
        """Return the whole body, or the error response that rejects it."""
        limits, length = self.context.config.limits, headers.get("content-length", "")
        most = min(limits.body_bytes, _OPEN.get(scope["path"], limits.body_bytes))
        too_large = _refuse(413, f"a request body must have at most {most:,} bytes")
        if length and not (length.isascii() and length.isdigit()):
            return _refuse(400, "Content-Length must be a whole number"), None
        if len(length) > 18 or int(length or 0) > most:
            return too_large, None
        try:
            async with asyncio.timeout(limits.body_seconds):
                body = await _read(receive, most)
        except TimeoutError:
            return _refuse(
                408, f"a request body must arrive within {limits.body_seconds:g} s"
            ), None
        return (too_large, None) if body is None else (None, body)

    def _tell(self, scope: Scope, passing: _Passing) -> None:
        seconds = time.perf_counter() - passing.began
        route = getattr(scope.get("route"), "path", None) or "none"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.context.metrics.requests.labels(method, route, passing.status).inc()
        if not passing.is_stream:
            self.context.metrics.seconds.labels(method, route).observe(seconds)
        who = scope["state"].get("principal")
        failure = passing.failure or scope["state"].get("failure")
        fields: dict[str, Any] = {
            "request_id": passing.request_id,
            "method": scope["method"],
            "path": scope["path"],
            "route": route,
            "status": passing.status,
            "milliseconds": round(1000 * seconds, 2),
            "client": scope["client"][0] if scope.get("client") else None,
            "token": getattr(who, "token_id", None),
            "owner": getattr(who, "owner", None),
        }
        if failure:
            fields["failure"] = failure
        shown = scope["path"].replace(SLASH, "%2F")
        ACCESS.info(
            "%s %s %s %.0f ms%s",
            scope["method"],
            shown,
            passing.status or "-",
            1000 * seconds,
            f" {failure}" if failure else "",
            extra={"fields": fields},
        )


TAKEN_AT_ONCE = 65_536
"""Bytes of a response that fit in the server's buffer even if the client reads nothing."""
_OPEN = {"/login": 10_000, "/logout": 10_000}
"""Paths that need no token, with the maximum size of their bodies in bytes."""
_API = "/api/"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
}
_API_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


class _Passing:
    """Wraps ``send`` for one request: adds the headers common to all responses, and records the status."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self.began = time.perf_counter()
        self.request_id, self.status, self.is_stream = request_id, 0, False
        self.failure: str | None = None
        self.on_begin: Callable[[], None] = lambda: None
        self.begins_early = False
        self._send = send
        self._extra = {**_HEADERS, **(_API_HEADERS if scope["path"].startswith(_API) else {})}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            for name, value in self._extra.items():
                headers.setdefault(name, value)
            self.is_stream = headers.get("content-type", "").startswith("text/event-stream")
            if self.is_stream or self.begins_early:
                self.on_begin()
        elif len(message.get("body", b"")) > TAKEN_AT_ONCE and not message.get("more_body"):
            # the server delays the next message, and thus the release of the slot, until the client has read this one
            await self._send({**message, "more_body": True})
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)


def _has_body(scope: Scope, headers: Headers) -> bool:
    empty = headers.get("content-length", "") in ("", "0") and "transfer-encoding" not in headers
    return not (empty and scope["method"] in _BODILESS)


def _refuse(status: int, message: str) -> Response:
    return error_reply(
        status, message, headers={"Connection": "close"}
    )  # the rest of the body is not read


async def _read(receive: Receive, most: int) -> bytes | None:
    """Return the body; stop reading and return None if it has more than ``most`` bytes."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > most:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return bytes(body)


def _path(scope: Scope, before: str) -> str:
    """Return the path without the prefix ``before``, with encoded slashes kept distinct from separators.

    A proxy may forward the whole path or strip the prefix.
    """
    raw = scope.get("raw_path")
    if raw is None or not _ENCODED_SLASH.search(raw):
        path = str(scope["path"])
    else:
        path = unquote(
            _ENCODED_SLASH.sub(SLASH.encode(), raw.split(b"?")[0]).decode("utf-8", "replace")
        )
    if before and (path == before or path.startswith(f"{before}/")):
        return path.removeprefix(before) or "/"
    return path


def _replay(body: bytes, receive: Receive) -> Receive:
    replayed_body = False

    async def replayed() -> Message:
        nonlocal replayed_body
        if replayed_body:
            return await receive()
        replayed_body = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
