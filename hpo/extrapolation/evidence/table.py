"""Reads evidence from a CSV table: one row per configuration, tuned or not.

Columns: ``global_batch_size``, ``epochs_to_target`` (any positive unit); optional ``runs``, ``sd``,
``samples_per_epoch``; ``state``, which says how a run ended (unless it is ``reached``, ``epochs_to_target`` holds the
epochs until then, 0 or more); any setting, by its name in TrainingSettings. Every other column is a free setting, which
is forecast like the others if all of its cells are numbers. An empty cell of an optional column means "unknown"; an
empty state means that the target was reached.

If the question is about a fixed budget, a column named after its metric replaces ``epochs_to_target`` and holds the
best value within that budget. The state ``reached`` then means that the run reached the end of the budget; for a run
that did not, the metric may be empty, and must be if the run is ``censored``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo.errors import EvidenceError
from hpo.extrapolation.evidence.cells import (
    cell_number,
    check_required_columns,
    read_table_lines,
    table_row_cells,
)
from hpo.extrapolation.evidence.evidence import (
    LEAST_RUNS_OF_A_RECIPE,
    STATES,
    AggregateRow,
    Evidence,
    ScaledSetting,
    TrainingObservation,
)
from search_spaces.settings import SettingError, check_value, default_of, names, range_of
from trainers.job import LEAST_SHORTFALL, Question

REQUIRED = ("global_batch_size", "epochs_to_target")
OPTIONAL = ("runs", "sd", "samples_per_epoch", "state")
LOG_SCALE = ("learning_rate", "weight_decay", "trust_coefficient")
LIKE_A_TYPO = 0.85  # a name this similar to a known one is taken for a typo
WIDE_RANGE = 10.0  # a free setting that spans this factor or more is handled on a log scale


def read_table(
    path: Path | str,
    *,
    strict: bool = False,
    question: Question | None = None,
    full_scale: Mapping[str, float] | None = None,
) -> Evidence:
    """Return the evidence in the CSV file at ``path``; an :class:`EvidenceError` names the line, column and value.

    If any run did not reach the target, all rows except means over several runs are read as single trials. ``strict``
    rejects free settings. ``question`` is given for a fixed budget; without it the table holds epochs to a target.
    ``full_scale`` maps the columns of model size and training length to their values at the scale of the forecast.
    """
    path, full_scale = Path(path), dict(full_scale or {})
    required = REQUIRED if question is None else ("global_batch_size", question.target.metric)
    header, rows = read_table_lines(path, required, "configuration")
    _check_header(path, header, required, full_scale, strict=strict)
    filled = (*(required if question is None else required[:1]), *full_scale)
    tables = [(line, table_row_cells(path, line, header, row, filled)) for line, row in rows]
    states = [_state(path, line, cells) for line, cells in tables]
    if question is not None:
        tables = _as_needs(path, tables, states, question, list(full_scale))
    texts = _texts(tables)
    aggregates: list[AggregateRow] = []
    observations: list[TrainingObservation] = []
    for (line, cells), state in zip(tables, states, strict=True):
        read = _row(path, line, cells, state, texts)
        many = isinstance(read, AggregateRow) and (read.runs or 1) >= LEAST_RUNS_OF_A_RECIPE
        if isinstance(read, AggregateRow) and (many or set(states) == {"reached"}):
            aggregates.append(read)
        elif isinstance(read, AggregateRow):
            observations.append(
                TrainingObservation(
                    read.global_batch_size, state, read.epochs_to_target, read.settings
                )
            )
        else:
            observations.append(read)
    return Evidence(
        observations=observations,
        aggregates=aggregates,
        samples_per_epoch=_samples_per_epoch(path, tables),
        tuned=[
            setting
            for setting in tuned_settings([*observations, *aggregates])
            if setting.name not in full_scale
        ],
        question=question,
        full_scale=full_scale,
    )


def _as_needs(
    path: Path,
    tables: Sequence[tuple[int, Mapping[str, str]]],
    states: Sequence[str],
    question: Question,
    scales: Sequence[str],
) -> list[tuple[int, dict[str, str]]]:
    """Return the cells with the shortfall after the budget in place of the metric.

    A run that was stopped earlier is assumed to end behind the best run at its batch, as in a study.
    """
    metric, found, least = question.target.metric, [], dict[tuple[str, ...], float]()
    rung = ("global_batch_size", *scales)
    for (line, cells), state in zip(tables, states, strict=True):
        kept = {name: text for name, text in cells.items() if name != metric}
        if state == "censored" and metric in cells:
            raise EvidenceError(
                f"{path}, line {line}, column 'state' must be reached for a run that trained to the end of the budget, "
                f"but got {state!r} with a {metric}; set it to reached, or leave {metric} empty if the run ended early"
            )
        if state == "reached":
            if metric not in cells:
                raise EvidenceError(
                    f"{path}, line {line}, column {metric!r} is empty; fill it, drop the row, "
                    f"or set state to diverged or pruned"
                )
            value = cell_number(path, line, metric, cells)
            need = question.shortfall(value)
            if need is None:
                rule = (
                    "be a share of at most 1"
                    if question.target.higher_is_better
                    else "be 0 or more"
                )
                raise EvidenceError(
                    f"{path}, line {line}, column {metric!r} must {rule}, but got {cells[metric]!r}"
                )
            kept["epochs_to_target"] = repr(need)
            if "sd" in kept:  # sd of the odds (1 - m) / m, by the delta method
                sd = cell_number(path, line, "sd", cells, at_least=0)
                slope = 1 / max(value, LEAST_SHORTFALL) ** 2
                kept["sd"] = repr(sd * (slope if question.target.higher_is_better else 1.0))
            place = tuple(cells[name] for name in rung)
            least[place] = min(need, least.get(place, math.inf))
        found.append((line, kept))
    for (_, kept), state in zip(found, states, strict=True):
        if state != "reached":
            place = tuple(kept[name] for name in rung)
            kept["epochs_to_target"] = repr(least.get(place, 0.0))
    return found


def _check_header(
    path: Path,
    header: Sequence[str],
    required: Sequence[str],
    full_scale: Mapping[str, float],
    *,
    strict: bool,
) -> None:
    known = (*required, *OPTIONAL, *full_scale, *names())
    for name in header:
        if name in known:
            continue
        if not name:
            raise EvidenceError(
                f"{path}, line 1: column {header.index(name) + 1} has no name; name it or drop it"
            )
        near = difflib.get_close_matches(name, known, n=1, cutoff=LIKE_A_TYPO)
        if near:
            raise EvidenceError(
                f"{path}, line 1: there is no column {name!r}; did you mean {near[0]!r}? "
                f"A free setting needs a less similar name"
            )
        if strict:
            raise EvidenceError(
                f"{path}, line 1: column {name!r} is neither a setting nor one of "
                f"{', '.join((*required, *OPTIONAL))}; drop it, or read the table without "
                f"--strict to use it as a free setting"
            )
    check_required_columns(path, header, (*required, *full_scale))
    if required is not REQUIRED and REQUIRED[1] in header:
        raise EvidenceError(
            f"{path}, line 1: a table must have {REQUIRED[1]!r} or {required[1]!r}, but has "
            f"both; drop one"
        )


def _state(path: Path, line: int, cells: Mapping[str, str]) -> str:
    state = cells.get("state", "reached")
    if state not in STATES:
        near = difflib.get_close_matches(state.lower(), STATES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise EvidenceError(
            f"{path}, line {line}, column 'state' must be one of {', '.join(STATES)}, "
            f"but got {state!r}{hint}"
        )
    return state


def _texts(tables: Sequence[tuple[int, Mapping[str, str]]]) -> set[str]:
    """Return the free settings whose columns hold a value that is not a number; no law can extrapolate them."""
    found = set()
    for _, cells in tables:
        for name in cells.keys() - {*REQUIRED, *OPTIONAL, *names()}:
            try:
                float(cells[name])
            except ValueError:
                found.add(name)
    return found


def _row(
    path: Path, line: int, cells: Mapping[str, str], state: str, texts: set[str]
) -> AggregateRow | TrainingObservation:
    batch = int(cell_number(path, line, "global_batch_size", cells, at_least=1, whole=True))
    runs = (
        int(cell_number(path, line, "runs", cells, at_least=1, whole=True))
        if "runs" in cells
        else None
    )
    sd = cell_number(path, line, "sd", cells, at_least=0) if "sd" in cells else None
    settings = {
        name: _setting(path, line, name, cells, texts)
        for name in cells
        if name not in REQUIRED + OPTIONAL
    }
    if state == "reached":
        return AggregateRow(
            batch, cell_number(path, line, "epochs_to_target", cells, above=0), runs, sd, settings
        )
    return TrainingObservation(
        batch, state, cell_number(path, line, "epochs_to_target", cells, at_least=0), settings
    )


def _setting(path: Path, line: int, name: str, cells: Mapping[str, str], texts: set[str]) -> Any:
    if name not in names():
        return cells[name] if name in texts else cell_number(path, line, name, cells)
    bounds = range_of(name)
    if bounds is None:
        return _word(path, line, name, cells[name])
    value = cell_number(path, line, name, cells)
    if value not in bounds:
        raise EvidenceError(
            f"{path}, line {line}, column {name!r} must lie in {bounds}, but got {cells[name]!r}"
        )
    return value


def _word(path: Path, line: int, name: str, text: str) -> Any:
    """Return a categorical or boolean value; lists are kept as given."""
    switch = {"true": True, "false": False}.get(text.lower())
    value: Any = text if switch is None else switch
    if not isinstance(default_of(name), tuple):
        try:
            check_value(name, value)
        except SettingError as error:
            raise EvidenceError(f"{path}, line {line}, column {name!r}: {error}") from error
    return value


def _samples_per_epoch(path: Path, tables: Sequence[tuple[int, Mapping[str, str]]]) -> float | None:
    seen = {
        cell_number(path, line, "samples_per_epoch", cells, above=0)
        for line, cells in tables
        if "samples_per_epoch" in cells
    }
    if len(seen) > 1:
        raise EvidenceError(
            f"{path}: samples_per_epoch must be the same in every row, but got {sorted(seen)}"
        )
    return seen.pop() if seen else None


def tuned_settings(rows: Sequence[AggregateRow | TrainingObservation]) -> list[ScaledSetting]:
    """Return every numeric setting of the rows, free ones included, each with its scale."""
    tuned: list[ScaledSetting] = []
    for name in dict.fromkeys(name for row in rows for name in row.settings):
        values = [row.settings[name] for row in rows if name in row.settings]
        if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
            tuned.append(
                ScaledSetting(
                    name, "log" if _on_log_scale(name, min(values), max(values)) else "linear"
                )
            )
    return tuned


def _on_log_scale(name: str, low: float, high: float) -> bool:
    return low > 0 and (name in LOG_SCALE or (name not in names() and high >= WIDE_RANGE * low))
