"""All trials of a study as columns: what a table of thousands is sorted and filtered by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from storage.records import Trial

COLUMNS = (
    "number",
    "state",
    "global_batch_size",
    "seed",
    "purpose",
    "epochs_to_target",
    "epochs",
    "seconds",
    "best_metric",
    "final_metric",
    "reason",
)


def trial_columns(trials: Sequence[Trial], tuned: Sequence[str]) -> dict[str, Any]:
    """All trials of a study as lists of one length.

    ``columns`` holds what every trial has, ``settings`` the tuned ones by name; what was not measured is None.
    """
    return {
        "columns": {name: [_plain(getattr(trial, name)) for trial in trials] for name in COLUMNS},
        "settings": {name: [_plain(trial.settings[name]) for trial in trials] for name in tuned},
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
