"""Reads evidence from a CSV table: one row per tuned configuration.

Columns: ``global_batch_size``, ``epochs_to_target`` (any positive unit); optional ``runs``, ``sd``,
``samples_per_epoch``; any setting by its name in TrainingSettings. An empty cell of an optional column means
"not told".
"""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence import Aggregate, Evidence, ScaledSetting
from search_spaces.settings import SettingError, check_name, range_of

REQUIRED = ("global_batch_size", "epochs_to_target")
OPTIONAL = ("runs", "sd", "samples_per_epoch")
LOG_SCALE = ("learning_rate", "weight_decay", "trust_coefficient")


def read_table(path: Path | str) -> Evidence:
    """Evidence from the CSV file at ``path``; an :class:`EvidenceError` names line, column and value."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"cannot read the table {path}: {error}") from error
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, [])]
    _check_header(path, header)
    rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    rows = [(line, row) for line, row in rows if any(row)]
    if not rows:
        raise EvidenceError(f"{path} has a header but no rows; give one row per tuned configuration")
    tables = [(line, _cells(path, line, header, row)) for line, row in rows]
    aggregates = [_aggregate(path, line, cells) for line, cells in tables]
    return Evidence(aggregates=aggregates, samples_per_epoch=_samples_per_epoch(path, tables),
                    tuned=tuned_settings(aggregates))


def _check_header(path: Path, header: Sequence[str]) -> None:
    if not any(header):
        raise EvidenceError(f"{path} is empty; its first line must name the columns {', '.join(REQUIRED)}")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise EvidenceError(f"{path}, line 1: column {repeated[0]!r} stands there twice; keep one")
    for name in header:
        if name in REQUIRED + OPTIONAL:
            continue
        near = difflib.get_close_matches(name, REQUIRED + OPTIONAL, n=1, cutoff=0.75)
        if near:
            raise EvidenceError(f"{path}, line 1: there is no column {name!r}; did you mean {near[0]!r}?")
        try:
            check_name(name)
        except SettingError as error:
            raise EvidenceError(f"{path}, line 1: column {name!r} is neither a setting nor one of "
                                f"{', '.join(REQUIRED + OPTIONAL)}: {error}") from error
    for name in REQUIRED:
        if name not in header:
            raise EvidenceError(f"{path}, line 1: column {name!r} is missing; "
                                f"the header is {', '.join(header)}")


def _cells(path: Path, line: int, header: Sequence[str], row: Sequence[str]) -> dict[str, str]:
    if len(row) != len(header):
        raise EvidenceError(f"{path}, line {line}: a row must have {len(header)} cells, like the header, "
                            f"but got {len(row)}")
    return {name: cell for name, cell in zip(header, row, strict=True) if cell}


def _aggregate(path: Path, line: int, cells: Mapping[str, str]) -> Aggregate:
    for name in REQUIRED:
        if name not in cells:
            raise EvidenceError(f"{path}, line {line}, column {name!r} is empty; fill it or drop the row")
    batch = _number(path, line, "global_batch_size", cells, at_least=1, whole=True)
    epochs = _number(path, line, "epochs_to_target", cells, above=0)
    runs = _number(path, line, "runs", cells, at_least=1, whole=True) if "runs" in cells else None
    sd = _number(path, line, "sd", cells, at_least=0) if "sd" in cells else None
    settings = {name: _setting(path, line, name, cells) for name in cells if name not in REQUIRED + OPTIONAL}
    return Aggregate(int(batch), epochs, None if runs is None else int(runs), sd, settings)


def _number(path: Path, line: int, name: str, cells: Mapping[str, str], *, above: float = -math.inf,
            at_least: float = -math.inf, whole: bool = False) -> float:
    where, text = f"{path}, line {line}, column {name!r}", cells[name]
    try:
        value = float(text)
    except ValueError as error:
        raise EvidenceError(f"{where}: {text!r} is not a number") from error
    if not math.isfinite(value):
        raise EvidenceError(f"{where} must be finite, but got {text!r}")
    if whole and value != int(value):
        raise EvidenceError(f"{where} must be a whole number, but got {text!r}")
    if not (value > above and value >= at_least):
        bound = f"above {above:g}" if math.isfinite(above) else f"{at_least:g} or more"
        raise EvidenceError(f"{where} must be {bound}, but got {text!r}")
    return value


def _setting(path: Path, line: int, name: str, cells: Mapping[str, str]) -> Any:
    bounds = range_of(name)
    if bounds is None:
        return cells[name]
    value = _number(path, line, name, cells)
    if value not in bounds:
        raise EvidenceError(f"{path}, line {line}, column {name!r} must lie in {bounds}, "
                            f"but got {cells[name]!r}")
    return value


def _samples_per_epoch(path: Path, tables: Sequence[tuple[int, Mapping[str, str]]]) -> float | None:
    seen = {_number(path, line, "samples_per_epoch", cells, above=0)
            for line, cells in tables if "samples_per_epoch" in cells}
    if len(seen) > 1:
        raise EvidenceError(f"{path}: samples_per_epoch must be the same in every row, "
                            f"but got {sorted(seen)}")
    return seen.pop() if seen else None


def tuned_settings(rows: Sequence[Aggregate]) -> list[ScaledSetting]:
    """Every numeric setting of the rows, each on the scale that suits it."""
    tuned: list[ScaledSetting] = []
    for name in dict.fromkeys(name for row in rows for name in row.settings):
        if range_of(name) is not None:
            values = [row.settings[name] for row in rows if name in row.settings]
            tuned.append(ScaledSetting(name, "log" if name in LOG_SCALE and min(values) > 0 else "linear"))
    return tuned
