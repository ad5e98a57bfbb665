"""A log-log plot as SVG text, without a plotting library: lines, bands, points, and a legend."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = Sequence[float] | NDArray[np.float64]

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 20, 50


class Picture:
    """A plot with logarithmic axes over ``x`` = (low, high) and ``y`` = (low, high)."""

    def __init__(
        self,
        x_title: str,
        y_title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        legend: str = "top left",
    ) -> None:
        self._x, self._y = np.log(x), np.log(y)
        self._marks: list[str] = []
        self._legend: list[tuple[str, str, str]] = []
        self._place = legend
        self._axes(x_title, y_title, x, y)

    def line(self, x: Numbers, y: Numbers, colour: str, name: str, *, dashed: bool = False) -> None:
        """Add a line through (x, y); a line without a name is left out of the legend."""
        style = ' stroke-dasharray="6 4"' if dashed else ""
        self._marks.append(
            f'<polyline points="{self._path(x, y)}" fill="none" stroke="{colour}" '
            f'stroke-width="2"{style}/>'
        )
        if name:
            self._legend.append((name, colour, "dashed" if dashed else "line"))

    def band(self, x: Numbers, low: Numbers, high: Numbers, colour: str) -> None:
        """Add the area between two curves."""
        there, back = self._path(x, low), self._path(np.asarray(x)[::-1], np.asarray(high)[::-1])
        self._marks.append(
            f'<polygon points="{there} {back}" fill="{colour}" fill-opacity="0.18"/>'
        )

    def points(self, x: Numbers, y: Numbers, colour: str, name: str) -> None:
        """Add a dot at each (x, y)."""
        for at in self._path(x, y).split():
            across, down = at.split(",")
            self._marks.append(
                f'<circle cx="{across}" cy="{down}" r="4" fill="{colour}" fill-opacity="0.8"/>'
            )
        self._legend.append((name, colour, "dot"))

    def text(self) -> str:
        """Return the plot as SVG text."""
        legend = "".join(self._entry(row, *entry) for row, entry in enumerate(self._legend))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" font-family="sans-serif" font-size="12">'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
            f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
            f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath>{self._frame}'
            f'<g clip-path="url(#inside)">{"".join(self._marks)}</g>{legend}</svg>\n'
        )

    def _path(self, x: Numbers, y: Numbers) -> str:
        return " ".join(
            f"{self._across(one):.1f},{self._down(other):.1f}"
            for one, other in zip(x, y, strict=True)
        )

    def _across(self, value: float) -> float:
        return float(
            LEFT + (np.log(value) - self._x[0]) / (self._x[1] - self._x[0]) * (WIDTH - LEFT - RIGHT)
        )

    def _down(self, value: float) -> float:
        return float(
            HEIGHT
            - BOTTOM
            - (np.log(value) - self._y[0]) / (self._y[1] - self._y[0]) * (HEIGHT - TOP - BOTTOM)
        )

    def _axes(
        self, x_title: str, y_title: str, x: tuple[float, float], y: tuple[float, float]
    ) -> None:
        floor, wall = HEIGHT - BOTTOM, WIDTH - RIGHT
        parts = [
            f'<path d="M{LEFT} {TOP}V{floor}H{wall}" fill="none" stroke="black"/>',
            f'<text x="{(LEFT + wall) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_title)}</text>',
            f'<text transform="translate(16 {(TOP + floor) / 2}) rotate(-90)" text-anchor="middle">'
            f"{escape(y_title)}</text>",
        ]
        for tick in _ticks(*x):
            parts.append(
                f'<path d="M{self._across(tick):.1f} {floor}v5" stroke="black"/>'
                f'<text x="{self._across(tick):.1f}" y="{floor + 18}" text-anchor="middle">{tick:,g}</text>'
            )
        for tick in _ticks(*y):
            parts.append(
                f'<path d="M{LEFT} {self._down(tick):.1f}h-5" stroke="black"/>'
                f'<text x="{LEFT - 8}" y="{self._down(tick) + 4:.1f}" text-anchor="end">{tick:,g}</text>'
            )
        self._frame = "".join(parts)

    def _entry(self, row: int, name: str, colour: str, kind: str) -> str:
        left = LEFT + 14 if self._place.endswith("left") else WIDTH - RIGHT - 190
        above = (
            0
            if self._place.startswith("top")
            else HEIGHT - BOTTOM - TOP - 20 - 17 * len(self._legend)
        )
        down = TOP + 14 + above + 17 * row
        style = ' stroke-dasharray="6 3"' if kind == "dashed" else ""
        mark = (
            f'<circle cx="{left + 10}" cy="{down - 4}" r="4" fill="{colour}"/>'
            if kind == "dot"
            else f'<path d="M{left} {down - 4}h20" stroke="{colour}" stroke-width="2"{style}/>'
        )
        return f'{mark}<text x="{left + 26}" y="{down}">{escape(name)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two limits, as many per decade as fit without overlap."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    densities = ((8, (1, 1.5, 2, 3, 5, 7)), (200, (1, 2, 5)), (3000, (1, 3)), (np.inf, (1,)))
    steps = next(steps for most, steps in densities if high / low < most)
    return [
        step * 10.0**decade
        for decade in decades
        for step in steps
        if low <= step * 10.0**decade <= high
    ]
