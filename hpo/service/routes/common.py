"""Helpers shared by several routes: pagination, names in queries, and the errors listed in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from pydantic import AfterValidator

from hpo.service.answers import ErrorAnswer
from hpo.service.context import BIGGEST_ID

MOST_ROWS = 1_000
BIGGEST_BATCH = 2**31 - 1
BIGGEST_NUMBER = 2**31 - 1

_TOLD = {
    400: "The request cannot be read.",
    401: "The token is missing, unknown, expired or revoked.",
    403: "The token does not permit this.",
    404: "Nothing with that name or number is visible to the token.",
    408: "The body did not arrive in time.",
    409: "The request conflicts with the current state: the name is taken, the study is running, or no "
    "trial has reached the target yet.",
    413: "The body is too large.",
    422: "A value is invalid; `faults` lists every error.",
    429: "Too many requests, or a request for too much; `Retry-After` says when to retry.",
    503: "The database does not respond; `Retry-After` says when to retry.",
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return a route's errors for the OpenAPI document: the given statuses and those of every route."""
    return {
        status: {"model": ErrorAnswer, "description": _TOLD[status]}
        for status in sorted({*statuses, 400, 401, 403, 408, 413, 422, 429, 503})
    }


def download_response(kind: str, description: str) -> Mapping[int | str, dict[str, Any]]:
    """Return the OpenAPI description of a response that is not JSON."""
    schema = {"type": "object" if kind == "application/json" else "string"}
    return {200: {"content": {kind: {"schema": schema}}, "description": description}}


def check_printable(text: str) -> str:
    """Return the text; raise ValueError if it has characters that a terminal or a log would not print."""
    if not text.isprintable():
        raise ValueError("must be printable characters")
    return text


Words = Annotated[str, Query(max_length=100), AfterValidator(check_printable)]
After = Annotated[
    int | None, Query(ge=0, le=BIGGEST_ID, description="The value of `next` on the previous page.")
]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="Rows per page.")]
