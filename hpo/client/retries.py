"""Retries: which requests are sent again, and when.

A request is sent again if no response came or if the status is 429, 502, 503 or 504. A request that may have arrived
is repeated only if that is harmless. Pauses double from ``first_seconds`` to ``most_seconds``; each is multiplied by a
random factor between one half and one, so that clients that failed together do not retry together (Brooker,
"Exponential Backoff And Jitter", AWS Architecture Blog 2015). A pause is never shorter than the server's Retry-After.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from hpo.client.errors import error_of_response
from hpo.client.protocol import ClientPause, ClientRequest, NoResponse, ServerResponse, Steps
from hpo.errors import UnreachableError

REFUSED_UNSEEN = (429,)
"""Statuses that mean that the server did not process the request."""
PASSING = (502, 503, 504)
"""Statuses that mean that the server, or a proxy in front of it, is briefly unavailable."""
LONGEST_RETRY_AFTER = 300.0


@dataclass(frozen=True)
class RetryPolicy:
    """At most ``attempts`` are made per request; pauses double from ``first_seconds`` to ``most_seconds``."""

    attempts: int = 6
    first_seconds: float = 0.25
    most_seconds: float = 10.0
    random: random.Random = field(default_factory=random.Random)

    def pause(self, attempt: int, retry_after: float = 0.0) -> float:
        """Return the seconds to wait after the failed ``attempt``, counted from 1."""
        longest: float = min(self.most_seconds, self.first_seconds * 2.0 ** min(attempt - 1, 30))
        return max(longest * self.random.uniform(0.5, 1.0), retry_after)


def ask(request: ClientRequest, retries: RetryPolicy) -> Steps[ServerResponse]:
    """Send a request until it is answered; raise the error of an error response."""
    attempt = 0
    while True:
        attempt += 1
        reply = yield request
        if isinstance(reply, ServerResponse) and reply.status < 400:
            return reply
        if attempt >= retries.attempts or not may_repeat_request(request, reply):
            raise error_of_request(request, reply, attempt)
        headers = reply.headers if isinstance(reply, ServerResponse) else {}
        yield ClientPause(retries.pause(attempt, retry_after_seconds(headers)))


def may_repeat_request(request: ClientRequest, reply: ServerResponse | NoResponse | None) -> bool:
    """Return whether sending the request again is harmless and may help."""
    if isinstance(reply, ServerResponse):
        return reply.status in REFUSED_UNSEEN or (request.repeatable and reply.status in PASSING)
    return request.repeatable or (isinstance(reply, NoResponse) and reply.never_sent)


def error_of_request(
    request: ClientRequest, reply: ServerResponse | NoResponse | None, attempts: int
) -> Exception:
    """Return the error to raise for a request that got this response, or no response."""
    if isinstance(reply, ServerResponse):
        return error_of_response(reply)
    reason = reply.reason if isinstance(reply, NoResponse) else "no response came"
    maybe = (
        ""
        if request.repeatable or (isinstance(reply, NoResponse) and reply.never_sent)
        else "; it may have arrived, so it was not sent again: check with `hpo status`"
    )
    return UnreachableError(
        f"{request.method} {request.path}: {reason} ({attempts} "
        f"{'attempt' if attempts == 1 else 'attempts'}){maybe}"
    )


def retry_after_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float:
    """Return the value of Retry-After in seconds, given as a number or a date (RFC 9110, 10.2.3); 0 if absent."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - (now or datetime.now(UTC))).total_seconds()
        except (TypeError, ValueError):
            return 0.0
    return min(seconds, LONGEST_RETRY_AFTER) if seconds > 0 else 0.0  # NaN counts as no wait
