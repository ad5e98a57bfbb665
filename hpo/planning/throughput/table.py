"""Reads measured throughput from a CSV table, one row per configuration.

Columns: ``accelerators``, ``global_batch_size``, ``samples_per_second``; optional ``nodes``, ``accelerators_per_node``
and ``runs`` (the number of runs averaged in the row). An empty cell in an optional column means "unknown".
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.cells import (
    cell_number,
    check_required_columns,
    read_table_lines,
    table_row_cells,
)
from hpo.planning.throughput.rows import Measurement

REQUIRED = ("accelerators", "global_batch_size", "samples_per_second")
OPTIONAL = ("nodes", "accelerators_per_node", "runs")


def read_throughputs(path: Path | str) -> list[Measurement]:
    """Read the measurements in the CSV file at ``path``; an :class:`EvidenceError` names the line, column and value."""
    path = Path(path)
    header, rows = read_table_lines(path, REQUIRED, "measured configuration")
    _check_header(path, header)
    return [
        _measurement(path, line, table_row_cells(path, line, header, row, REQUIRED))
        for line, row in rows
    ]


def _check_header(path: Path, header: Sequence[str]) -> None:
    for name in header:
        if name not in REQUIRED + OPTIONAL:
            near = difflib.get_close_matches(name, REQUIRED + OPTIONAL, n=1, cutoff=0.6)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise EvidenceError(
                f"{path}, line 1: there is no column {name!r}; the columns are "
                f"{', '.join(REQUIRED)} and, if known, {', '.join(OPTIONAL)}{guess}"
            )
    check_required_columns(path, header, REQUIRED)


def _measurement(path: Path, line: int, cells: Mapping[str, str]) -> Measurement:
    counts = {
        name: int(cell_number(path, line, name, cells, at_least=1, whole=True))
        for name in cells
        if name != "samples_per_second"
    }
    speed = cell_number(path, line, "samples_per_second", cells, above=0)
    accelerators, nodes, size = (
        counts["accelerators"],
        counts.get("nodes"),
        counts.get("accelerators_per_node"),
    )
    if nodes is not None and nodes > accelerators:
        raise EvidenceError(
            f"{path}, line {line}, column 'nodes' must not exceed the {accelerators} accelerators, but "
            f"got {nodes}; leave the cell empty if the nodes are unknown"
        )
    if nodes is not None and size is not None and nodes < math.ceil(accelerators / size):
        raise EvidenceError(
            f"{path}, line {line}: {nodes} nodes of {size} accelerators do not provide {accelerators}; "
            f"correct 'nodes' or 'accelerators_per_node', or leave one of them empty"
        )
    return Measurement(
        accelerators, counts["global_batch_size"], speed, nodes, size, counts.get("runs", 1)
    )
