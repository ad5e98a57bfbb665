"""The type of every setting's column, and the values of later settings for trials of earlier schemas."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Column, ColumnElement, Integer, Text, TextClause, false, text, true
from sqlalchemy.types import TypeEngine

from storage.schema.column_types import FloatList, NumberType

# One column per field of search_spaces.settings.TrainingSettings, in `trials` and `plans`; a test compares them.
SETTING_TYPES: dict[str, TypeEngine[Any]] = {
    "optimizer": Text(),
    "learning_rate": NumberType(),
    "momentum": NumberType(),
    "momentum_form": Text(),
    "nesterov": Boolean(),
    "beta1": NumberType(),
    "beta2": NumberType(),
    "epsilon": NumberType(),
    "bias_correction": Boolean(),
    "weight_decay": NumberType(),
    "decay_norm_and_bias": Boolean(),
    "decay_bias": Boolean(),
    "gradient_clip_norm": NumberType(),
    "trust_coefficient": NumberType(),
    "trust_epsilon": NumberType(),
    "adapt_norm_and_bias": Boolean(),
    "weight_norm_limit": NumberType(),
    "larc_mode": Text(),
    "larc_optimizer": Text(),
    "rmsprop_learning_rate": NumberType(),
    "rmsprop_center_epochs": NumberType(),
    "rmsprop_period_epochs": NumberType(),
    "preconditioner_interval": Integer(),
    "preconditioner_size_limit": Integer(),
    "warmup_shape": Text(),
    "warmup_epochs": NumberType(),
    "warmup_start_factor": NumberType(),
    "decay": Text(),
    "decay_epochs": NumberType(),
    "decay_power": NumberType(),
    "decay_milestones": FloatList(),
    "decay_factor": NumberType(),
    "decay_values": FloatList(),
    "end_learning_rate_factor": NumberType(),
    "batch_control": Text(),
    "batch_milestones": FloatList(),
    "batch_factors": FloatList(),
    "batch_limit_factor": NumberType(),
    "batch_rate_rule": Text(),
    "adascale_batch_size": Integer(),
    "label_smoothing": NumberType(),
    "class_weighting": Text(),
    "zero_gamma": Boolean(),
    "normalization_batch_size": Integer(),
    "normalization_momentum": NumberType(),
    "precision": Text(),
    "reduced_weights": Boolean(),
    "loss_scaling": Text(),
    "loss_scale": NumberType(),
    "loss_scale_growth_updates": Integer(),
    "gradient_lag": Integer(),
    "gradient_compression": Text(),
    "gradient_reduction": Text(),
    "update_mode": Text(),
    "asynchronous_workers": Integer(),
    "staleness_bound": Integer(),
    "epoch_quorum": NumberType(),
}
OWN_SETTINGS = "own_settings"
"""The column of the settings specific to a user's workload: a JSON object by name."""
OPTIONAL_SETTINGS = frozenset(
    {
        "momentum_form",
        "decay_bias",
        "decay_epochs",
        "gradient_clip_norm",
        "weight_norm_limit",
        "batch_limit_factor",
        "adascale_batch_size",
        "zero_gamma",
    }
)

# The value used by trainings of an earlier schema, in SQL, for each later setting that may not be NULL.
EARLIER_VALUES = {
    "beta1": "0.9",
    "beta2": "0.999",
    "epsilon": "1e-08",
    "bias_correction": "1",
    "trust_epsilon": "0",
    "adapt_norm_and_bias": "0",
    "larc_mode": "clip",
    "larc_optimizer": "sgd",
    "rmsprop_learning_rate": "0.0003",
    "rmsprop_center_epochs": "10",
    "rmsprop_period_epochs": "5",
    "preconditioner_interval": "10",
    "preconditioner_size_limit": "1024",
    "warmup_shape": "gradual",
    "decay_values": "''",
    "batch_control": "constant",
    "batch_milestones": "''",
    "batch_factors": "''",
    "batch_rate_rule": "none",
    "class_weighting": "none",
    "normalization_momentum": "0.9",
    "precision": "fp32",
    "reduced_weights": "0",
    "loss_scaling": "none",
    "loss_scale": "65536",
    "loss_scale_growth_updates": "2000",
    "gradient_lag": "0",
    "gradient_compression": "none",
    "gradient_reduction": "mean",
    "update_mode": "synchronous",
    "asynchronous_workers": "4",
    "staleness_bound": "3",
    "epoch_quorum": "0.75",
}


def setting_columns() -> list[Column[Any]]:
    """Return the columns of complete settings, for one table."""
    return [
        Column(name, kind, nullable=name in OPTIONAL_SETTINGS, server_default=_earlier(name, kind))
        for name, kind in SETTING_TYPES.items()
    ] + [Column(OWN_SETTINGS, Text, nullable=False, server_default=text("'{}'"))]


def _earlier(name: str, kind: TypeEngine[Any]) -> str | TextClause | ColumnElement[Any] | None:
    if name not in EARLIER_VALUES:
        return None
    if isinstance(kind, Boolean):
        return true() if EARLIER_VALUES[name] == "1" else false()
    return EARLIER_VALUES[name] if isinstance(kind, Text) else text(EARLIER_VALUES[name])
