"""Which requests are sent again, and when.

A request is sent again where no answer came, and for 429, 502, 503 and 504; if it may have arrived, only where a
repetition does no harm. Pauses double from ``first_seconds`` to ``most_seconds`` and are drawn between half and all of
that, so that clients that failed together do not come back together (Brooker, "Exponential Backoff And Jitter", AWS
Architecture Blog 2015). A server's Retry-After is the least pause.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from hpo.client.errors import error_of
from hpo.client.protocol import Answer, Lost, Pause, Request, Steps
from hpo.errors import UnreachableError

REFUSED_UNSEEN = (429,)
"""The request was not worked on at all."""
PASSING = (502, 503, 504)
"""The server, or what stands before it, is away for a moment."""
LONGEST_RETRY_AFTER = 300.0


@dataclass(frozen=True)
class Retries:
    """How patient a client is: at most ``attempts`` of a request, with pauses in seconds between them."""

    attempts: int = 6
    first_seconds: float = 0.25
    most_seconds: float = 10.0
    random: random.Random = field(default_factory=random.Random)

    def pause(self, attempt: int, retry_after: float = 0.0) -> float:
        """Seconds after the failed ``attempt``, counted from 1."""
        longest: float = min(self.most_seconds, self.first_seconds * 2.0 ** min(attempt - 1, 30))
        return max(longest * self.random.uniform(0.5, 1.0), retry_after)


def ask(request: Request, retries: Retries) -> Steps[Answer]:
    """Send a request until it is answered; raises the error that an answer stands for."""
    attempt = 0
    while True:
        attempt += 1
        came = yield request
        if isinstance(came, Answer) and came.status < 400:
            return came
        if attempt >= retries.attempts or not may_repeat(request, came):
            raise failure(request, came, attempt)
        headers = came.headers if isinstance(came, Answer) else {}
        yield Pause(retries.pause(attempt, retry_after(headers)))


def may_repeat(request: Request, came: Answer | Lost | None) -> bool:
    """Whether sending the request again does no harm and may help."""
    if isinstance(came, Answer):
        return came.status in REFUSED_UNSEEN or (request.repeatable and came.status in PASSING)
    return request.repeatable or (isinstance(came, Lost) and came.never_sent)


def failure(request: Request, came: Answer | Lost | None, attempts: int) -> Exception:
    """The error to raise for a request that got this answer, or none."""
    if isinstance(came, Answer):
        return error_of(came)
    reason = came.reason if isinstance(came, Lost) else "no answer came"
    maybe = "" if request.repeatable or (isinstance(came, Lost) and came.never_sent) else \
        "; it may have arrived, so it was not sent again: look with `hpo status`"
    return UnreachableError(f"{request.method} {request.path}: {reason} ({attempts} "
                            f"{'attempt' if attempts == 1 else 'attempts'}){maybe}")


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float:
    """Seconds that the server asks for, as a number or a date (RFC 9110, 10.2.3); 0 where it asks for none."""
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
    return min(seconds, LONGEST_RETRY_AFTER) if seconds > 0 else 0.0     # NaN asks for nothing
