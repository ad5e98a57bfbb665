"""Series from MLPerf's runs.csv, one row per result log; a series is what one team tuned in one round and code base.

A series is one benchmark, target, round, team, framework (without its version) and optimizer: a team tunes its batch
sizes together, and a different target, round or code base changes the epochs by itself. ``round`` pools the teams of a
round that use one framework, as the rules let them adopt each other's hyperparameters. A rung is a batch size; its rows
are its configurations, each the mean over its runs. The open division, where model and data may differ, is left out, as
are runs that did not reach the target and runs without a batch size.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.extrapolation.learn import Series
from hpo.extrapolation.evidence.evidence import AggregateRow

BENCHMARKS = (
    "resnet",
    "deepcam",
)  # their reference points must not be used for the priors of these series
ROUND = ("benchmark", "target", "round", "framework", "optimizer")
GROUPS = {"team": (*ROUND, "submitter"), "round": ROUND}
COLUMN = {
    "learning_rate": "base_lr",
    "warmup_epochs": "warmup_epochs",
    "momentum": "momentum",
    "weight_decay": "weight_decay",
    "normalization_batch_size": "bn_span",
}
SCHEDULE = (
    "decay_type",
    "end_lr",
    "schedule_total_epochs",
)  # these distinguish configurations, but are not extrapolated
# frameworks as the logs name them; the first match counts, as NVIDIA's partners list the whole container
FRAMEWORKS = {
    "mxnet": "mxnet",
    "paddle": "paddle",
    "mindspore": "mindspore",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "tf": "tensorflow",
    "torch": "pytorch",
}


@dataclass(frozen=True)
class CoarseRow(AggregateRow):
    """A configuration evaluated every ``resolution_epochs``: the target may have been reached that much earlier."""

    resolution_epochs: float = 0.0


def read_runs(path: Path, group: str = "team") -> list[Series]:
    """Return the series of runs.csv with at least two batch sizes, by ``group`` of GROUPS."""
    found: dict[tuple[str, ...], dict[tuple[str, ...], list[Mapping[str, str]]]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if _is_comparable(row):
                named = {
                    **row,
                    "framework": _framework(row["framework"]),
                    "submitter": _team(row["submitter"]),
                }
                series = found.setdefault(tuple(named[name] for name in GROUPS[group]), {})
                series.setdefault(_configuration(row), []).append(row)
    made = [
        Series(
            " ".join(part for part in key if part),
            [_rung(runs) for runs in configurations.values()],
        )
        for key, configurations in sorted(found.items())
    ]
    return [one for one in made if len({row.global_batch_size for row in one.rows}) > 1]


def _is_comparable(row: Mapping[str, str]) -> bool:
    # v0.5 has no divisions, and its logs end before the status
    return (
        row["division"] != "open"
        and row["status"] in {"success", "success?"}
        and bool(row["global_batch_size"])
        and bool(row["epochs_to_target"])
    )


def _framework(name: str) -> str:
    return next((family for word, family in FRAMEWORKS.items() if word in name.lower()), "")


def _team(submitter: str) -> str:
    return submitter.lower().split("/")[0]


def _configuration(row: Mapping[str, str]) -> tuple[str, ...]:
    return (row["global_batch_size"], *(row[name] for name in (*COLUMN.values(), *SCHEDULE)))


def _rung(runs: Sequence[Mapping[str, str]]) -> CoarseRow:
    epochs = [float(run["epochs_to_target"]) for run in runs]
    settings = {name: float(runs[0][column]) for name, column in COLUMN.items() if runs[0][column]}
    spacing = fmean(float(run["last_epoch"]) / float(run["n_evals"]) for run in runs)
    return CoarseRow(
        int(float(runs[0]["global_batch_size"])),
        fmean(epochs),
        len(runs),
        stdev(epochs) if len(epochs) > 1 else None,
        settings,
        spacing,
    )
