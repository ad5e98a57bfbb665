"""Draws sample images of a trained model: fields, labels and prediction side by side, one row per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from hpo.dashboard import style

CLASS_COLOURS = (
    "#E4E7EB",
    "#CC3311",
    "#4477AA",
    "#228833",
    "#EE7733",
    "#AA3377",
    "#B8860B",
    "#66CCEE",
    "#1f2933",
)
"""Colours of the labels: the first, usually the background, is pale; the others are Paul Tol's and repeat."""
PICTURES = {"labels": "labels", "prediction": "prediction"}
WIDTH, GAP, TOP = 1040, 0.02, 64
"""The width of a report's page in pixels, the gap between pictures as a share of it, and the height above them for
title and buttons in pixels.
"""


def sample_images(shown: Mapping[str, Any]) -> go.Figure:
    """Draw sample images (:mod:`trainers.loop.sample_images`): fields in grey, labels with one colour per class.

    Rows run from top to bottom. Without panels, the figure contains only a note.
    """
    panels: Sequence[Mapping[str, Any]] = shown.get("panels", [])
    columns = _columns(panels)
    if not columns:
        figure = style.figure(str(shown.get("title", "sample images")))
        style.note(figure, "there is no picture of this model")
        return figure
    figure = make_subplots(
        rows=len(panels),
        cols=len(columns),
        horizontal_spacing=GAP,
        vertical_spacing=0.12 / len(panels) if len(panels) > 1 else 0,
        column_titles=[style.plain(name) for name in columns],
    )
    figure.update_layout(
        template=style.TEMPLATE,
        title_text=style.plain(str(shown.get("title", "sample images"))),
        height=_height(panels, len(columns)),
        margin_t=TOP,
        meta="pictures",
    )
    names = [str(name) for name in shown.get("classes", [])]
    for row, panel in enumerate(panels, 1):
        for column, name in enumerate(columns, 1):
            _add_picture(figure, panel, name, names, row, column)
        figure.update_yaxes(
            title_text=style.plain(str(panel.get("name", ""))), title_standoff=6, row=row, col=1
        )
    _tidy(figure)
    _add_legend(figure, panels, names)
    return figure


def class_colour(label: int) -> str:
    """Return the colour of a label."""
    return CLASS_COLOURS[label % len(CLASS_COLOURS)]


def _columns(panels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields of all panels in order of appearance, then labels and prediction if any panel has them."""
    fields = dict.fromkeys(name for panel in panels for name in panel.get("fields", {}))
    return [*fields, *(name for name in PICTURES if any(name in panel for panel in panels))]


def _add_picture(
    figure: go.Figure,
    panel: Mapping[str, Any],
    name: str,
    classes: Sequence[str],
    row: int,
    column: int,
) -> None:
    is_field = name not in PICTURES
    rows = panel.get("fields", {}).get(name) if is_field else panel.get(name)
    if rows is None:
        return
    values = np.asarray(rows, dtype=np.uint8)
    if is_field:
        look: dict[str, Any] = {
            "colorscale": "gray",
            "zmin": 0,
            "zmax": 255,
            "hovertemplate": f"{style.plain(name)} %{{z}} of 255<extra></extra>",
        }
    else:
        look = {
            "colorscale": _steps(len(classes)),
            "zmin": -0.5,
            "zmax": len(classes) - 0.5,
            "text": _texts(values, classes),
            "hovertemplate": f"{name}: %{{text}}<extra></extra>",
        }
    figure.add_heatmap(z=values, showscale=False, row=row, col=column, **look)


def _steps(count: int) -> list[list[Any]]:
    """Return a colour scale of ``count`` equal steps, one colour each."""
    return [
        [place / count, class_colour(label)]
        for label in range(count)
        for place in (label, label + 1)
    ]


def _texts(labels: NDArray[np.uint8], classes: Sequence[str]) -> NDArray[np.object_]:
    return np.array([style.plain(name) for name in classes], dtype=object)[labels]


def _height(panels: Sequence[Mapping[str, Any]], columns: int) -> int:
    """Return the height at which the pictures keep their aspect ratio on a page of :data:`WIDTH`."""
    width = (WIDTH - 90) * (1 - GAP * (columns - 1)) / columns
    tall = [width * max(0.25, min(2.0, _shape(panel))) for panel in panels]
    return round(sum(tall) * 1.12) + TOP + 60


def _shape(panel: Mapping[str, Any]) -> float:
    """Return the ratio of height to width of a panel's pictures."""
    pictures = [
        *panel.get("fields", {}).values(),
        *(panel[name] for name in PICTURES if name in panel),
    ]
    return len(pictures[0]) / len(pictures[0][0]) if pictures else 1.0


def _tidy(figure: go.Figure) -> None:
    """Set square pixels, the first row on top, and neither ticks nor grid."""
    bare = {
        "showticklabels": False,
        "ticks": "",
        "showgrid": False,
        "showline": False,
        "constrain": "domain",
    }
    figure.update_xaxes(**bare)
    for place, axis in enumerate(figure.select_yaxes(), 1):
        axis.update(
            **bare,
            autorange="reversed",
            scaleanchor=f"x{place if place > 1 else ''}",
            title_font_size=12,
        )
    figure.update_annotations(font={"size": 13, "color": style.INK})


def _add_legend(
    figure: go.Figure, panels: Sequence[Mapping[str, Any]], classes: Sequence[str]
) -> None:
    """Add a legend with a square of each class's colour if labels or predictions are shown."""
    if not any(name in panel for panel in panels for name in PICTURES):
        figure.update_layout(showlegend=False)
        return
    for label, name in enumerate(classes):
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=style.plain(name),
            hoverinfo="skip",
            marker={
                "symbol": "square",
                "size": 13,
                "color": class_colour(label),
                "line": {"width": 1, "color": style.MUTED},
            },
        )
