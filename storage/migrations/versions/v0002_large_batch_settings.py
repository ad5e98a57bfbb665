"""Settings of all large-batch techniques, by default with the behaviour of earlier trials, and exhibits of outcomes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = ("trials", "plans")


def upgrade() -> None:
    for table in TABLES:
        for column in _settings():
            op.add_column(table, column)
    op.create_table(
        "exhibits",
        sa.Column(
            "outcome_id",
            sa.Integer(),
            sa.ForeignKey("outcomes.id", ondelete="CASCADE"),
            primary_key=True,
            nullable=False,
        ),
        sa.Column("content", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("exhibits")
    for table in TABLES:
        with op.batch_alter_table(table) as batch:
            for column in _settings():
                batch.drop_column(column.name)


def _settings() -> list[sa.Column[Any]]:
    return [
        _text("momentum_form", "outside"),
        _number("beta1", "0.9"),
        _number("beta2", "0.999"),
        _number("epsilon", "1e-08"),
        _flag("bias_correction", sa.true()),
        _optional("gradient_clip_norm", sa.Double),
        _number("trust_epsilon", "0"),
        _flag("adapt_norm_and_bias", sa.false()),
        _optional("weight_norm_limit", sa.Double),
        _text("larc_mode", "clip"),
        _text("larc_optimizer", "sgd"),
        _number("rmsprop_learning_rate", "0.0003"),
        _number("rmsprop_center_epochs", "10"),
        _number("rmsprop_period_epochs", "5"),
        _whole("preconditioner_interval", "10"),
        _whole("preconditioner_size_limit", "1024"),
        _text("warmup_shape", "gradual"),
        _text("decay_values", sa.text("''")),
        _text("batch_control", "constant"),
        _text("batch_milestones", sa.text("''")),
        _text("batch_factors", sa.text("''")),
        _optional("batch_limit_factor", sa.Double),
        _text("batch_rate_rule", "none"),
        _optional("adascale_batch_size", sa.Integer),
        _text("class_weighting", "none"),
        _optional("zero_gamma", sa.Boolean),
        _number("normalization_momentum", "0.9"),
        _text("precision", "fp32"),
        _flag("reduced_weights", sa.false()),
        _text("loss_scaling", "none"),
        _number("loss_scale", "65536"),
        _whole("loss_scale_growth_updates", "2000"),
        _whole("gradient_lag", "0"),
        _text("gradient_compression", "none"),
        _text("gradient_reduction", "mean"),
        _text("update_mode", "synchronous"),
        _whole("asynchronous_workers", "4"),
        _whole("staleness_bound", "3"),
        _number("epoch_quorum", "0.75"),
    ]


def _text(name: str, earlier: str | sa.TextClause) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=earlier)


def _number(name: str, earlier: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=False, server_default=sa.text(earlier))


def _whole(name: str, earlier: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text(earlier))


def _flag(name: str, earlier: sa.ColumnElement[bool]) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean(), nullable=False, server_default=earlier)


def _optional(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind(), nullable=True)
