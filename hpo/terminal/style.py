"""How numbers, names and tables look in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from storage.records import PlanKind

if TYPE_CHECKING:
    from hpo.extrapolation.forecast import Interval

KIND_NAMES = {PlanKind.FORECAST: "forecast", PlanKind.LINEAR_SCALING: "linear scaling",
              PlanKind.NO_SCALING: "no scaling"}

WIDTH_OF_FILES = 140
"""Columns where the output is no terminal and so has no width of its own."""


def new_console() -> Console:
    """A console on stdout."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)


def new_table(title: str, *columns: str) -> Table:
    """A table without frames; settings are named in words."""
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "))
    return table


def interval(of: Interval) -> str:
    """`median (low to high)`."""
    return ends(of.median, of.low, of.high)


def ends(median: float | None, low: float | None, high: float | None) -> str:
    """`median (low to high)`, or nothing."""
    return "" if median is None else f"{number(median)} ({number(low)} to {number(high)})"


def number(value: Any) -> str:
    """Three significant digits, or nothing."""
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
