"""Prints the findings of checks, one line each; a remedy follows each warning and failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hpo.cli.output.style import new_console

if TYPE_CHECKING:
    from storage.maintenance.checks import CheckFinding

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def show_findings(findings: Sequence[CheckFinding]) -> None:
    """Print the findings, then the number of failures, warnings and passed checks."""
    console = new_console()
    width = max((len(each.name) for each in findings), default=0)
    for each in findings:
        line = Text(f"{each.level:<4}", style=_COLOURS[each.level])
        line.append(f"  {each.name:<{width}}  {each.message}", style="default")
        console.print(line, soft_wrap=True)
        if each.way_out and each.level != "ok":
            console.print(Text(f"      {'':<{width}}  -> {each.way_out}"), soft_wrap=True)
    failed, warned = (sum(each.level == level for each in findings) for level in ("fail", "warn"))
    console.print(f"{failed} failed, {warned} to look at, {len(findings) - failed - warned} ok")


def plain(findings: Sequence[CheckFinding]) -> list[dict[str, Any]]:
    """Return the findings as plain values."""
    return [dataclasses.asdict(each) for each in findings]
