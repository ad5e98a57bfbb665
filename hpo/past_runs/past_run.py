"""A training that was run elsewhere, as its own tool remembers it: names and states are still the tool's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reading:
    """One value of a curve: at which step of the tool's axis, and how many seconds after the run's first value."""

    step: float
    value: float
    seconds: float | None = None


@dataclass(frozen=True)
class PastRun:
    """One run.

    ``label`` tells it apart from all others of its source, and from those of other sources: a run is imported once.
    ``values`` are parameters and final values by their name there, numbers or texts; ``curves`` what was logged step by
    step. ``status`` is how the run ended, in the tool's words and lower case; empty where the source does not say.
    """

    label: str
    values: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Sequence[Reading]] = field(default_factory=dict)
    status: str = ""
    seconds: float | None = None

    @property
    def names(self) -> set[str]:
        """Everything that this run has a value or a curve of."""
        return {*self.values, *self.curves}
