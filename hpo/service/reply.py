"""JSON responses, written by pydantic's serialiser: some five times as fast as json over columns of numbers.

JSON has no NaN and no infinity: what was not measured is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response


def json_bytes(value: Any) -> bytes:
    """Plain values, dataclasses, enums, times and pydantic models as one JSON document."""
    try:
        return to_json(value, inf_nan_mode="null")
    except ValueError:      # text that UTF-8 cannot hold, such as half of a surrogate pair
        return to_json(_printable(value), inf_nan_mode="null")


def reply(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(json_bytes(value), status, headers=headers, media_type="application/json")


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_printable(name): _printable(entry) for name, entry in value.items()}
    return [_printable(entry) for entry in value] if isinstance(value, list | tuple) else value
