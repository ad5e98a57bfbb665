"""The httpx transport of both clients: converts requests, responses and errors."""

from __future__ import annotations

from typing import Any

import httpx

from hpo.client.address import ANSWER_SECONDS, CONNECT_SECONDS, SILENCE_SECONDS, ServerAddress
from hpo.client.protocol import ClientRequest, NoResponse, ServerResponse
from hpo.errors import RequestError

TIMEOUT = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
STREAM_TIMEOUT = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def options(address: ServerAddress) -> dict[str, Any]:
    """Return the arguments of an httpx client."""
    return {"headers": dict(address.headers), "timeout": TIMEOUT, "follow_redirects": False}


def arguments(address: ServerAddress, request: ClientRequest) -> dict[str, Any]:
    """Return httpx's arguments for one request."""
    return {
        "method": request.method,
        "url": f"{address.root}{request.path}",
        "params": _given(request),
        "json": request.body,
        "headers": dict(request.headers),
    }


def server_response(response: httpx.Response) -> ServerResponse:
    """Convert a response that was read completely."""
    return ServerResponse(
        response.status_code,
        {name.lower(): value for name, value in response.headers.items()},
        response.content,
    )


def head_of(response: httpx.Response) -> ServerResponse:
    """Convert a response whose body is still unread."""
    return ServerResponse(
        response.status_code, {name.lower(): value for name, value in response.headers.items()}, b""
    )


def no_response(error: httpx.HTTPError | httpx.InvalidURL, address: ServerAddress) -> NoResponse:
    """Convert a network error; raise RequestError if the request can never succeed."""
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        raise RequestError(f"the URL of the server cannot be used: {error}") from error
    if isinstance(error, httpx.ConnectError):
        return NoResponse(
            f"cannot reach {address.url} ({error}); is `hpo serve` running there?", never_sent=True
        )
    if isinstance(error, httpx.TimeoutException):
        return NoResponse(
            f"{address.url} did not answer in time ({type(error).__name__})",
            never_sent=isinstance(error, _NEVER_SENT),
        )
    return NoResponse(
        f"the connection to {address.url} broke ({str(error) or type(error).__name__})"
    )


def _given(request: ClientRequest) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in request.parameters.items():
        if value is not None:
            plain[name] = str(value).lower() if isinstance(value, bool) else value
    return plain
