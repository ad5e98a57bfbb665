"""JSON responses, written by the project's JSON writer: unmeasured values are null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from trainers.json_text import json_bytes


def json_reply(
    value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    return Response(json_bytes(value), status, headers=headers, media_type="application/json")
