"""Column types that SQL lacks or that SQLite and PostgreSQL treat differently."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isnan

from sqlalchemy import DateTime, Dialect, Double, Text
from sqlalchemy.types import TypeDecorator


class NumberType(TypeDecorator[float]):
    """A double in which NaN is NULL: SQLite has no NaN, and PostgreSQL sorts it above every number."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:  # noqa: ARG002
        """Convert NaN to None; infinity stays."""
        return None if isinstance(value, float) and isnan(value) else value


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware time, stored and returned in UTC; SQLite's own type would drop the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Convert to UTC; a time without a time zone raises ValueError."""
        if value is not None and value.tzinfo is None:
            raise ValueError(f"a stored time must have a time zone, but got {value!r}")
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Restore the time zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def escape_unprintable(text: str) -> str:
    r"""Escape unprintable characters, such as ``\x1b``, except line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


class PlainText(TypeDecorator[str]):
    """Text with unprintable characters escaped, except line breaks and tabs.

    The reason why a trial ended comes from its client, and terminals would execute control characters in it.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Apply :func:`escape_unprintable`."""
        return None if value is None else escape_unprintable(value)


class MeasuresType(TypeDecorator[Mapping[str, float]]):
    """Numbers by name, stored as a JSON object such as ``{"top5": 0.93}``; None if there are none."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, float] | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Convert to text; None stays None, and an empty mapping becomes None."""
        return json.dumps(dict(sorted(value.items())), allow_nan=False) if value else None

    def process_result_value(self, value: str | None, dialect: Dialect) -> dict[str, float] | None:  # noqa: ARG002
        """Convert back to numbers; raise ValueError for anything else."""
        if value is None:
            return None
        found = json.loads(value)
        if not isinstance(found, dict):
            raise ValueError("measures do not map names to numbers")
        return found


class FloatList(TypeDecorator[Sequence[float]]):
    """A list of numbers as comma-separated text, each with full precision: ``"30.0,60.0,80.0"``."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[float] | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Convert to text; None stays None."""
        return ",".join(repr(float(number)) for number in value) if value is not None else None

    def process_result_value(self, value: str | None, dialect: Dialect) -> list[float] | None:  # noqa: ARG002
        """Convert back to a list of floats."""
        if value is None:
            return None
        return [float(number) for number in value.split(",")] if value else []
