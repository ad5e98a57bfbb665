"""The folder of a study's file, in which its own modules and data with relative paths are looked up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "studies", sa.Column("folder", sa.Text(), nullable=False, server_default=sa.text("''"))
    )


def downgrade() -> None:
    with op.batch_alter_table("studies") as batch:
        batch.drop_column("folder")
