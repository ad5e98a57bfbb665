"""The service's tables: a queue of studies with leases, events, tokens, workers; plans for machines;
measured speeds.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PLAN_KINDS = ("forecast", "linear_scaling", "no_scaling")
SERVICE_TABLES = ("throughputs", "workload_costs", "workers", "tokens", "events")


def upgrade() -> None:
    for table, columns in _new_columns().items():
        for column in columns:
            op.add_column(table, column)
    op.create_index(
        "ix_studies_owner_idempotency_key", "studies", ["owner", "idempotency_key"], unique=True
    )
    op.create_index("ix_studies_state", "studies", ["state"])
    op.drop_index("ix_trials_study_id_state", "trials")
    op.create_index(
        "ix_trials_summary",
        "trials",
        ["study_id", "state", "epochs_to_target", "samples", "seconds"],
    )
    op.execute("UPDATE plans SET ranks_per_node = (workers + nodes - 1) / nodes")
    op.execute(
        "UPDATE trials SET samples = COALESCE("
        "(SELECT samples FROM convergence WHERE trial_id = trials.id ORDER BY step DESC LIMIT 1), "
        "steps * CAST(global_batch_size AS BIGINT)) WHERE state NOT IN ('queued', 'running')"
    )
    _allow_kinds(*PLAN_KINDS, "imported")
    _create_service_tables()


def downgrade() -> None:
    for table in SERVICE_TABLES:
        op.drop_table(table)
    op.execute("DELETE FROM plans WHERE kind = 'imported'")
    _allow_kinds(*PLAN_KINDS)
    op.drop_index("ix_trials_summary", "trials")
    op.create_index("ix_trials_study_id_state", "trials", ["study_id", "state"])
    op.drop_index("ix_studies_state", "studies")
    op.drop_index("ix_studies_owner_idempotency_key", "studies")
    for table, columns in _new_columns().items():
        with op.batch_alter_table(table) as batch:
            for column in columns:
                batch.drop_column(column.name)


def _new_columns() -> dict[str, list[sa.Column[Any]]]:
    return {
        "studies": [
            _text("owner", ""),
            _whole("priority", "0"),
            sa.Column("idempotency_key", sa.Text()),
            sa.Column("max_samples", sa.BigInteger()),
            _optional("max_accelerator_hours"),
            _time("queued_at", nullable=True),
            sa.Column("cancel_requested", sa.Boolean(), nullable=False, server_default=sa.false()),
            sa.Column("lease_worker", sa.Text()),
            _whole("lease_generation", "0"),
            _optional("lease_seconds"),
            _time("lease_expires_at", nullable=True),
            _whole("attempts", "0"),
        ],
        "trials": [sa.Column("samples", sa.BigInteger())],
        "plans": [
            _text("launcher", "local"),
            _whole("ranks_per_node", "1"),
            _optional("slot_seconds"),
            _optional("chance_in_slot"),
            _text("limited_by", ""),
            sa.Column("details", sa.Text()),
        ],
        "outcomes": [
            _whole("restarts", "0"),
            sa.Column("nodes", sa.Integer()),
            _optional("samples_per_second"),
            _text("source", ""),
        ],
    }


def _allow_kinds(*kinds: str) -> None:
    condition = "kind IN (" + ", ".join(f"'{kind}'" for kind in kinds) + ")"
    with op.batch_alter_table("plans") as batch:
        batch.drop_constraint("kind", type_="check")
        batch.create_check_constraint("kind", sa.text(condition))


def _create_service_tables() -> None:
    op.create_table(
        "events",
        _id(),
        _study(nullable=True),
        _time("at"),
        _text("kind"),
        _text("message"),
        sa.Column("data", sa.Text()),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_study_id", "events", ["study_id"])
    op.create_table(
        "tokens",
        _id(),
        _text("name"),
        _text("owner"),
        _text("digest"),
        _text("scopes"),
        _time("created_at"),
        _time("expires_at", nullable=True),
        _time("revoked_at", nullable=True),
        _time("last_used_at", nullable=True),
        sa.UniqueConstraint("digest"),
    )
    op.create_index("ix_tokens_owner", "tokens", ["owner"])
    op.create_table(
        "workers",
        sa.Column("name", sa.Text(), primary_key=True),
        _text("host"),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        _text("version"),
        _study(nullable=True, on_delete="SET NULL"),
        _whole("cores"),
        _whole("accelerators"),
        _time("started_at"),
        _time("seen_at"),
    )
    op.create_index("ix_workers_study_id", "workers", ["study_id"])
    op.create_table(
        "workload_costs",
        _study(primary_key=True),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        _whole("gradient_tensors"),
        _number("flops_per_sample"),
        _number("activation_bytes_per_sample"),
        _number("sample_bytes"),
    )
    op.create_table(
        "throughputs",
        _id(),
        _text("machine"),
        _text("workload"),
        _whole("nodes"),
        _whole("accelerators"),
        _whole("global_batch_size"),
        _text("precision"),
        _number("samples_per_second"),
        _text("source"),
        _time("created_at"),
        sa.CheckConstraint(
            "nodes > 0 AND accelerators > 0 AND global_batch_size > 0", name="sizes_positive"
        ),
        sa.CheckConstraint("samples_per_second > 0", name="samples_per_second_positive"),
    )
    op.create_index("ix_throughputs_machine_workload", "throughputs", ["machine", "workload"])


def _id() -> sa.Column[Any]:
    return sa.Column("id", sa.Integer(), primary_key=True)


def _study(
    *, nullable: bool = False, primary_key: bool = False, on_delete: str = "CASCADE"
) -> sa.Column[Any]:
    return sa.Column(
        "study_id",
        sa.Integer(),
        sa.ForeignKey("studies.id", ondelete=on_delete),
        nullable=nullable,
        primary_key=primary_key,
    )


def _text(name: str, earlier: str | None = None) -> sa.Column[Any]:
    return sa.Column(
        name,
        sa.Text(),
        nullable=False,
        server_default=sa.text(f"'{earlier}'") if earlier is not None else None,
    )


def _whole(name: str, earlier: str | None = None) -> sa.Column[Any]:
    return sa.Column(
        name,
        sa.Integer(),
        nullable=False,
        server_default=sa.text(earlier) if earlier is not None else None,
    )


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=False)


def _optional(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=True)


def _time(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)
