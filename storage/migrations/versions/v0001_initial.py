"""Studies, trials, convergence, forecasts, plans and outcomes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TRIAL_STATES = ("queued", "running", "reached", "censored", "diverged", "pruned", "failed")
STUDY_STATES = ("queued", "running", "finished", "failed", "interrupted", "cancelled")


def upgrade() -> None:
    op.create_table(
        "studies",
        _id(),
        _text("name"),
        _one_of("state", *STUDY_STATES),
        _text("workload"),
        _text("metric"),
        _number("threshold"),
        sa.Column("higher_is_better", sa.Boolean(), nullable=False),
        _text("spec"),
        _time("created_at"),
        _time("updated_at"),
        _text("message"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "trials",
        _id(),
        _parent("study_id", "studies.id"),
        _whole("number"),
        _one_of("state", *TRIAL_STATES),
        _whole("global_batch_size"),
        _long("seed"),
        _text("purpose"),
        *_settings(),
        _number("epochs_to_target", nullable=True),
        _number("epochs", nullable=True),
        _long("steps", nullable=True),
        _number("seconds", nullable=True),
        _number("best_metric", nullable=True),
        _number("final_metric", nullable=True),
        _text("reason"),
        _number("resolution_epochs", nullable=True),
        _time("started_at", nullable=True),
        _time("finished_at", nullable=True),
        sa.UniqueConstraint("study_id", "number"),
        sa.CheckConstraint("number >= 0", name="number_not_negative"),
        sa.CheckConstraint("global_batch_size > 0", name="global_batch_size_positive"),
        _reached_has_epochs(),
    )
    op.create_index("ix_trials_study_id_state", "trials", ["study_id", "state"])
    op.create_table(
        "convergence",
        _parent("trial_id", "trials.id", primary_key=True),
        sa.Column("step", sa.BigInteger(), primary_key=True),
        _long("samples"),
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
    _create_forecasts()
    op.create_table(
        "plans",
        _id(),
        _parent("study_id", "studies.id"),
        _parent("forecast_id", "forecasts.id", nullable=True),
        _one_of("kind", "forecast", "linear_scaling", "no_scaling"),
        _text("machine"),
        _whole("nodes"),
        _whole("workers"),
        _whole("global_batch_size"),
        _whole("local_batch_size"),
        _whole("micro_batch_size", nullable=True),
        *_settings(),
        *_interval("epochs_", nullable=True),
        *_interval("seconds_", nullable=True),
        _one_of("trust", "high", "medium", "low", nullable=True),
        _text("directory"),
        _time("created_at"),
        sa.CheckConstraint(
            "nodes > 0 AND workers > 0 AND global_batch_size > 0 AND local_batch_size > 0 "
            "AND (micro_batch_size IS NULL OR micro_batch_size > 0)",
            name="sizes_positive",
        ),
        sa.CheckConstraint(
            "kind <> 'forecast' OR (forecast_id IS NOT NULL AND epochs_median IS NOT NULL "
            "AND epochs_low IS NOT NULL AND epochs_high IS NOT NULL)",
            name="forecast_predicts",
        ),
        sa.CheckConstraint("epochs_low <= epochs_high", name="epochs_interval"),
        sa.CheckConstraint("seconds_low <= seconds_high", name="seconds_interval"),
    )
    op.create_index("ix_plans_study_id", "plans", ["study_id"])
    op.create_index("ix_plans_forecast_id", "plans", ["forecast_id"])
    op.create_table(
        "outcomes",
        _id(),
        _parent("plan_id", "plans.id"),
        _long("seed"),
        _text("backend"),
        _whole("workers"),
        _one_of("state", *TRIAL_STATES),
        _number("epochs_to_target", nullable=True),
        _number("epochs"),
        _number("seconds"),
        _number("best_metric", nullable=True),
        _text("reason"),
        _time("created_at"),
        sa.CheckConstraint("state NOT IN ('queued', 'running')", name="finished"),
        sa.CheckConstraint("workers > 0", name="workers_positive"),
        _reached_has_epochs(),
    )
    op.create_index("ix_outcomes_plan_id", "outcomes", ["plan_id"])


def downgrade() -> None:
    for table in (
        "outcomes",
        "plans",
        "laws",
        "forecast_settings",
        "forecasts",
        "convergence",
        "trials",
        "studies",
    ):
        op.drop_table(table)


def _create_forecasts() -> None:
    op.create_table(
        "forecasts",
        _id(),
        _parent("study_id", "studies.id"),
        _whole("global_batch_size"),
        *_interval("epochs_"),
        _one_of("trust", "high", "medium", "low"),
        _text("reason"),
        _time("created_at"),
        sa.CheckConstraint("global_batch_size > 0", name="global_batch_size_positive"),
        sa.CheckConstraint("epochs_low <= epochs_high", name="epochs_interval"),
    )
    op.create_index("ix_forecasts_study_id", "forecasts", ["study_id"])
    op.create_table(
        "forecast_settings",
        _parent("forecast_id", "forecasts.id", primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        _whole("position"),
        *_interval(""),
        sa.CheckConstraint("low <= high", name="interval"),
    )
    op.create_table(
        "laws",
        _parent("forecast_id", "forecasts.id", primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("parameter", sa.Text(), primary_key=True),
        _whole("position"),
        *_interval(""),
        sa.CheckConstraint("low <= high", name="interval"),
    )


def _settings() -> list[sa.Column[Any]]:
    return [
        _text("optimizer"),
        _number("learning_rate"),
        _number("momentum"),
        sa.Column("nesterov", sa.Boolean(), nullable=False),
        _number("weight_decay"),
        sa.Column("decay_norm_and_bias", sa.Boolean(), nullable=False),
        _number("trust_coefficient"),
        _number("warmup_epochs"),
        _number("warmup_start_factor"),
        _text("decay"),
        _number("decay_epochs", nullable=True),
        _number("decay_power"),
        _text("decay_milestones"),
        _number("decay_factor"),
        _number("end_learning_rate_factor"),
        _number("label_smoothing"),
        _whole("normalization_batch_size"),
    ]


def _id() -> sa.Column[Any]:
    return sa.Column("id", sa.Integer(), primary_key=True)


def _parent(
    name: str, target: str, *, nullable: bool = False, primary_key: bool = False
) -> sa.Column[Any]:
    return sa.Column(
        name,
        sa.Integer(),
        sa.ForeignKey(target, ondelete="CASCADE"),
        nullable=nullable,
        primary_key=primary_key,
    )


def _text(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=False)


def _whole(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), nullable=nullable)


def _long(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _time(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _interval(prefix: str, *, nullable: bool = False) -> list[sa.Column[Any]]:
    return [_number(f"{prefix}{end}", nullable=nullable) for end in ("median", "low", "high")]


def _one_of(name: str, *values: str, nullable: bool = False) -> sa.Column[Any]:
    kind = sa.Enum(*values, name=name, length=16, native_enum=False, create_constraint=True)
    return sa.Column(name, kind, nullable=nullable)


def _reached_has_epochs() -> sa.CheckConstraint:
    return sa.CheckConstraint(
        "(state = 'reached') = (epochs_to_target IS NOT NULL)", name="reached_has_epochs"
    )
