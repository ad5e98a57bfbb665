"""Settings of one's own: what a user's workload or program is told beside the settings that this project knows.

A study declares one in ``search`` as it declares any other, by a domain or by one value; what it means is the
workload's business. Its name must be a word that no known setting and no column of a trial has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

Scalar = str | bool | int | float | None

RESERVED = frozenset(
    {
        "own",
        "id",
        "study_id",
        "number",
        "state",
        "global_batch_size",
        "local_batch_size",
        "micro_batch_size",
        "accumulation",
        "seed",
        "purpose",
        "epochs_to_target",
        "epochs",
        "step",
        "steps",
        "samples",
        "seconds",
        "best_metric",
        "final_metric",
        "reason",
        "resolution_epochs",
        "started_at",
        "finished_at",
        "train_loss",
        "loss",
        "metric",
        "gradient_noise_scale",
        "trial",
        "nodes",
        "node_rank",
        "workers",
        "workers_per_node",
        "evaluations_per_epoch",
        "device_list",
        "checkpoint_folder",
        "output_folder",
        "trial_file",
        "report_file",
        "stop_file",
        "master_address",
        "master_port",
    }
)
"""Names of what a trial has beside its settings, in tables, exports and commands."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")


def faults_of_own(name: Any, value: Any) -> Iterator[str]:
    """What is wrong with a setting of one's own: the rule, what it got and the way out."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield (
            "the name of a setting of your own must be letters, digits and underscores, a letter first, at most 63, "
            f"but got {name!r}"
        )
    elif name in RESERVED:
        yield f"{name} is what every trial has beside its settings; give your setting another name"
    elif value is not None and not isinstance(value, (str, bool, int, float)):
        yield f"{name} must be text, a number, true, false or null, but got {value!r}"
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{name} must be a finite number, but got {value!r}"
