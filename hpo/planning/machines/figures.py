"""Reads a machine file strictly: it checks every figure and its source, and collects faults with line numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.machines.machine import FigureSource
from hpo.study.faults import dotted_location, shown_value
from hpo.study.yaml_text import Location, YamlDocument
from search_spaces.names import did_you_mean

ASSUMED = "assumed"
RANGE_KEYS = ("low", "median", "high")
REMARK_KEYS = ("source", "note")
ABSENT: Any = object()
OWN_FILE = FigureSource("given in the machine file without a source")


class MachineFileReader:
    """Reads values from a document; a value that breaks a rule is recorded in ``faults`` and replaced by 1 or ""."""

    def __init__(self, document: YamlDocument, place: str) -> None:
        self.document = document
        self.place = place
        self.faults: list[tuple[int | None, str]] = []
        self.sources: dict[str, FigureSource] = {}
        self.known = self._read_sources()

    def fault(self, location: Location, message: str) -> None:
        """Record a fault at a location; an empty location stands for the whole file."""
        line = self.document.line(location)
        where = self.place if line is None else f"{self.place}, line {line}"
        self.faults.append((line, f"{where}: {message}"))

    def mapping(
        self, location: Location, keys: Sequence[str], optional: Collection[str] = ()
    ) -> bool:
        """Return whether the location holds a mapping; missing and unknown keys are recorded as faults."""
        value, name = self.at(location), dotted_location(location) or "a machine file"
        if not isinstance(value, dict):
            self.fault(
                location,
                f"{name} must be a mapping with the keys {', '.join(keys)}, but got {shown_value(value)}",
            )
            return False
        for key in value:
            if key not in keys:
                hint = did_you_mean(str(key), keys) or f"; the keys are {', '.join(keys)}"
                self.fault(
                    (*location, key), f"unknown key {dotted_location((*location, str(key)))}{hint}"
                )
        misspelt = {
            near
            for key in value
            if key not in keys
            for near in keys
            if repr(near) in did_you_mean(str(key), keys)
        }
        missing = [
            dotted_location((*location, key))
            for key in keys
            if key not in value and key not in optional and key not in misspelt
        ]
        if missing:
            self.fault(
                location,
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; "
                "`hpo machines summit --yaml` prints a file to start from",
            )
        return True

    def at(self, location: Location) -> Any:
        """Return the value at a location; None if there is none."""
        value = self.document.value
        for part in location:
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return value

    def has(self, location: Location) -> bool:
        """Return whether the key is in the file."""
        above = self.at(location[:-1])
        return isinstance(above, dict) and location[-1] in above

    def text(self, location: Location, among: Collection[str] = ()) -> str:
        """Return a string, one of ``among`` if given."""
        value = self.at(location)
        if not self.has(location):
            return ""
        if not isinstance(value, str) or not value.strip():
            self.fault(
                location, f"{dotted_location(location)} must be text, but got {shown_value(value)}"
            )
        elif among and value not in among:
            self.fault(
                location,
                f"{dotted_location(location)} must be one of {', '.join(among)}, but got {shown_value(value)}"
                f"{did_you_mean(value, among)}",
            )
        return str(value)

    def flag(self, location: Location) -> bool:
        """Return a boolean, false if it is missing."""
        value = self.at(location)
        if value not in (None, True, False):
            self.fault(
                location,
                f"{dotted_location(location)} must be true or false, but got {shown_value(value)}",
            )
        return value is True

    def count(self, location: Location) -> int:
        """Return a whole number of at least 1."""
        value = self._sourced(location)
        if value is ABSENT:
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.fault(
                location,
                f"{dotted_location(location)} must be a whole number of at least 1, but got {shown_value(value)}",
            )
            return 1
        return value

    def positive(self, location: Location) -> float:
        """Return a finite number above 0, in the unit that the key names."""
        value = self._sourced(location)
        return 1.0 if value is ABSENT else self._number(location, value)

    def share(self, location: Location) -> Interval:
        """Return three shares, low <= median <= high, each above 0 and at most 1."""
        if not self.mapping(location, (*RANGE_KEYS, *REMARK_KEYS), optional=REMARK_KEYS):
            return Interval(1.0, 1.0, 1.0)
        self._note_source(location, self.at(location))
        given = {
            key: self._number((*location, key), self.at((*location, key)))
            for key in RANGE_KEYS
            if self.has((*location, key))
        }
        low, median, high = (given.get(key, 1.0) for key in RANGE_KEYS)
        if len(given) == len(RANGE_KEYS) and not low <= median <= high <= 1:
            self.fault(
                location,
                f"{dotted_location(location)} must hold low <= median <= high <= 1, but got low {low:g}, "
                f"median {median:g} and high {high:g}",
            )
        return Interval(median, low, high)

    def _number(self, location: Location, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fault(
                location,
                f"{dotted_location(location)} must be a number, but got {shown_value(value)}",
            )
            return 1.0
        if not math.isfinite(value) or value <= 0:
            self.fault(
                location,
                f"{dotted_location(location)} must be a finite number above 0, but got {value}; a figure that "
                f"is not published may be estimated: {location[-1]}: "
                "{value: ..., source: assumed, note: why}",
            )
            return 1.0
        return float(value)

    def _sourced(self, location: Location) -> Any:
        """Return the value of a figure, given as a bare value or as {value, source, note}; ABSENT if missing."""
        if not self.has(location):
            return ABSENT
        value = self.at(location)
        if isinstance(value, dict):
            if not self.mapping(location, ("value", *REMARK_KEYS), optional=REMARK_KEYS):
                return ABSENT
            self._note_source(location, value)
            return value.get("value", ABSENT)
        self.sources[dotted_location(location)] = OWN_FILE
        return value

    def _note_source(self, location: Location, value: dict[str, Any]) -> None:
        key, note = value.get("source"), str(value.get("note") or "")
        if key is None:
            found = FigureSource(OWN_FILE.title, note=note)
        elif key == ASSUMED:
            found = FigureSource(ASSUMED, note=note, assumed=True)
            if not note:
                self.fault(
                    location,
                    f"{dotted_location(location)} is assumed and needs a reason; add note: ...",
                )
        elif key in self.known:
            found = replace(self.known[key], note=note)
        else:
            self.fault(
                (*location, "source"),
                f"{dotted_location(location)}.source must be {ASSUMED} or a key of sources "
                f"({', '.join(self.known)}), but got {shown_value(key)}"
                f"{did_you_mean(str(key), [ASSUMED, *self.known])}",
            )
            return
        self.sources[dotted_location(location)] = found

    def _read_sources(self) -> dict[str, FigureSource]:
        found: dict[str, FigureSource] = {}
        given = self.at(("sources",))
        if given is None:
            return found
        if not isinstance(given, dict):
            self.fault(
                ("sources",),
                f"sources must be a mapping of keys to title and url, but got {shown_value(given)}",
            )
            return found
        for key in given:
            location: Location = ("sources", key)
            if self.mapping(location, ("title", "url", "checked"), optional=("url", "checked")):
                checked = self.at((*location, "checked"))
                if checked not in (None, True, False):
                    self.fault(
                        (*location, "checked"),
                        f"{dotted_location(location)}.checked must be true or false, but got "
                        f"{shown_value(checked)}",
                    )
                found[key] = FigureSource(
                    self.text((*location, "title")),
                    str(self.at((*location, "url")) or ""),
                    checked=bool(checked),
                )
        return found
