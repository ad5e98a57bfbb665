"""All trials of a study as columns, so that a table of thousands of trials can be sorted and filtered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpo.study.spec import StudySpec
from storage.figures import TRIAL_FIELDS
from storage.records import Trial

SHOWN = tuple(each for each in TRIAL_FIELDS if each.shown)
COLUMNS = (
    *("number", "state", "global_batch_size", "seed", "purpose"),
    *(each.name for each in SHOWN),
    "reason",
)


def trial_columns(trials: Sequence[Trial], spec: StudySpec) -> dict[str, Any]:
    """Return all trials of a study as lists of equal length.

    ``columns`` holds the columns common to all trials, ``settings`` the sizes and tuned settings by name; unmeasured
    values are None. ``tuned`` names the tuned settings, which have figures of their own. ``figures`` holds the headings
    of the result columns by name, in page order.
    """
    return {
        "columns": {name: [_plain(getattr(trial, name)) for trial in trials] for name in COLUMNS},
        "figures": {each.name: each.title for each in SHOWN},
        "settings": {
            name: [_plain(trial.settings.get(name)) for trial in trials] for name in spec.varied
        },
        "tuned": list(spec.search.names),
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
