"""Settings as columns: one setting, one column, in ``trials`` and in ``plans``; those of users' own as JSON in one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from storage.errors import InvalidRecord, nearest
from storage.schema.setting_types import OPTIONAL_SETTINGS, OWN_SETTINGS, SETTING_TYPES


def to_columns(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Column values of complete settings; an unknown or missing setting raises :class:`InvalidRecord`.

    Those of users' own stand together under ``own``.
    """
    own = settings.get("own", {})
    for name in settings:
        if name not in SETTING_TYPES and name != "own":
            raise InvalidRecord(
                f"there is no setting {name!r}; {nearest(name, SETTING_TYPES, 'settings')}"
            )
    for name in own:
        if name in SETTING_TYPES:
            raise InvalidRecord(f"{name} is a known setting and must not stand under own")
    missing = [
        name for name in SETTING_TYPES if name not in settings and name not in OPTIONAL_SETTINGS
    ]
    if missing:
        raise InvalidRecord(f"settings must be complete, but got none for {', '.join(missing)}")
    return {
        **{name: settings.get(name) for name in SETTING_TYPES},
        OWN_SETTINGS: json.dumps(dict(own), allow_nan=False),
    }


def split_row(row: Row[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row of ``trials`` or ``plans`` as its settings and all its other columns, each by name."""
    other = row._asdict()
    own = json.loads(other.pop(OWN_SETTINGS))
    return {**{name: other.pop(name) for name in SETTING_TYPES}, **own}, other
