"""Error responses of the server: an HTTP status and a JSON document, always of the same shape.

``{"error": {"kind": "...", "message": "...", "way_out": "...", "faults": [{"message", "line", "key"}]}}``; the last two
are omitted if empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from hpo.errors import EvidenceError, HpoError, PlanError, SpecError, StudyNotFoundError
from hpo.service.refusal import KINDS, RefusedError
from hpo.service.reply import json_reply
from storage.errors import Conflict, DamagedRow, InvalidRecord, NotFound, StoreError
from trainers.errors import TrainerError

RETRY_SECONDS = 2
"""Seconds to wait after a 503: a restarting database is back within seconds."""


def error_reply(
    status: int,
    message: str,
    *,
    kind: str | None = None,
    way_out: str | None = None,
    faults: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the response for an error, in the common shape."""
    body: dict[str, Any] = {"kind": kind or KINDS.get(status, "error"), "message": message}
    if way_out:
        body["way_out"] = way_out
    if faults:
        body["faults"] = list(faults)
    return json_reply({"error": body}, status=status, headers=headers)


def install(app: FastAPI) -> None:
    """Register handlers that answer errors of the service, storage, trainers and framework in the common shape."""
    app.add_exception_handler(HpoError, _hpo_error_reply)
    app.add_exception_handler(StoreError, _hpo_error_reply)
    app.add_exception_handler(TrainerError, _hpo_error_reply)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _of_framework)


def service_error_reply(error: Exception) -> Response:
    """Return the response for an error of the service, the storage or the trainers."""
    if isinstance(error, RefusedError):
        headers = (
            {}
            if error.retry_after is None
            else {"Retry-After": str(max(1, round(error.retry_after + 0.5)))}
        )
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return error_reply(
            error.status, str(error), kind=error.kind, way_out=error.way_out, headers=headers
        )
    if isinstance(error, SpecError):
        faults = [
            {"message": fault.message, "line": fault.line, "key": fault.key}
            for fault in error.faults
        ]
        return error_reply(422, str(error), kind="spec", faults=faults)
    for kind, status, name in _STATUSES:
        if isinstance(error, kind):
            return error_reply(status, str(error), kind=name)
    # the address of the database goes to the log, for the operator, and not to the client
    return error_reply(
        503,
        "the server cannot do this at the moment: its database or its disk does not respond",
        way_out="try again in a few seconds; the server's log says what happened",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


_STATUSES: tuple[tuple[type[Exception], int, str | None], ...] = (
    (StudyNotFoundError, 404, None),
    (NotFound, 404, None),
    (Conflict, 409, None),
    (InvalidRecord, 422, None),
    (DamagedRow, 409, "damaged"),
    (EvidenceError, 409, "no_evidence"),
    (PlanError, 422, "plan"),
    (TrainerError, 422, None),
)


async def _hpo_error_reply(request: Request, error: Exception) -> Response:
    answer = service_error_reply(error)
    if answer.status_code >= 500:
        request.state.failure = f"{type(error).__name__}: {error}"
    return answer


async def _invalid_request(_: Request, error: Exception) -> Response:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    if any(fault["type"] == "json_invalid" for fault in found):
        return error_reply(
            400,
            "the request body must be JSON, but it cannot be read",
            way_out="send one JSON document with Content-Type: application/json",
        )
    faults = [{"message": fault["msg"], "line": None, "key": _key(fault["loc"])} for fault in found]
    summary = "; ".join(f"{fault['key']}: {fault['message']}" for fault in faults[:5])
    return error_reply(422, summary or "the request is invalid", faults=faults)


async def _of_framework(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    explanations = {
        404: "there is nothing at this address; /docs lists all addresses",
        405: "this address does not allow this method; /docs lists all methods",
    }
    return error_reply(
        status,
        explanations.get(status, str(getattr(error, "detail", ""))),
        headers=getattr(error, "headers", None),
    )


def _key(location: Sequence[Any]) -> str:
    """Return ``spec`` for ("body", "spec"), ``limit`` for ("query", "limit"); a part may be any key the client sent."""
    return ".".join(str(part)[:100] for part in location[1:]) or str(location[0])
