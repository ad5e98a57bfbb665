"""Reads runs of Weights & Biases, from a project through the API or from exported CSV files.

Through the API (``wandb.Api().runs``, docs.wandb.ai, "Public API"), a run has its config, its summary and its complete
history, not only the sample that charts show. The API key comes from ``wandb login`` or ``WANDB_API_KEY``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo.errors import EvidenceError
from hpo.past_runs import csv_tables
from hpo.past_runs.past_run import PastRun, Reading

_PROJECT = re.compile(r"[^/\s]+/[^/\s]+")


def read_wandb(source: str, chart: Sequence[Path] = ()) -> list[PastRun]:
    """Return the runs of an exported table or of a project ``ENTITY/PROJECT``; raise EvidenceError on failure."""
    if Path(source).is_file() or not _PROJECT.fullmatch(source) or source.endswith(".csv"):
        return csv_tables.read_wandb(Path(source), chart)
    if chart:
        raise EvidenceError(
            f"a chart belongs to an exported table, but the source is the project {source}, "
            f"whose curves are read through the API; leave --chart out"
        )
    try:
        import wandb
    except ImportError as error:
        raise EvidenceError(
            f"there is no file {source}, and reading a project of that name needs wandb, which is not installed; "
            'pip install "largebatch[wandb]", or export the table of runs as CSV'
        ) from error
    try:
        return read_project(source, wandb.Api())
    except EvidenceError:
        raise
    except Exception as error:  # errors of the W&B server, the API key or the network
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EvidenceError(
            f"cannot read the project {source} of Weights & Biases: {reason}; check the name "
            f"ENTITY/PROJECT and `wandb login`, or export the table of runs as CSV"
        ) from error


def read_project(name: str, api: Any) -> list[PastRun]:
    """Return the runs of a project from a ``wandb.Api``; each is labelled with its unique id."""
    found = [_past_run(run) for run in api.runs(name)]
    if not found:
        raise EvidenceError(f"the project {name} of Weights & Biases has no runs")
    return found


def _past_run(run: Any) -> PastRun:
    curves: dict[str, list[Reading]] = defaultdict(list)
    for row in run.scan_history():
        step, seconds = float(row["_step"]), row.get("_runtime")
        for key, value in row.items():
            number = _number(value)
            if number is not None and not key.startswith("_"):
                curves[key].append(Reading(step, number, seconds))
    summary = dict(run.summary)
    values = {**dict(_flat(summary)), **dict(_flat(run.config))}
    seconds = summary.get("_runtime")
    return PastRun(
        label=f"wandb {'/'.join(run.path)}",
        values={key: value for key, value in values.items() if not key.startswith("_")},
        curves=curves,
        status=str(run.state).lower(),
        seconds=None if seconds is None else float(seconds),
        has_id=True,
    )


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield numbers and strings by name; names in nested mappings are joined (``optim.lr``), as in exported tables."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        elif isinstance(value, str) or _number(value) is not None:
            yield f"{before}{key}", value


def _number(value: Any) -> float | None:
    """Return a number from a history, where W&B represents non-finite values as strings."""
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
