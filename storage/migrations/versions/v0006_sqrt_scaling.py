"""Plans with the square-root scaling rule, in addition to plans with linear scaling and without scaling."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

PLAN_KINDS = ("forecast", "linear_scaling", "no_scaling", "imported")


def upgrade() -> None:
    _allow_kinds(*PLAN_KINDS, "sqrt_scaling")


def downgrade() -> None:
    op.execute("DELETE FROM plans WHERE kind = 'sqrt_scaling'")
    _allow_kinds(*PLAN_KINDS)


def _allow_kinds(*kinds: str) -> None:
    condition = "kind IN (" + ", ".join(f"'{kind}'" for kind in kinds) + ")"
    with op.batch_alter_table("plans") as batch:
        batch.drop_constraint("kind", type_="check")
        batch.create_check_constraint("kind", sa.text(condition))
