"""Reads runs from CSV files: a table with one row per run and a file of curves, or exports of Weights & Biases.

Weights & Biases (wandb.ai) exports its table of runs with the columns ``Name``, ``State``, ``Runtime`` in seconds, then
every config value and the last value of every metric. An exported chart has its axis in the first column, and three
columns for each line: ``RUN - METRIC``, and the same name with ``__MIN`` and with ``__MAX``.
"""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.cells import (
    check_required_columns,
    read_table_lines,
    table_row_cells,
)
from hpo.past_runs.past_run import PastRun, Reading

RUN, STEP = "run", "step"
"""Columns of a curves file: the run and the position on the axis; every other column is a metric."""

_ENDINGS = ("__MIN", "__MAX")


def read_csv(path: Path, curves: Path | None = None) -> list[PastRun]:
    """Return one run per row of the table at ``path``.

    The column ``run`` names the run (default: its line number); the column ``state`` gives its status. ``curves``
    is a second table with the columns ``run`` and ``step``, one column for each metric, and one row per evaluation.
    Raises :class:`EvidenceError` for a table that cannot be used.
    """
    header, rows = read_table_lines(path, (RUN,), "run")
    logged = _read_curves(curves) if curves else {}
    names = [table_row_cells(path, line, header, row, ()).get(RUN, str(line)) for line, row in rows]
    _check_unique(path, RUN, names)
    _check_known(curves, logged, names)
    found = []
    for (line, row), name in zip(rows, names, strict=True):
        values = table_row_cells(path, line, header, row, ())
        values.pop(RUN, None)
        found.append(
            PastRun(
                label=f"csv {path.name} {name}",
                values=values,
                curves=logged.get(name, {}),
                status=values.get("state", "").lower(),
                seconds=_number(values.get("seconds")),
            )
        )
    return found


def read_wandb(path: Path, chart: Sequence[Path] = ()) -> list[PastRun]:
    """Return one run per row of an exported Weights & Biases table; ``chart`` holds exported charts with curves.

    Raises :class:`EvidenceError` without the columns ``Name`` and ``State``, or if charts are given and two runs share
    a name, which makes the charts' columns ambiguous.
    """
    header, rows = read_table_lines(path, ("Name", "State"), "run")
    check_required_columns(path, header, ("Name", "State"))
    table = [table_row_cells(path, line, header, row, ("Name", "State")) for line, row in rows]
    names = [values["Name"] for values in table]
    if chart:
        _check_unique(path, "Name", names)
    logged: dict[str, dict[str, list[Reading]]] = defaultdict(dict)
    for exported in chart:
        for name, curves in _read_chart(exported, names).items():
            logged[name] |= curves
    counted: Counter[str] = Counter()
    found = []
    for values in table:
        name = values["Name"]
        counted[name] += 1
        repeated = f" ({counted[name]})" if counted[name] > 1 else ""
        found.append(
            PastRun(
                label=f"wandb {name}{repeated}",
                values={
                    key: value for key, value in values.items() if key not in ("Name", "State")
                },
                curves=logged.get(name, {}),
                status=values["State"].lower(),
                seconds=_number(values.get("Runtime")),
            )
        )
    return found


def _read_curves(path: Path) -> dict[str, dict[str, list[Reading]]]:
    header, rows = read_table_lines(path, (RUN, STEP), "evaluation")
    check_required_columns(path, header, (RUN, STEP))
    found: dict[str, dict[str, list[Reading]]] = defaultdict(lambda: defaultdict(list))
    for line, row in rows:
        cells = table_row_cells(path, line, header, row, (RUN, STEP))
        step = _required_number(path, line, STEP, cells[STEP])
        seconds = _number(cells.get("seconds"))
        for name, text in cells.items():
            if name not in (RUN, STEP, "seconds"):
                value = _required_number(path, line, name, text)
                found[cells[RUN]][name].append(Reading(step, value, seconds))
    return found


def _read_chart(path: Path, names: Sequence[str]) -> dict[str, dict[str, list[Reading]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EvidenceError(f"cannot read the chart {path}: {error}") from error
    if len(rows) < 2:
        raise EvidenceError(f"{path} is empty; export a chart of Weights & Biases as CSV")
    axis, *columns = [name.strip() for name in rows[0]]
    lines = {
        index: column.rpartition(" - ")
        for index, column in enumerate(columns, 1)
        if " - " in column and not column.endswith(_ENDINGS)
    }
    if not lines:
        raise EvidenceError(
            f"{path}, line 1: an exported chart has columns 'RUN - METRIC', but got "
            f"{', '.join(columns) or 'none'}"
        )
    known = {index: parts for index, parts in lines.items() if parts[0] in names}
    if not known:
        first = next(iter(lines.values()))[0]
        raise EvidenceError(
            f"{path}: none of its runs, such as {first!r}, is in the table of runs; export "
            f"both from the same project, with the run names shown"
        )
    found: dict[str, dict[str, list[Reading]]] = defaultdict(lambda: defaultdict(list))
    for line, row in enumerate(rows[1:], 2):
        step = _required_number(path, line, axis, row[0])
        for index, (run, _, metric) in known.items():
            if index < len(row) and row[index].strip():
                value = _required_number(path, line, columns[index - 1], row[index])
                found[run][metric].append(Reading(step, value))
                if axis.lower() != "step":  # the axis is itself a logged metric
                    found[run][axis].append(Reading(step, step))
    return found


def _check_unique(path: Path, column: str, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise EvidenceError(
            f"{path}: each run needs a unique name in column {column!r}, but {twice[0]!r} "
            f"appears {names.count(twice[0])} times; rename the runs"
        )


def _check_known(
    path: Path | None, logged: dict[str, dict[str, list[Reading]]], names: Sequence[str]
) -> None:
    unknown = [name for name in logged if name not in names]
    if unknown:
        raise EvidenceError(
            f"{path}: the run {unknown[0]!r} is not in the table of runs; its column {RUN!r} has "
            f"{', '.join(names[:3])} ..."
        )


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _required_number(path: Path, line: int, column: str, text: str) -> float:
    try:
        return float(text)  # a diverged run logs "NaN" and "Infinity"
    except ValueError:
        raise EvidenceError(
            f"{path}, line {line}, column {column!r}: {text!r} is not a number"
        ) from None
