"""The tables of studies, with typed columns, foreign keys that cascade from the study down, and enforced rules.

A change here needs a revision in ``storage/migrations/versions``; a test compares the tables with the migrations.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from storage.figures import (
    END_FIGURES,
    LATER,
    OUTCOME_FIGURES,
    POINT_FIGURES,
    TRIAL_FIELDS,
    check_rule_of_figures,
)
from storage.records import PlanKind, StudyState, TrialState, Trust
from storage.schema.column_types import MeasuresType
from storage.schema.columns import (
    check_rule,
    enumeration_type,
    identity_column,
    integer_column,
    metadata,
    number_column,
    parent_column,
    readable_text_column,
    text_column,
    time_column,
)
from storage.schema.service_tables import (
    events,
    fits,
    plan_runs,
    sessions,
    throughputs,
    tokens,
    workers,
    workload_costs,
)
from storage.schema.setting_types import setting_columns

__all__ = [
    "convergence",
    "events",
    "exhibits",
    "fits",
    "forecast_settings",
    "forecasts",
    "laws",
    "metadata",
    "outcomes",
    "plan_runs",
    "plans",
    "quarantine",
    "sessions",
    "studies",
    "throughputs",
    "tokens",
    "trial_leases",
    "trials",
    "workers",
    "workload_costs",
]


def _reached_has_epochs() -> CheckConstraint:
    return check_rule("reached_has_epochs", "(state = 'reached') = (epochs_to_target IS NOT NULL)")


studies = Table(
    "studies",
    metadata,
    identity_column(),
    Column("name", Text, nullable=False, unique=True),
    Column("state", enumeration_type(StudyState, "state"), nullable=False),
    text_column("workload"),
    text_column("metric"),
    number_column("threshold"),
    Column("higher_is_better", Boolean, nullable=False),
    text_column("spec"),
    text_column("folder", earlier=""),
    time_column("created_at"),
    time_column("updated_at"),
    readable_text_column("message"),
    text_column("owner", earlier=""),
    integer_column("priority", earlier="0"),
    Column("idempotency_key", Text),
    Column("max_samples", BigInteger),
    number_column("max_accelerator_hours", nullable=True),
    time_column("queued_at", nullable=True),
    Column("cancel_requested", Boolean, nullable=False, server_default=false()),
    Column("lease_worker", Text),
    integer_column("lease_generation", earlier="0"),
    number_column("lease_seconds", nullable=True),
    time_column("lease_expires_at", nullable=True),
    integer_column("attempts", earlier="0"),
    Column("budget_trials", BigInteger),
    time_column("claimed_at", nullable=True),
    Column("for_agents", Boolean, nullable=False, server_default=false()),
    Column("checksum", BigInteger),
    Index(None, "owner", "idempotency_key", unique=True),
    Index(None, "state"),
)

trials = Table(
    "trials",
    metadata,
    identity_column(),
    parent_column("studies"),
    integer_column("number"),
    Column("state", enumeration_type(TrialState, "state"), nullable=False),
    integer_column("global_batch_size"),
    Column("seed", BigInteger, nullable=False),
    text_column("purpose"),
    *setting_columns(),
    *(
        Column(each.name, BigInteger) if each.whole else number_column(each.name, nullable=True)
        for each in TRIAL_FIELDS
    ),
    readable_text_column("reason"),
    time_column("started_at", nullable=True),
    time_column("finished_at", nullable=True),
    Column("samples", BigInteger),
    Column("checksum", BigInteger),
    Column("measures", MeasuresType),
    UniqueConstraint("study_id", "number"),
    Index("ix_trials_summary", "study_id", "state", "epochs_to_target", "samples", "seconds"),
    check_rule("number_not_negative", "number >= 0"),
    check_rule("global_batch_size_positive", "global_batch_size > 0"),
    _reached_has_epochs(),
    check_rule(
        "figures", check_rule_of_figures(each for each in END_FIGURES if each.name not in LATER)
    ),
    check_rule(
        "later_figures", check_rule_of_figures(each for each in END_FIGURES if each.name in LATER)
    ),
)

# The holder of a trial that a client asked for; its row stays after the trial has ended, as a result may be sent twice.
trial_leases = Table(
    "trial_leases",
    metadata,
    parent_column("trials", primary_key=True),
    text_column("key"),
    readable_text_column("holder"),
    number_column("seconds"),
    time_column("expires_at"),
    integer_column("vanished"),
    Index(None, "key"),
)

# Clustered by trial and step, so that a training is on adjacent pages. NULL stands for NaN, which SQLite lacks.
convergence = Table(
    "convergence",
    metadata,
    parent_column("trials", primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("samples", BigInteger, nullable=False),
    number_column("epochs"),
    number_column("seconds"),
    number_column("train_loss", nullable=True),
    number_column("loss", nullable=True),
    number_column("metric", nullable=True),
    number_column("learning_rate"),
    integer_column("global_batch_size"),
    number_column("gradient_noise_scale", nullable=True),
    check_rule("figures", check_rule_of_figures(POINT_FIGURES)),
    sqlite_with_rowid=False,
)

forecasts = Table(
    "forecasts",
    metadata,
    identity_column(),
    parent_column("studies"),
    integer_column("global_batch_size"),
    number_column("epochs_median"),
    number_column("epochs_low"),
    number_column("epochs_high"),
    Column("trust", enumeration_type(Trust, "trust"), nullable=False),
    readable_text_column("reason"),
    time_column("created_at"),
    Index(None, "study_id"),
    check_rule("global_batch_size_positive", "global_batch_size > 0"),
    check_rule("epochs_interval", "epochs_low <= epochs_high"),
)

forecast_settings = Table(
    "forecast_settings",
    metadata,
    parent_column("forecasts", primary_key=True),
    Column("name", Text, primary_key=True),
    integer_column("position"),
    number_column("median"),
    number_column("low"),
    number_column("high"),
    check_rule("interval", "low <= high"),
)

laws = Table(
    "laws",
    metadata,
    parent_column("forecasts", primary_key=True),
    Column("name", Text, primary_key=True),
    Column("parameter", Text, primary_key=True),
    integer_column("position"),
    number_column("median"),
    number_column("low"),
    number_column("high"),
    check_rule("interval", "low <= high"),
)

plans = Table(
    "plans",
    metadata,
    identity_column(),
    parent_column("studies"),
    parent_column("forecasts", nullable=True),
    Column("kind", enumeration_type(PlanKind, "kind"), nullable=False),
    text_column("machine"),
    integer_column("nodes"),
    integer_column("workers"),
    integer_column("global_batch_size"),
    integer_column("local_batch_size"),
    integer_column("micro_batch_size", nullable=True),
    *setting_columns(),
    number_column("epochs_median", nullable=True),
    number_column("epochs_low", nullable=True),
    number_column("epochs_high", nullable=True),
    number_column("seconds_median", nullable=True),
    number_column("seconds_low", nullable=True),
    number_column("seconds_high", nullable=True),
    Column("trust", enumeration_type(Trust, "trust")),
    text_column("directory"),
    time_column("created_at"),
    text_column("launcher", earlier="local"),
    integer_column("ranks_per_node", earlier="1"),
    number_column("slot_seconds", nullable=True),
    number_column("chance_in_slot", nullable=True),
    text_column("limited_by", earlier=""),
    Column("details", Text),
    Index(None, "study_id"),
    Index(None, "forecast_id"),
    check_rule(
        "sizes_positive",
        "nodes > 0 AND workers > 0 AND global_batch_size > 0 AND local_batch_size > 0 "
        "AND (micro_batch_size IS NULL OR micro_batch_size > 0)",
    ),
    check_rule(
        "forecast_predicts",
        "kind <> 'forecast' OR (forecast_id IS NOT NULL AND epochs_median IS NOT NULL "
        "AND epochs_low IS NOT NULL AND epochs_high IS NOT NULL)",
    ),
    check_rule("epochs_interval", "epochs_low <= epochs_high"),
    check_rule("seconds_interval", "seconds_low <= seconds_high"),
)

outcomes = Table(
    "outcomes",
    metadata,
    identity_column(),
    parent_column("plans"),
    Column("seed", BigInteger, nullable=False),
    text_column("backend"),
    integer_column("workers"),
    Column("state", enumeration_type(TrialState, "state"), nullable=False),
    number_column("epochs_to_target", nullable=True),
    number_column("epochs"),
    number_column("seconds"),
    number_column("best_metric", nullable=True),
    readable_text_column("reason"),
    time_column("created_at"),
    integer_column("restarts", earlier="0"),
    integer_column("nodes", nullable=True),
    number_column("samples_per_second", nullable=True),
    text_column("source", earlier=""),
    Index(None, "plan_id"),
    check_rule("finished", "state NOT IN ('queued', 'running')"),
    check_rule("workers_positive", "workers > 0"),
    _reached_has_epochs(),
    check_rule("figures", check_rule_of_figures(OUTCOME_FIGURES)),
)

# The originals, as JSON, of rows of earlier schemas that broke a rule of the present one and were corrected or removed.
quarantine = Table(
    "quarantine",
    metadata,
    identity_column(),
    text_column("source"),
    text_column("content"),
    text_column("reason"),
)

# Sample images of an outcome's model, as JSON: a separate table, so that reading outcomes does not read them.
exhibits = Table(
    "exhibits",
    metadata,
    parent_column("outcomes", primary_key=True),
    text_column("content"),
)
