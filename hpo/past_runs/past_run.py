"""A training run from elsewhere, as recorded by its own tool, with the tool's names and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reading:
    """One value of a curve, with its step on the tool's axis and its seconds since the run's first value."""

    step: float
    value: float
    seconds: float | None = None


@dataclass(frozen=True)
class PastRun:
    """One training run from another tool.

    ``label`` is unique within a source and the same each time it is read, so that a run is imported only once; runs of
    several sources with the same label are told apart by their content, unless ``has_id`` says that the label holds an
    id that the tool gives to no other run. ``values`` holds parameters and final values (numbers or strings) by the
    tool's names; ``curves`` holds the values logged by step. ``status`` is how the run ended, in the tool's own words
    in lower case; it is empty if the source does not say.
    """

    label: str
    values: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Sequence[Reading]] = field(default_factory=dict)
    status: str = ""
    seconds: float | None = None
    has_id: bool = False

    @property
    def names(self) -> set[str]:
        """The names of all values and curves of the run."""
        return {*self.values, *self.curves}
