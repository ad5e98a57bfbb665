"""Tuned optimizers over batch sizes up to the whole training set: epochs to target, by studies of the service itself.

There is one study per technique, each with the same budget of trials; the best settings of every batch size are trained
with three seeds. The tuned settings are those that users of the technique tune.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hpo
from benchmarks.techniques.workloads import Images
from hpo.runs.results import SweptConfiguration, rung_candidates

SEEDS = 3
_WARMUP = {"uniform": [0, 5], "role": "scaled"}

SEARCHES: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "learning_rate": {"log_uniform": [0.01, 6.4], "role": "scaled"}},
    "lars": {"optimizer": "lars", "learning_rate": {"log_uniform": [0.5, 200], "role": "scaled"}},
    "larc": {
        "optimizer": "larc",
        "learning_rate": {"log_uniform": [0.01, 6.4], "role": "scaled"},
        "trust_coefficient": {"log_uniform": [0.002, 0.2], "role": "scaled"},
    },
    "lamb": {
        "optimizer": "lamb",
        "learning_rate": {"log_uniform": [0.002, 0.5], "role": "scaled"},
        "weight_decay": 0.01,
        "epsilon": 1e-6,
    },
    # the batch doubles twice within the first epochs, up to the listed size
    "sgd, growing batch": {
        "optimizer": "sgd",
        "learning_rate": {"log_uniform": [0.01, 6.4], "role": "scaled"},
        "batch_control": "piecewise",
        "batch_milestones": [2.0, 4.0],
        "batch_factors": [2.0, 4.0],
    },
}


def spec_of(technique: str, images: Images) -> hpo.StudySpec:
    """Return the study of one technique."""
    return hpo.StudySpec.from_dict(
        {
            "name": f"{images.name}-{technique.replace(', ', '-').replace(' ', '-')}",
            "workload": "resnet",
            "data": images.data,
            "target": {"metric": "top1", "at_least": images.target},
            "ladder": [
                batch // growth(technique) // 16 * 16
                for batch in images.ladder
                if batch >= 16 * growth(technique)
            ],
            "search": {
                "warmup_epochs": _WARMUP,
                **SEARCHES[technique],
                **({} if technique == "lamb" else {"momentum": 0.9}),
            },
            "budget": {
                "trials": images.trials,
                "epochs_per_trial": images.epochs,
                "evaluations_per_epoch": images.evaluations_per_epoch,
            },
            "seeds": SEEDS,
        }
    )


def growth(technique: str) -> int:
    """Return the ratio of the last batch of a training to its first."""
    return round(max(SEARCHES[technique].get("batch_factors", [1])))


def rows(images: Images, folder: Path) -> Iterator[tuple[str, int, SweptConfiguration | None]]:
    """Yield every technique and last batch size with its best settings; studies in ``folder`` are continued."""
    folder.mkdir(parents=True, exist_ok=True)
    for technique in SEARCHES:
        spec = spec_of(technique, images)
        result = hpo.run_study(spec, f"sqlite:///{folder}/techniques.db", folder=folder / "work")
        for batch in spec.ladder:
            yield (
                technique,
                batch * growth(technique),
                most_seeds(rung_candidates(result.trials, batch)),
            )


def most_seeds(found: list[SweptConfiguration]) -> SweptConfiguration | None:
    """Return the best of those trained with the most seeds, so that no lucky single training is printed."""
    most = max((each.runs for each in found), default=0)
    return min(
        (each for each in found if each.runs == most), key=lambda each: each.need, default=None
    )


def shown(candidate: SweptConfiguration | None) -> str:
    """Return a cell of the table: epochs, seeds and the tuned settings."""
    if candidate is None or not math.isfinite(candidate.need):
        return "not reached"
    settings = candidate.settings
    trust = f", trust {settings.trust_coefficient:.2g}" if settings.optimizer == "larc" else ""
    return (
        f"{candidate.need:.1f} ({candidate.runs} seeds; rate {settings.learning_rate:.2g}, "
        f"warmup {settings.warmup_epochs:.1f}{trust})"
    )
