"""Leases on the runs of plans, fitted laws, browser sessions, and the number of trials in a study's budget."""

from __future__ import annotations

import sqlalchemy as sa
import yaml
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("studies", sa.Column("budget_trials", sa.BigInteger()))
    op.add_column("studies", sa.Column("claimed_at", sa.DateTime(timezone=True)))
    _fill_budgets()
    op.create_table(
        "plan_runs",
        _parent("plans", "plan_id"),
        sa.Column("seed", sa.BigInteger(), primary_key=True),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "fits",
        _parent("studies", "study_id"),
        sa.Column("fingerprint", sa.Text(), primary_key=True),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.Text(), primary_key=True),
        sa.Column(
            "token_id", sa.Integer(), sa.ForeignKey("tokens.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_sessions_token_id", "sessions", ["token_id"])


def downgrade() -> None:
    for table in ("sessions", "fits", "plan_runs"):
        op.drop_table(table)
    with op.batch_alter_table("studies") as batch:
        batch.drop_column("claimed_at")
        batch.drop_column("budget_trials")


def _fill_budgets() -> None:
    """Fill the column from the studies' files, which were validated on submission; for unreadable files it
    stays NULL.
    """
    studies = sa.table("studies", sa.column("id"), sa.column("spec"), sa.column("budget_trials"))
    connection = op.get_bind()
    for number, spec in connection.execute(sa.select(studies.c.id, studies.c.spec)).all():
        try:
            trials = yaml.safe_load(spec)["budget"]["trials"]
        except (yaml.YAMLError, TypeError, KeyError, ValueError, RecursionError):
            continue
        if isinstance(trials, int) and 0 < trials < 2**63:
            connection.execute(
                sa.update(studies).where(studies.c.id == number).values(budget_trials=trials)
            )


def _parent(table: str, name: str) -> sa.Column[int]:
    return sa.Column(
        name,
        sa.Integer(),
        sa.ForeignKey(f"{table}.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    )
