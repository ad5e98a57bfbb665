"""Reads evidence from a CSV table: one row per tuned configuration.

Columns: ``global_batch_size``, ``epochs_to_target`` (any positive unit); optional ``runs``, ``sd``,
``samples_per_epoch``; any setting by its name in TrainingSettings. An empty cell of an optional column means
"not told".
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.cells import cells_of, check_required, number, read_lines
from hpo.extrapolation.evidence.evidence import Aggregate, Evidence, ScaledSetting
from search_spaces.settings import SettingError, check_name, range_of

REQUIRED = ("global_batch_size", "epochs_to_target")
OPTIONAL = ("runs", "sd", "samples_per_epoch")
LOG_SCALE = ("learning_rate", "weight_decay", "trust_coefficient")


def read_table(path: Path | str) -> Evidence:
    """Evidence from the CSV file at ``path``; an :class:`EvidenceError` names line, column and value."""
    path = Path(path)
    header, rows = read_lines(path, REQUIRED, "tuned configuration")
    _check_header(path, header)
    tables = [(line, cells_of(path, line, header, row, REQUIRED)) for line, row in rows]
    aggregates = [_aggregate(path, line, cells) for line, cells in tables]
    return Evidence(aggregates=aggregates, samples_per_epoch=_samples_per_epoch(path, tables),
                    tuned=tuned_settings(aggregates))


def _check_header(path: Path, header: Sequence[str]) -> None:
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
    check_required(path, header, REQUIRED)


def _aggregate(path: Path, line: int, cells: Mapping[str, str]) -> Aggregate:
    batch = number(path, line, "global_batch_size", cells, at_least=1, whole=True)
    epochs = number(path, line, "epochs_to_target", cells, above=0)
    runs = number(path, line, "runs", cells, at_least=1, whole=True) if "runs" in cells else None
    sd = number(path, line, "sd", cells, at_least=0) if "sd" in cells else None
    settings = {name: _setting(path, line, name, cells) for name in cells if name not in REQUIRED + OPTIONAL}
    return Aggregate(int(batch), epochs, None if runs is None else int(runs), sd, settings)


def _setting(path: Path, line: int, name: str, cells: Mapping[str, str]) -> Any:
    bounds = range_of(name)
    if bounds is None:
        return cells[name]
    value = number(path, line, name, cells)
    if value not in bounds:
        raise EvidenceError(f"{path}, line {line}, column {name!r} must lie in {bounds}, "
                            f"but got {cells[name]!r}")
    return value


def _samples_per_epoch(path: Path, tables: Sequence[tuple[int, Mapping[str, str]]]) -> float | None:
    seen = {number(path, line, "samples_per_epoch", cells, above=0)
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
