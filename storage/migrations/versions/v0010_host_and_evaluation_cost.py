"""Costs of a workload: the host's time per sample, and the number of samples in an evaluation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "workload_costs",
        sa.Column(
            "host_seconds_per_sample", sa.Double(), nullable=False, server_default=sa.text("0")
        ),
    )
    op.add_column(
        "workload_costs",
        sa.Column("evaluation_samples", sa.Integer(), nullable=False, server_default=sa.text("0")),
    )


def downgrade() -> None:
    with op.batch_alter_table("workload_costs") as batch:
        batch.drop_column("evaluation_samples")
        batch.drop_column("host_seconds_per_sample")
