r"""Rows in the text format of PostgreSQL's COPY, so that SQLite and PostgreSQL read and write the same files.

Each row is one line of fields separated by tabs, with ``\N`` for NULL, backslash escapes in text, booleans as ``t`` and
``f``, times in UTC with ``+00``, and numbers with all their digits (PostgreSQL's manual, "COPY", File Formats, Text
Format).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Boolean, DateTime, Double, Float, Integer
from sqlalchemy.types import TypeEngine

from storage.errors import InvalidRecord

Kind = Literal["boolean", "time", "number", "integer", "text"]
NULL = r"\N"
_KINDS: tuple[tuple[type[TypeEngine[Any]], Kind], ...] = (
    (Boolean, "boolean"),
    (DateTime, "time"),
    (Integer, "integer"),
    (Double, "number"),
    (Float, "number"),
)
_WRITTEN = {
    "\\": r"\\",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
}
_READ = {text: character for character, text in _WRITTEN.items()}
_TO_WRITE, _TO_READ = re.compile(r"[\\\b\f\n\r\t\v]"), re.compile(r"\\.", re.DOTALL)


def column_kind(column_type: TypeEngine[Any]) -> Kind:
    """Return the format in which values of a column are written."""
    return next((kind for found, kind in _KINDS if isinstance(column_type, found)), "text")


def write_copied_rows(rows: Iterator[Sequence[Any]], kinds: Sequence[Kind]) -> Iterator[bytes]:
    """Convert rows of raw SQLite values to lines."""
    writers = [_WRITERS[kind] for kind in kinds]
    for row in rows:
        fields = (
            NULL if value is None else write(value)
            for value, write in zip(row, writers, strict=True)
        )
        yield ("\t".join(fields) + "\n").encode()


def read_copied_rows(
    lines: Iterator[bytes], kinds: Sequence[Kind], where: str
) -> Iterator[tuple[Any, ...]]:
    """Convert lines to rows of raw SQLite values; a malformed line raises :class:`InvalidRecord` with ``where`` in its
    message.
    """
    readers = [_READERS[kind] for kind in kinds]
    for number, line in enumerate(lines, 1):
        try:
            fields = line.decode().removesuffix("\n").split("\t")
            yield tuple(
                None if field == NULL else read(field)
                for field, read in zip(fields, readers, strict=True)
            )
        except ValueError as error:
            raise InvalidRecord(f"{where}, line {number}: {error}") from error


def _write_text(value: Any) -> str:
    return _TO_WRITE.sub(lambda found: _WRITTEN[found[0]], str(value))


def _read_text(field: str) -> str:
    return (
        _TO_READ.sub(lambda found: _READ.get(found[0], found[0][1]), field)
        if "\\" in field
        else field
    )


def _write_number(value: Any) -> str:
    text = repr(float(value)).removesuffix(".0")
    return {"inf": "Infinity", "-inf": "-Infinity"}.get(text, text)


def _write_time(value: Any) -> str:
    whole, _, fraction = str(value).partition(".")
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}+00" if fraction else f"{whole}+00"


def _read_time(field: str) -> str:
    return datetime.fromisoformat(field).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


_WRITERS: dict[Kind, Callable[[Any], str]] = {
    "boolean": lambda value: "t" if value else "f",
    "time": _write_time,
    "number": _write_number,
    "integer": lambda value: str(int(value)),
    "text": _write_text,
}
_READERS: dict[Kind, Callable[[str], Any]] = {
    "boolean": lambda field: field == "t",
    "time": _read_time,
    "number": float,
    "integer": int,
    "text": _read_text,
}
