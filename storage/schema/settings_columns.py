"""Settings as columns: one setting, one column, in ``trials`` and in ``plans``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from storage.errors import InvalidRecord, nearest
from storage.schema.setting_types import OPTIONAL_SETTINGS, SETTING_TYPES


def check_setting(name: str) -> None:
    """Raise :class:`InvalidRecord`, with the nearest name, unless ``name`` has a column."""
    if name not in SETTING_TYPES:
        raise InvalidRecord(
            f"there is no setting {name!r}; {nearest(name, SETTING_TYPES, 'settings')}"
        )


def to_columns(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Column values of complete settings; an unknown or missing setting raises :class:`InvalidRecord`."""
    for name in settings:
        check_setting(name)
    missing = [
        name for name in SETTING_TYPES if name not in settings and name not in OPTIONAL_SETTINGS
    ]
    if missing:
        raise InvalidRecord(f"settings must be complete, but got none for {', '.join(missing)}")
    return {name: settings.get(name) for name in SETTING_TYPES}


def split_row(row: Row[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row of ``trials`` or ``plans`` as its settings and all its other columns, each by name."""
    other = row._asdict()
    return {name: other.pop(name) for name in SETTING_TYPES}, other
