"""Formats numbers, names and intervals for the terminal, figures and web pages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from search_spaces.settings import TrainingSettings
from storage.records import PlanKind
from trainers.job import NEVER, Question

if TYPE_CHECKING:
    from hpo.extrapolation.forecast import Forecast
    from hpo.extrapolation.inference.intervals import Interval

TIMES = {0.5: "half", 2.0: "twice"}
KIND_NAMES = {
    PlanKind.FORECAST: "forecast",
    PlanKind.LINEAR_SCALING: "linear scaling",
    PlanKind.SQRT_SCALING: "square-root scaling",
    PlanKind.NO_SCALING: "no scaling",
    PlanKind.IMPORTED: "published result",
}


def format_number(value: Any) -> str:
    """Format a number with three significant digits, but large numbers in full with separators; return "" for None."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return (
            f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        )
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def format_interval(ends: Interval | None) -> str:
    """Format an interval as ``36.2 (22.6 to 152)``: the median and the ends of the 90 % interval; "" for None."""
    return (
        f"{format_number(ends.median)} ({format_number(ends.low)} to {format_number(ends.high)})"
        if ends
        else ""
    )


def format_percent(share: float) -> str:
    """Format a share as ``26 %``; only exactly 0 and 1 are written as 0 % and 100 %."""
    whole = round(100 * share)
    return "<1 %" if whole == 0 < share else ">99 %" if whole == 100 and share < 1 else f"{whole} %"


def forecast_remarks(forecast: Forecast) -> list[tuple[str, str]]:
    """Return the remarks of a forecast besides its settings, epochs and trust, as pairs of name and text in reading
    order.
    """
    critical = forecast.critical_batch
    needed = "the epochs" if forecast.best is None else "the shortfall"
    chances = [
        f"{format_percent(each.probability)} within {format_number(each.epochs)}"
        for each in forecast.chances
    ]
    risk, apart, past = forecast.divergence, forecast.disagreement, forecast.calibration
    held = (
        f"{past.held} of {past.count} held; the interval is {format_number(past.scale)} times as "
        f"wide as from the laws alone"
    )
    rows = [
        (
            "regime",
            forecast.regime
            + (f"; critical batch size {format_interval(critical)}" if critical else ""),
        ),
        (
            "chance of reaching the target",
            ", ".join([f"{chances[0]} epochs", *chances[1:]]) if chances else "",
        ),
        *(
            (
                str(each.constraint),
                f"{format_interval(each.expected)} expected, kept with a chance of {format_percent(each.chance)}",
            )
            for each in forecast.constraints
        ),
        (
            "risk of divergence",
            "unknown: it needs a sweep of the learning rate"
            if risk is None
            else format_percent(risk),
        ),
        *(
            (
                f"{TIMES.get(each.factor) or f'{each.factor:g} times'} the learning rate",
                f"{format_interval(each.epochs_factor)} times {needed}, "
                f"{format_percent(each.divergence)} risk of divergence",
            )
            for each in forecast.sensitivity
        ),
        (
            "laws that fit as well",
            f"differ by a factor of {format_number(apart)} in {needed}"
            if apart >= 1.005
            else "agree",
        ),
        (
            "earlier forecasts",
            "" if forecast.best is not None else held if past.count else "none to compare with yet",
        ),
    ]
    return [row for row in rows if row[1]]


def setting_words(name: str) -> str:
    """Return the name of a setting in plain words."""
    return name.replace("_", " ")


def setting_with_unit(name: str) -> str:
    """Return an axis title for a setting, ``learning rate (per update)``; a unit that the name contains is not
    repeated.
    """
    known = TrainingSettings.__dataclass_fields__.get(name)
    unit = known.metadata.get("unit", "1") if known else "1"
    return (
        setting_words(name)
        if unit == "1" or name.endswith(unit)
        else f"{setting_words(name)} ({unit})"
    )


def format_answer(question: Question, need: float) -> str:
    """Format a trial's result in the unit of the question: ``8.31`` epochs, or a metric of ``0.9213``."""
    return f"{question.told(need):.4g}" if question.fixed else f"{need:.2f}"


def format_metric_interval(ends: Interval) -> str:
    """Format an interval of a metric as ``0.9213 (0.9098 to 0.9301)``: metrics near 1 differ only in later digits."""
    return f"{ends.median:.4g} ({ends.low:.4g} to {ends.high:.4g})"


def format_target(metric: str, threshold: float | None, higher_is_better: bool) -> str:
    """Format a target as ``top1 ≥ 0.96``, or as ``best top1`` without a threshold."""
    if threshold is None or abs(threshold) >= NEVER:
        return f"best {metric}"
    return f"{metric} {'≥' if higher_is_better else '≤'} {threshold:g}"
