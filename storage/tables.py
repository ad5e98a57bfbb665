"""The tables: real columns, foreign keys that cascade from the study down, rules that the database enforces.

A change here needs a revision in ``storage/migrations/versions``; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Enum,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TextClause,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.types import TypeEngine

from storage.column_types import FloatList, Number, UtcDateTime
from storage.records import PlanKind, StudyState, TrialState, Trust

metadata = MetaData(naming_convention={
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
})

# One column per field of search_spaces.settings.TrainingSettings, in `trials` and `plans`; a test compares.
SETTING_TYPES: dict[str, TypeEngine[Any]] = {
    "optimizer": Text(),
    "learning_rate": Number(),
    "momentum": Number(),
    "momentum_form": Text(),
    "nesterov": Boolean(),
    "beta1": Number(),
    "beta2": Number(),
    "epsilon": Number(),
    "bias_correction": Boolean(),
    "weight_decay": Number(),
    "decay_norm_and_bias": Boolean(),
    "gradient_clip_norm": Number(),
    "trust_coefficient": Number(),
    "trust_epsilon": Number(),
    "adapt_norm_and_bias": Boolean(),
    "weight_norm_limit": Number(),
    "larc_mode": Text(),
    "larc_optimizer": Text(),
    "rmsprop_learning_rate": Number(),
    "rmsprop_center_epochs": Number(),
    "rmsprop_period_epochs": Number(),
    "preconditioner_interval": Integer(),
    "preconditioner_size_limit": Integer(),
    "warmup_shape": Text(),
    "warmup_epochs": Number(),
    "warmup_start_factor": Number(),
    "decay": Text(),
    "decay_epochs": Number(),
    "decay_power": Number(),
    "decay_milestones": FloatList(),
    "decay_factor": Number(),
    "decay_values": FloatList(),
    "end_learning_rate_factor": Number(),
    "batch_control": Text(),
    "batch_milestones": FloatList(),
    "batch_factors": FloatList(),
    "batch_limit_factor": Number(),
    "batch_rate_rule": Text(),
    "adascale_batch_size": Integer(),
    "label_smoothing": Number(),
    "class_weighting": Text(),
    "zero_gamma": Boolean(),
    "normalization_batch_size": Integer(),
    "normalization_momentum": Number(),
    "precision": Text(),
    "reduced_weights": Boolean(),
    "loss_scaling": Text(),
    "loss_scale": Number(),
    "loss_scale_growth_updates": Integer(),
    "gradient_lag": Integer(),
    "gradient_compression": Text(),
    "gradient_reduction": Text(),
    "update_mode": Text(),
    "asynchronous_workers": Integer(),
    "staleness_bound": Integer(),
    "epoch_quorum": Number(),
}
OPTIONAL_SETTINGS = frozenset({"decay_epochs", "gradient_clip_norm", "weight_norm_limit", "batch_limit_factor",
                               "adascale_batch_size", "zero_gamma"})

# What trainings of an earlier schema did, in SQL, for each setting that came later and may not be NULL.
EARLIER_VALUES = {
    "momentum_form": "outside", "beta1": "0.9", "beta2": "0.999", "epsilon": "1e-08", "bias_correction": "1",
    "trust_epsilon": "0", "adapt_norm_and_bias": "0", "larc_mode": "clip", "larc_optimizer": "sgd",
    "rmsprop_learning_rate": "0.0003", "rmsprop_center_epochs": "10", "rmsprop_period_epochs": "5",
    "preconditioner_interval": "10", "preconditioner_size_limit": "1024", "warmup_shape": "gradual",
    "decay_values": "''", "batch_control": "constant", "batch_milestones": "''", "batch_factors": "''",
    "batch_rate_rule": "none", "class_weighting": "none", "normalization_momentum": "0.9", "precision": "fp32",
    "reduced_weights": "0", "loss_scaling": "none", "loss_scale": "65536", "loss_scale_growth_updates": "2000",
    "gradient_lag": "0", "gradient_compression": "none", "gradient_reduction": "mean", "update_mode": "synchronous",
    "asynchronous_workers": "4", "staleness_bound": "3", "epoch_quorum": "0.75",
}


def _settings() -> list[Column[Any]]:
    return [Column(name, kind, nullable=name in OPTIONAL_SETTINGS, server_default=_earlier(name, kind))
            for name, kind in SETTING_TYPES.items()]


def _earlier(name: str, kind: TypeEngine[Any]) -> str | TextClause | ColumnElement[Any] | None:
    if name not in EARLIER_VALUES:
        return None
    if isinstance(kind, Boolean):
        return true() if EARLIER_VALUES[name] == "1" else false()
    return EARLIER_VALUES[name] if isinstance(kind, Text) else text(EARLIER_VALUES[name])


def _one_of(kind: type[StrEnum], rule: str) -> Enum:
    return Enum(kind, values_callable=lambda members: [member.value for member in members], name=rule,
                length=16, native_enum=False, create_constraint=True, validate_strings=True)


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _parent(table: str, *, nullable: bool = False, primary_key: bool = False) -> Column[int]:
    singular = {"studies": "study", "trials": "trial", "forecasts": "forecast", "plans": "plan",
                "outcomes": "outcome"}[table]
    return Column(f"{singular}_id", ForeignKey(f"{table}.id", ondelete="CASCADE"), nullable=nullable,
                  primary_key=primary_key)


def _number(name: str, *, nullable: bool = False) -> Column[float]:
    return Column(name, Number, nullable=nullable)


def _whole(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, Integer, nullable=nullable)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _time(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, UtcDateTime, nullable=nullable)


def _rule(name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(condition, name=name)


def _reached_has_epochs() -> CheckConstraint:
    return _rule("reached_has_epochs", "(state = 'reached') = (epochs_to_target IS NOT NULL)")


studies = Table(
    "studies", metadata, _id(),
    Column("name", Text, nullable=False, unique=True),
    Column("state", _one_of(StudyState, "state"), nullable=False),
    _text("workload"),
    _text("metric"),
    _number("threshold"),
    Column("higher_is_better", Boolean, nullable=False),
    _text("spec"),
    _time("created_at"),
    _time("updated_at"),
    _text("message"),
)

trials = Table(
    "trials", metadata, _id(), _parent("studies"),
    _whole("number"),
    Column("state", _one_of(TrialState, "state"), nullable=False),
    _whole("global_batch_size"),
    Column("seed", BigInteger, nullable=False),
    _text("purpose"),
    *_settings(),
    _number("epochs_to_target", nullable=True),
    _number("epochs", nullable=True),
    Column("steps", BigInteger),
    _number("seconds", nullable=True),
    _number("best_metric", nullable=True),
    _number("final_metric", nullable=True),
    _text("reason"),
    _number("resolution_epochs", nullable=True),
    _time("started_at", nullable=True),
    _time("finished_at", nullable=True),
    UniqueConstraint("study_id", "number"),
    Index(None, "study_id", "state"),
    _rule("number_not_negative", "number >= 0"),
    _rule("global_batch_size_positive", "global_batch_size > 0"),
    _reached_has_epochs(),
)

# Clustered by trial and step, so that a training lies on neighbouring pages. NULL is NaN, which SQLite lacks.
convergence = Table(
    "convergence", metadata, _parent("trials", primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("samples", BigInteger, nullable=False),
    _number("epochs"),
    _number("seconds"),
    _number("train_loss", nullable=True),
    _number("loss", nullable=True),
    _number("metric", nullable=True),
    _number("learning_rate"),
    _whole("global_batch_size"),
    _number("gradient_noise_scale", nullable=True),
    sqlite_with_rowid=False,
)

forecasts = Table(
    "forecasts", metadata, _id(), _parent("studies"),
    _whole("global_batch_size"),
    _number("epochs_median"),
    _number("epochs_low"),
    _number("epochs_high"),
    Column("trust", _one_of(Trust, "trust"), nullable=False),
    _text("reason"),
    _time("created_at"),
    Index(None, "study_id"),
    _rule("global_batch_size_positive", "global_batch_size > 0"),
    _rule("epochs_interval", "epochs_low <= epochs_high"),
)

forecast_settings = Table(
    "forecast_settings", metadata, _parent("forecasts", primary_key=True),
    Column("name", Text, primary_key=True),
    _whole("position"),
    _number("median"),
    _number("low"),
    _number("high"),
    _rule("interval", "low <= high"),
)

laws = Table(
    "laws", metadata, _parent("forecasts", primary_key=True),
    Column("name", Text, primary_key=True),
    Column("parameter", Text, primary_key=True),
    _whole("position"),
    _number("median"),
    _number("low"),
    _number("high"),
    _rule("interval", "low <= high"),
)

plans = Table(
    "plans", metadata, _id(), _parent("studies"), _parent("forecasts", nullable=True),
    Column("kind", _one_of(PlanKind, "kind"), nullable=False),
    _text("machine"),
    _whole("nodes"),
    _whole("workers"),
    _whole("global_batch_size"),
    _whole("local_batch_size"),
    _whole("micro_batch_size", nullable=True),
    *_settings(),
    _number("epochs_median", nullable=True),
    _number("epochs_low", nullable=True),
    _number("epochs_high", nullable=True),
    _number("seconds_median", nullable=True),
    _number("seconds_low", nullable=True),
    _number("seconds_high", nullable=True),
    Column("trust", _one_of(Trust, "trust")),
    _text("directory"),
    _time("created_at"),
    Index(None, "study_id"),
    Index(None, "forecast_id"),
    _rule("sizes_positive", "nodes > 0 AND workers > 0 AND global_batch_size > 0 AND local_batch_size > 0 "
                            "AND (micro_batch_size IS NULL OR micro_batch_size > 0)"),
    _rule("forecast_predicts", "kind <> 'forecast' OR (forecast_id IS NOT NULL AND epochs_median IS NOT NULL "
                               "AND epochs_low IS NOT NULL AND epochs_high IS NOT NULL)"),
    _rule("epochs_interval", "epochs_low <= epochs_high"),
    _rule("seconds_interval", "seconds_low <= seconds_high"),
)

outcomes = Table(
    "outcomes", metadata, _id(), _parent("plans"),
    Column("seed", BigInteger, nullable=False),
    _text("backend"),
    _whole("workers"),
    Column("state", _one_of(TrialState, "state"), nullable=False),
    _number("epochs_to_target", nullable=True),
    _number("epochs"),
    _number("seconds"),
    _number("best_metric", nullable=True),
    _text("reason"),
    _time("created_at"),
    Index(None, "plan_id"),
    _rule("finished", "state NOT IN ('queued', 'running')"),
    _rule("workers_positive", "workers > 0"),
    _reached_has_epochs(),
)

# What the model of an outcome is shown by, as JSON: a table of its own, so that reading outcomes does not read it.
exhibits = Table(
    "exhibits", metadata, _parent("outcomes", primary_key=True),
    _text("content"),
)
