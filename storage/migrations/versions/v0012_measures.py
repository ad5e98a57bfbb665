"""A trial's peak memory, the micro-batch size that was found for it, and the additional metrics that it reported."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from storage.migrations.versions.v0011_figures_and_checksums import constrain

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_COLUMNS = {
    "memory_bytes": sa.BigInteger,
    "micro_batch_size": sa.BigInteger,
    "measures": sa.Text,
}
_RULE = "(memory_bytes BETWEEN 0 AND 1000000000000000000) AND (micro_batch_size BETWEEN 1 AND 2147483647)"


def upgrade() -> None:
    for name, kind in _COLUMNS.items():
        op.add_column("trials", sa.Column(name, kind()))
    constrain("trials", _RULE, "later_figures")


def downgrade() -> None:
    constrain("trials", None, "later_figures")
    for name in _COLUMNS:
        op.drop_column("trials", name)
