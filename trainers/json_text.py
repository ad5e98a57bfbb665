"""Write JSON: the project's only writer, used for reports, files, the command line and the web service.

JSON (RFC 8259) has no NaN and no infinity, so a number that is not finite, such as a missing measurement, becomes null.
Text that UTF-8 cannot encode, such as half of a surrogate pair, is written as an escape sequence. The work is done by
pydantic's serialiser, which is about five times as fast as :mod:`json` for columns of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, to_json


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """Encode plain values, dataclasses, enums, times and pydantic models as one JSON document in UTF-8, without NaN."""
    try:
        return to_json(value, indent=indent, inf_nan_mode="null")
    except PydanticSerializationError:
        return to_json(_printable(value), indent=indent, inf_nan_mode="null")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return the value as JSON text."""
    return json_bytes(value, indent=indent).decode()


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_printable(name): _printable(entry) for name, entry in value.items()}
    return [_printable(entry) for entry in value] if isinstance(value, list | tuple) else value
