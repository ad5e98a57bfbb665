"""Settings as columns of ``trials`` and ``plans``: one per setting, and one with all user-defined settings as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from storage.errors import InvalidRecord, nearest_or_all
from storage.schema.setting_types import OPTIONAL_SETTINGS, OWN_SETTINGS, SETTING_TYPES


def to_columns(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the column values of complete settings; an unknown or missing setting raises :class:`InvalidRecord`.

    User-defined settings are grouped under ``own``.
    """
    own = settings.get("own", {})
    for name in settings:
        if name not in SETTING_TYPES and name != "own":
            raise InvalidRecord(
                f"there is no setting {name!r}; {nearest_or_all(name, SETTING_TYPES, 'settings')}"
            )
    for name in own:
        if name in SETTING_TYPES:
            raise InvalidRecord(f"{name} is a known setting and must not be given under own")
    missing = [
        name for name in SETTING_TYPES if name not in settings and name not in OPTIONAL_SETTINGS
    ]
    if missing:
        raise InvalidRecord(f"settings must be complete, but got none for {', '.join(missing)}")
    return {
        **{name: settings.get(name) for name in SETTING_TYPES},
        OWN_SETTINGS: json.dumps(dict(own), allow_nan=False),
    }


def own_of(text: str) -> dict[str, Any]:
    """Return the user-defined settings stored in their column."""
    own: dict[str, Any] = json.loads(text)
    return own


class SplitRows:
    """Splits rows of ``trials`` or ``plans`` into their settings and all other columns, by name.

    ``columns`` holds the names of a row's columns in order. The position of each column is computed only once, because
    a page has a hundred rows of some eighty columns.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        places = {name: place for place, name in enumerate(columns)}
        self._own = places.pop(OWN_SETTINGS)
        places.pop("checksum", None)  # only `hpo db check` reads it
        self._settings = tuple(SETTING_TYPES)
        self._other = tuple(name for name in places if name not in SETTING_TYPES)
        self._get_settings = itemgetter(*(places[name] for name in self._settings))
        self._get_other = itemgetter(*(places[name] for name in self._other))

    def split(self, row: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a row's settings, including user-defined ones, and its other columns."""
        settings = dict(zip(self._settings, self._get_settings(row), strict=True))
        own = own_of(row[self._own])
        return {**settings, **own} if own else settings, dict(
            zip(self._other, self._get_other(row), strict=True)
        )
