"""Converts an error response into one of the errors of :mod:`hpo.errors`, with the server's message."""

from __future__ import annotations

from typing import Any

from hpo.client.protocol import ServerResponse
from hpo.errors import (
    AuthenticationError,
    ConflictError,
    EvidenceError,
    HpoError,
    NotAllowedError,
    PlanError,
    RequestError,
    ServiceError,
    SpecError,
    SpecFault,
    StudyNotFoundError,
    TrialLostError,
    UnreachableError,
)

_OF_KIND: dict[str, type[HpoError]] = {
    "unauthorized": AuthenticationError,
    "forbidden": NotAllowedError,
    "not_found": StudyNotFoundError,
    "conflict": ConflictError,
    "no_evidence": EvidenceError,
    "plan": PlanError,
    "trial_lost": TrialLostError,
    "bad_request": RequestError,
    "invalid": RequestError,
    "too_large": RequestError,
    "too_many_requests": UnreachableError,
    "unavailable": UnreachableError,
}
_OF_STATUS: dict[int, type[HpoError]] = {
    400: RequestError,
    401: AuthenticationError,
    403: NotAllowedError,
    404: RequestError,
    405: RequestError,
    409: ConflictError,
    413: RequestError,
    422: RequestError,
    429: UnreachableError,
    502: UnreachableError,
    503: UnreachableError,
    504: UnreachableError,
}


def error_of_response(answer: ServerResponse) -> HpoError:
    """Return the error for a response with a status of 400 or above, from the server or a proxy in front of it."""
    document = answer.document
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        text = " ".join(answer.content[:200].decode("utf-8", "replace").split())
        return _made(
            _OF_STATUS.get(answer.status, ServiceError),
            f"the server answered {answer.status}: "
            f"{text or 'nothing'}; is this the address of `hpo serve`?",
            answer,
        )
    if error.get("kind") == "spec" and error.get("faults"):
        return SpecError([_fault(each) for each in error["faults"]])
    message, way_out = (
        str(error.get("message", f"the server answered {answer.status}")),
        error.get("way_out"),
    )
    kind = _OF_KIND.get(str(error.get("kind")), _OF_STATUS.get(answer.status, ServiceError))
    request_id = answer.headers.get("x-request-id")
    if answer.status >= 500 and request_id:
        message = f"{message} (request {request_id})"
    return _made(kind, f"{message}; {way_out}" if way_out else message, answer)


def _made(kind: type[HpoError], message: str, answer: ServerResponse) -> HpoError:
    if issubclass(kind, ServiceError):
        return kind(message, status=answer.status, request_id=answer.headers.get("x-request-id"))
    return kind(message)


def _fault(plain: dict[str, Any]) -> SpecFault:
    return SpecFault(str(plain.get("message", "")), plain.get("line"), plain.get("key"))
