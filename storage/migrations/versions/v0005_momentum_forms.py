"""LARS with a configurable momentum form, and a separate setting for the weight decay of biases.

Before this revision, ``momentum_form`` was a setting of SGD alone, and every training run with LARS had the learning
rate inside its momentum buffer, whatever the column said.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLES = ("trials", "plans")


def upgrade() -> None:
    for table in TABLES:
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column("decay_bias", sa.Boolean(), nullable=True))
            batch.alter_column(
                "momentum_form", existing_type=sa.Text(), nullable=True, server_default=None
            )
        op.execute(f"UPDATE {table} SET momentum_form = 'inside' WHERE optimizer = 'lars'")


def downgrade() -> None:
    for table in TABLES:
        op.execute(
            f"UPDATE {table} SET momentum_form = 'outside' WHERE momentum_form IS NULL OR optimizer = 'lars'"
        )
        with op.batch_alter_table(table) as batch:
            batch.alter_column(
                "momentum_form",
                existing_type=sa.Text(),
                nullable=False,
                server_default=sa.text("'outside'"),
            )
            batch.drop_column("decay_bias")
