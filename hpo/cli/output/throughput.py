"""Prints forecasts of samples per second as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpo.cli.output.style import new_console, new_table
from hpo.runs.formatting import format_interval, format_number

if TYPE_CHECKING:
    from hpo.planning.throughput import Measurement, ThroughputForecast


def show_throughputs(forecasts: Sequence[ThroughputForecast], rows: Sequence[Measurement]) -> None:
    """Print forecasts with their share of linear scaling from the smallest measured row, and the reasons for trust."""
    smallest = min(rows, key=lambda row: (row.accelerators, -row.global_batch_size))
    table = new_table(
        "throughput (median and 90 % interval)",
        "accelerators",
        "global batch",
        "local batch",
        "samples/s",
        f"of linear from {format_number(smallest.accelerators)}",
        "limited by",
        "trust",
    )
    for each in forecasts:
        linear = smallest.samples_per_second * each.accelerators / smallest.accelerators
        table.add_row(
            format_number(each.accelerators),
            format_number(each.global_batch_size),
            format_number(each.global_batch_size / each.accelerators),
            format_interval(each.samples_per_second),
            f"{each.samples_per_second.median / linear:.0%}",
            each.limited_by,
            each.trust,
        )
    console = new_console()
    console.print(table)
    for each in forecasts:
        console.print(
            f"{format_number(each.accelerators)} accelerators, trust {each.trust}: {each.reason}"
        )
