"""The style of all figures: light, with a few colour-blind-safe colours and ticks at the rungs.

Every kind of point also has its own shape, so that figures can be read without colours.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from plotly import colors
from plotly import graph_objects as go

from hpo.extrapolation.inference.intervals import Interval
from storage.records import PlanKind, TrialState

INK, MUTED, GRID, PAPER = "#1f2933", "#5b6670", "#e7eaee", "#ffffff"
BAND = "rgba(31, 41, 51, 0.10)"
FORECAST = "#AA3377"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
HOVER_CHARACTERS = 56


@dataclass(frozen=True)
class PointStyle:
    """How one kind of point is drawn, and its name in the legend; ``size`` is in pixels."""

    name: str
    symbol: str
    colour: str
    size: int = 8
    opacity: float = 0.9


# colours of Paul Tol's "bright" and "vibrant" schemes (https://personal.sron.nl/~pault/)
STATES = {
    TrialState.REACHED: PointStyle("reached the target", "circle", "#4477AA", 8, 0.75),
    TrialState.CENSORED: PointStyle("budget ended first", "triangle-up", "#EE7733"),
    TrialState.PRUNED: PointStyle("stopped early", "triangle-up-open", "#8a949e", 8, 0.8),
    TrialState.DIVERGED: PointStyle("diverged", "x", "#CC3311"),
    TrialState.FAILED: PointStyle("failed", "hash-open", "#5b6670"),
}
KINDS = {
    PlanKind.FORECAST: PointStyle("run with the forecast's settings", "star", FORECAST, 12),
    PlanKind.LINEAR_SCALING: PointStyle("run by linear scaling", "square", "#228833", 9),
    PlanKind.SQRT_SCALING: PointStyle("run by square-root scaling", "diamond", "#AA3377", 10),
    PlanKind.NO_SCALING: PointStyle("run without scaling", "pentagon", "#B8860B", 11),
    PlanKind.IMPORTED: PointStyle("published result", "hexagon", "#66CCEE", 9),
}

AXIS = {
    "showgrid": True,
    "gridcolor": GRID,
    "zeroline": False,
    "showline": True,
    "linecolor": MUTED,
    "ticks": "outside",
    "tickcolor": MUTED,
    "ticklen": 4,
    "automargin": True,
    "title": {"standoff": 10},
}
# below the figure with automatic margins; if the title has them too, Plotly misplaces the points
LEGEND = {
    "orientation": "h",
    "x": 0,
    "xref": "container",
    "xanchor": "left",
    "y": 0,
    "yref": "container",
    "yanchor": "bottom",
    "font": {"size": 12},
    "title": {"side": "top"},
}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "margin": {"l": 60, "r": 16, "t": 52, "b": 50},
        "xaxis": AXIS,
        "yaxis": AXIS,
        "hovermode": "closest",
        "legend": LEGEND,
        "showlegend": True,
        "title": {
            "x": 0.01,
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 16},
            "font": {"size": 16},
        },
        "hoverlabel": {
            "align": "left",
            "bgcolor": PAPER,
            "bordercolor": MUTED,
            "font": {"family": FONT, "size": 12, "color": INK},
        },
    }
)


def figure(title: str, height: int = 440) -> go.Figure:
    """Return an empty figure in the common style; ``title`` is plain text, ``height`` is in pixels."""
    return go.Figure(
        layout={"template": TEMPLATE, "title": {"text": plain(title)}, "height": height}
    )


def plain(text: str) -> str:
    """Escape text for Plotly, which interprets some HTML that a name might contain."""
    return html.escape(text, quote=False)


def lines(*texts: str) -> str:
    """Return a hover text of several lines; long lines are wrapped, and empty ones left out."""
    wrapped = [part for text in texts for part in textwrap.wrap(text, HOVER_CHARACTERS)]
    return "<br>".join(plain(part) for part in wrapped)


def marker(look: PointStyle, **more: Any) -> dict[str, Any]:
    """Return the marker of a kind of point."""
    return {
        "symbol": look.symbol,
        "color": look.colour,
        "size": look.size,
        "opacity": look.opacity,
        **more,
    }


def interval_bar(ends: Sequence[Interval], colour: str) -> dict[str, Any]:
    """Return the error bars of medians with their intervals."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [each.high - each.median for each in ends],
        "arrayminus": [each.median - each.low for each in ends],
        "color": colour,
        "thickness": 2,
        "width": 6,
    }


def rung_colours(ladder: Sequence[int]) -> dict[int, str]:
    """Return one colour per rung, from dark violet to green in the order of the batch sizes."""
    places = [0.05 + 0.75 * index / max(len(ladder) - 1, 1) for index in range(len(ladder))]
    return dict(zip(ladder, colors.sample_colorscale("Viridis", places), strict=True))


def batch_axis(figure: go.Figure, batches: Iterable[int], low: float, high: float) -> None:
    """Set the x axis of global batch sizes: logarithmic from ``low`` to ``high``, with a tick at each batch."""
    ticks = sorted(set(batches))
    figure.update_xaxes(
        type="log",
        title_text="global batch size (samples per update)",
        tickvals=ticks,
        ticktext=[f"{batch:,}" for batch in ticks],
        range=[math.log10(low), math.log10(high)],
    )


def log_range(values: Iterable[float], pad: float = 1.15) -> tuple[float, float]:
    """Return the limits of a logarithmic axis for all positive ``values``, padded; (1, 10) if there are none."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    if not positive:
        return 1.0, 10.0
    return min(positive) / pad, max(positive) * pad


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis from ``low`` to ``high`` with ticks; Plotly's are crowded or missing on short axes."""
    ticks = log_ticks(low, high)
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [f"{tick:,.10g}" for tick in ticks],
    }


def log_ticks(low: float, high: float) -> list[float]:
    """Return at least four round numbers from ``low`` to ``high``: 1, 2 and 5 times powers of ten, or closer ones."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [
            step * 10.0**decade
            for decade in decades
            for step in steps
            if low <= step * 10.0**decade <= high
        ]
        if len(ticks) >= 4:
            return ticks
    step = next(
        step
        for digit in range(math.floor(math.log10(high - low)), -20, -1)
        for factor in (5, 2, 1)
        if (high - low) / (step := factor * 10.0**digit) >= 3
    )
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def note(figure: go.Figure, text: str) -> None:
    """Write in the middle of a figure why it is empty."""
    figure.add_annotation(
        text=plain(text),
        x=0.5,
        y=0.5,
        xref="paper",
        yref="paper",
        showarrow=False,
        font={"color": MUTED, "size": 14},
    )
