"""Figures of a plan: the cost of alternatives, and where the plan's time goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from plotly import graph_objects as go

from hpo.dashboard import style
from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.plan import Plan
from hpo.runs.formatting import (
    format_interval,
    format_metric_interval,
    format_number,
    setting_words,
)

LEAST_SHARE = 0.0005
HOUR = 3600.0


def pareto_front(plan: Plan) -> go.Figure:
    """Plot time to target against accelerator hours, both logarithmic, for the plans that no other beats in both.

    The bars are 90 % intervals of the time. The star is ``plan`` or the closest of the compared plans; a diamond marks
    the knee, beyond which further accelerators save little time.
    """
    figure = style.figure(
        f"{plan.study}: time against accelerator hours on {plan.machine}", height=340
    )
    rows: Sequence[Mapping[str, Any]] = (plan.details or {}).get("front", ())
    spent = [row["accelerator_hours"] for row in rows]
    times = [Interval(**row["seconds_to_target"]) for row in rows]
    unit, seconds = _unit([each.median for each in times])
    ends = [
        Interval(each.median / seconds, each.low / seconds, each.high / seconds) for each in times
    ]
    figure.add_scatter(
        x=spent,
        y=[each.median for each in ends],
        mode="lines+markers",
        showlegend=False,
        line={"color": "#4477AA", "width": 1.5},
        error_y=style.interval_bar(ends, "#8a949e"),
        marker={
            "size": [14 if row["chosen"] else 9 for row in rows],
            "opacity": 1,
            "symbol": [
                "star" if row["chosen"] else "diamond" if row["knee"] else "circle" for row in rows
            ],
            "color": [style.FORECAST if row["chosen"] else "#4477AA" for row in rows],
        },
        customdata=[[row["nodes"], row["global_batch_size"]] for row in rows],
        hoverinfo="text",
        hovertext=[
            style.lines(
                f"{format_number(row['nodes'])} nodes, global batch size {format_number(row['global_batch_size'])}",
                f"{format_number(row['accelerator_hours'])} accelerator hours",
                f"{format_interval(end)} {unit}",
            )
            for row, end in zip(rows, ends, strict=True)
        ],
    )
    figure.update_xaxes(title_text="accelerator hours", **style.log_axis(*style.log_range(spent)))
    figure.update_yaxes(
        title_text=f"{unit} to target",
        **style.log_axis(*style.log_range([end for each in ends for end in (each.low, each.high)])),
    )
    if not rows:
        style.note(figure, "no other plan was compared")
    return figure


def trade_offs(
    rows: Sequence[Mapping[str, Any]],
    title: str = "time, accelerator hours and epochs",
    otherwise: str = "the speed of this machine for the workload is unknown",
) -> go.Figure:
    """Plot time against accelerator hours of the plans that no other plan beats in all aims at once.

    The ``rows`` come from :meth:`hpo.TradeOff.to_dict`. Colours show the batch size; the hover text has the third aim
    and the settings. Plans that are best in one aim, or balanced, are labelled. Without rows, the figure says
    ``otherwise``.
    """
    figure = style.figure(title, height=380)
    if not rows:
        style.note(figure, otherwise)
        return figure
    unit, seconds = _unit([row["seconds_to_target"]["median"] for row in rows])
    figure.add_scatter(
        x=[row["accelerator_hours"] for row in rows],
        y=[row["seconds_to_target"]["median"] / seconds for row in rows],
        mode="markers+text",
        showlegend=False,
        text=[", ".join(row["marks"]) for row in rows],
        textposition="top center",
        marker={
            "size": [13 if row["marks"] else 9 for row in rows],
            "symbol": ["diamond" if row["marks"] else "circle" for row in rows],
            "color": [math.log2(row["global_batch_size"]) for row in rows],
            "colorscale": "Viridis",
            "opacity": 1,
        },
        customdata=[[row["nodes"], row["global_batch_size"]] for row in rows],
        hoverinfo="text",
        hovertext=[
            _weighed(row, row["seconds_to_target"]["median"] / seconds, unit) for row in rows
        ],
    )
    spent = [row["accelerator_hours"] for row in rows]
    times = [row["seconds_to_target"]["median"] / seconds for row in rows]
    figure.update_xaxes(title_text="accelerator hours", **style.log_axis(*style.log_range(spent)))
    figure.update_yaxes(title_text=unit, **style.log_axis(*style.log_range(times)))
    return figure


def _weighed(row: Mapping[str, Any], time: float, unit: str) -> str:
    metric = row.get("metric")
    need = Interval(**row["best" if metric else "epochs_to_target"])
    return style.lines(
        f"global batch size {format_number(row['global_batch_size'])} on {format_number(row['nodes'])} nodes, "
        f"{format_number(row['workers'])} workers",
        *(
            f"{setting_words(name)} {format_number(value)}"
            for name, value in row["settings"].items()
        ),
        f"{format_number(row['accelerator_hours'])} accelerator hours, {format_number(time)} {unit}",
        f"{metric} {format_metric_interval(need)}" if metric else f"{format_interval(need)} epochs",
    )


def time_shares(plan: Plan) -> go.Figure:
    """Plot a plan's time by cause, in percent; *statistics* is time for samples that a small batch would not need."""
    figure = style.figure(f"{plan.study}: where the time goes on {plan.machine}", height=340)
    found: Mapping[str, float] = (plan.details or {}).get("shares", {})
    rows = sorted(
        ((cause, 100 * share) for cause, share in found.items() if share > LEAST_SHARE),
        key=lambda row: row[1],
    )
    figure.add_bar(
        orientation="h",
        x=[share for _, share in rows],
        y=[setting_words(cause) for cause, _ in rows],
        marker={"color": "#4477AA"},
        text=[f"{share:.3g} %" for _, share in rows],
        textposition="outside",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )
    figure.update_xaxes(
        title_text="% of the time", range=[0, 1.15 * max([share for _, share in rows], default=1)]
    )
    figure.update_yaxes(type="category", showgrid=False)
    if not rows:
        style.note(figure, "no times for this machine are known")
    return figure


def _unit(seconds: Sequence[float]) -> tuple[str, float]:
    """Return the most readable unit for these times, and its length in seconds."""
    middle = sorted(seconds)[len(seconds) // 2] if seconds else HOUR
    return next(
        (
            unit
            for unit in (("seconds", 1.0), ("minutes", 60.0), ("hours", HOUR))
            if middle < 90 * unit[1]
        ),
        ("days", 24 * HOUR),
    )
