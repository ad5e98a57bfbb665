"""RefusedError: the error of a refused request, independent of the web framework."""

from __future__ import annotations

from hpo.errors import HpoError

KINDS = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "unavailable",
}
"""Name of an error in a response, by HTTP status."""


class RefusedError(HpoError):
    """Error of a request that is answered with ``status``; it may succeed ``retry_after`` seconds later."""

    exit_code = 2

    def __init__(
        self,
        status: int,
        message: str,
        *,
        way_out: str | None = None,
        kind: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.way_out, self.retry_after = status, way_out, retry_after
        self.kind = kind or KINDS[status]
