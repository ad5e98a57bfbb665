"""How numbers, names and intervals are written, in a terminal, in figures and on pages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from search_spaces.settings import TrainingSettings
from storage.records import PlanKind

if TYPE_CHECKING:
    from hpo.extrapolation.forecast import Interval

KIND_NAMES = {PlanKind.FORECAST: "forecast", PlanKind.LINEAR_SCALING: "linear scaling",
              PlanKind.NO_SCALING: "no scaling", PlanKind.IMPORTED: "published result"}


def number(value: Any) -> str:
    """Three significant digits, large ones in full with separators; "" for None."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def interval(ends: Interval | None) -> str:
    """``36.2 (22.6 to 152)``: the median and the ends of the 90 % interval; "" for None."""
    return f"{number(ends.median)} ({number(ends.low)} to {number(ends.high)})" if ends else ""


def readable(name: str) -> str:
    """The name of a setting as words."""
    return name.replace("_", " ")


def with_unit(name: str) -> str:
    """A setting as the title of an axis: ``learning rate (per update)``; a unit is not said twice."""
    unit = TrainingSettings.__dataclass_fields__[name].metadata.get("unit", "1")
    return readable(name) if unit == "1" or name.endswith(unit) else f"{readable(name)} ({unit})"


def target(metric: str, threshold: float, higher_is_better: bool) -> str:
    """``top1 ≥ 0.96``."""
    return f"{metric} {'≥' if higher_is_better else '≤'} {threshold:g}"
