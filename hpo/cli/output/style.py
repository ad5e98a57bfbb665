"""The style of tables in a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpo.runs.formatting import setting_words

WIDTH_OF_FILES = 140
"""Width in columns if the output is not a terminal."""


def new_console() -> Console:
    """Return a console on stdout."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)


def new_table(title: str, *columns: str) -> Table:
    """Return a table without borders; columns for settings have headings in plain words."""
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(setting_words(column))
    return table


def new_list() -> Table:
    """Return a table of names and texts without a heading; long texts wrap within their column."""
    table = Table(box=None, show_header=False, pad_edge=True, padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    return table
