"""Ask-and-tell: trials trained by clients, each under a lease."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "studies",
        sa.Column("for_agents", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_table(
        "trial_leases",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("vanished", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name="fk_trial_leases_trial_id_trials", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", name="pk_trial_leases"),
    )
    op.create_index("ix_trial_leases_key", "trial_leases", ["key"])


def downgrade() -> None:
    op.drop_table("trial_leases")
    with op.batch_alter_table("studies") as batch:
        batch.drop_column("for_agents")
