"""Rules for fusing training runs: which runs can be fused at all, and which can be fused with each other.

Settings that change how a model is computed, or which rule updates its weights, must be the same in all runs, since the
model is computed only once. A setting that enters the update as a number may differ, because it becomes a vector over
the runs.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from search_spaces.settings import TrainingSettings
from trainers.errors import JobError
from trainers.job import TrainingJob
from trainers.json_text import json_text

VARYING = frozenset(
    {
        "learning_rate",
        "momentum",
        "beta1",
        "beta2",
        "epsilon",
        "bias_correction",
        "weight_decay",
        "decay_norm_and_bias",
        "decay_bias",
        "gradient_clip_norm",
        "trust_coefficient",
        "trust_epsilon",
        "adapt_norm_and_bias",
        "weight_norm_limit",
        "rmsprop_learning_rate",
        "rmsprop_center_epochs",
        "rmsprop_period_epochs",
        "preconditioner_interval",
        "warmup_shape",
        "warmup_epochs",
        "warmup_start_factor",
        "decay",
        "decay_epochs",
        "decay_power",
        "decay_milestones",
        "decay_factor",
        "decay_values",
        "end_learning_rate_factor",
        "zero_gamma",
        "normalization_momentum",
    }
)
"""The settings that may differ between fused training runs; all others must be the same."""

ALONE: dict[str, tuple[Any, str]] = {
    "adascale_batch_size": (None, "its rate depends on the gradients of every update"),
    "batch_control": ("constant", "fused runs must have one constant batch size"),
    "gradient_lag": (0, "the gradient of the previous update is not kept for fused runs"),
    "loss_scaling": ("none", "an overflow in one run must not delay the other runs"),
    "reduced_weights": (False, "fused weights must have one data type"),
    "update_mode": ("synchronous", "fused runs have no workers of their own"),
}
"""The settings that a fused training run must have, and why."""

_DROPOUTS = (nn.modules.dropout._DropoutNd, nn.RReLU)


def check_fusable(settings: TrainingSettings) -> None:
    """Raise :class:`~trainers.errors.JobError` if a setting does not allow fusion."""
    for name, (needed, reason) in ALONE.items():
        value = getattr(settings, name)
        if value != needed:
            raise JobError(
                f"a fused training run must have {name} {_shown(needed)}, because {reason}, but "
                f"got {_shown(value)}; "
                f"set {name} to {_shown(needed)}, or leave resources.fused_trials out"
            )


def check_fusable_model(model: nn.Module) -> None:
    """Raise :class:`~trainers.errors.JobError` if the model draws random numbers, which would differ between runs."""
    for name, module in model.named_modules():
        if isinstance(module, _DROPOUTS) and getattr(module, "p", 1.0) > 0:
            raise JobError(
                f"a fused training run must have a model that draws no random numbers during "
                f"training, because each run has its own random numbers, but "
                f"{name or 'the model'} is {module}; set its probability to 0, or leave "
                "resources.fused_trials out"
            )


def fusion_key(job: TrainingJob) -> str:
    """Return a key that is equal for runs that can be fused; it covers the model, the batches and the update rule."""
    settings = job.settings.to_dict()
    same = {name: value for name, value in settings.items() if name not in VARYING}
    return json_text(
        {
            "workload": job.workload,
            "data": dict(sorted(job.data.items())),
            "search_path": job.search_path,
            "global_batch_size": job.global_batch_size,
            "micro_batch_size": job.micro_batch_size,
            "settings": dict(sorted(same.items())),
        }
    )


def _shown(value: Any) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
