"""Reads the cells of a CSV table of evidence; every error names the file, line, column and value."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpo.errors import EvidenceError
from storage.figures import AMOUNT


def read_table_lines(
    path: Path, required: Sequence[str], one_row_per: str
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header and every non-empty row with its line number.

    Only the header is checked: it must be present, without repeated columns. The :class:`EvidenceError` names the
    ``required`` columns if the file is empty, and asks for one row per ``one_row_per`` if there are no rows.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"cannot read the table {path}: {error}") from error
    header, rows = _split(path, lines)
    if not any(header):
        raise EvidenceError(
            f"{path} is empty; its first line must name the columns {', '.join(required)}"
        )
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise EvidenceError(f"{path}, line 1: column {repeated[0]!r} appears twice; keep one")
    return header, _filled(path, rows, one_row_per)


def _split(path: Path, lines: Sequence[str]) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the cells of the header, and those of every row with its line number."""
    reader = csv.reader(lines)
    try:
        header = [name.strip() for name in next(reader, [])]
        return header, [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise EvidenceError(
            f"{path}, line {reader.line_num}: a cell must have at most {csv.field_size_limit()} characters, but the "
            f"row cannot be read: {error}; shorten the cell or close its quotes"
        ) from error


def _filled(
    path: Path, rows: Sequence[tuple[int, list[str]]], one_row_per: str
) -> list[tuple[int, list[str]]]:
    filled = [(line, row) for line, row in rows if any(row)]
    if not filled:
        raise EvidenceError(f"{path} has a header but no rows; give one row per {one_row_per}")
    return filled


def check_required_columns(path: Path, header: Sequence[str], required: Sequence[str]) -> None:
    """Raise :class:`EvidenceError` if a ``required`` column is missing."""
    for name in required:
        if name not in header:
            raise EvidenceError(
                f"{path}, line 1: column {name!r} is missing; the header is {', '.join(header)}"
            )


def table_row_cells(
    path: Path, line: int, header: Sequence[str], row: Sequence[str], required: Sequence[str]
) -> dict[str, str]:
    """Return the row's non-empty cells by column; raise :class:`EvidenceError` if a ``required`` cell is empty."""
    if len(row) != len(header):
        raise EvidenceError(
            f"{path}, line {line}: a row must have {len(header)} cells, like the header, "
            f"but got {len(row)}"
        )
    cells = {name: cell for name, cell in zip(header, row, strict=True) if cell}
    for name in required:
        if name not in cells:
            raise EvidenceError(
                f"{path}, line {line}, column {name!r} is empty; fill it or drop the row"
            )
    return cells


def cell_number(
    path: Path,
    line: int,
    name: str,
    cells: Mapping[str, str],
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    whole: bool = False,
) -> float:
    """Return the number in one cell, finite and within its bounds."""
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
    bounded = math.isfinite(max(above, at_least))  # a setting without bounds may be any number
    if bounded and value and (fault := dataclasses.replace(AMOUNT, name=where).fault(abs(value))):
        raise EvidenceError(f"{fault}, which is impossible for a measurement")
    return value
