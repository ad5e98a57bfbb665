"""The tables of studies: typed columns, foreign keys that cascade from the study down, enforced rules.

A change here needs a revision in ``storage/migrations/versions``; a test compares the two.
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
    rule_of,
)
from storage.records import PlanKind, StudyState, TrialState, Trust
from storage.schema.column_types import Measures
from storage.schema.columns import (
    identity,
    metadata,
    number,
    one_of,
    parent,
    rule,
    text,
    time,
    told,
    whole,
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
    return rule("reached_has_epochs", "(state = 'reached') = (epochs_to_target IS NOT NULL)")


studies = Table(
    "studies",
    metadata,
    identity(),
    Column("name", Text, nullable=False, unique=True),
    Column("state", one_of(StudyState, "state"), nullable=False),
    text("workload"),
    text("metric"),
    number("threshold"),
    Column("higher_is_better", Boolean, nullable=False),
    text("spec"),
    text("folder", earlier=""),
    time("created_at"),
    time("updated_at"),
    told("message"),
    text("owner", earlier=""),
    whole("priority", earlier="0"),
    Column("idempotency_key", Text),
    Column("max_samples", BigInteger),
    number("max_accelerator_hours", nullable=True),
    time("queued_at", nullable=True),
    Column("cancel_requested", Boolean, nullable=False, server_default=false()),
    Column("lease_worker", Text),
    whole("lease_generation", earlier="0"),
    number("lease_seconds", nullable=True),
    time("lease_expires_at", nullable=True),
    whole("attempts", earlier="0"),
    Column("budget_trials", BigInteger),
    time("claimed_at", nullable=True),
    Column("for_agents", Boolean, nullable=False, server_default=false()),
    Column("checksum", BigInteger),
    Index(None, "owner", "idempotency_key", unique=True),
    Index(None, "state"),
)

trials = Table(
    "trials",
    metadata,
    identity(),
    parent("studies"),
    whole("number"),
    Column("state", one_of(TrialState, "state"), nullable=False),
    whole("global_batch_size"),
    Column("seed", BigInteger, nullable=False),
    text("purpose"),
    *setting_columns(),
    *(
        Column(each.name, BigInteger) if each.whole else number(each.name, nullable=True)
        for each in TRIAL_FIELDS
    ),
    told("reason"),
    time("started_at", nullable=True),
    time("finished_at", nullable=True),
    Column("samples", BigInteger),
    Column("checksum", BigInteger),
    Column("measures", Measures),
    UniqueConstraint("study_id", "number"),
    Index("ix_trials_summary", "study_id", "state", "epochs_to_target", "samples", "seconds"),
    rule("number_not_negative", "number >= 0"),
    rule("global_batch_size_positive", "global_batch_size > 0"),
    _reached_has_epochs(),
    rule("figures", rule_of(each for each in END_FIGURES if each.name not in LATER)),
    rule("later_figures", rule_of(each for each in END_FIGURES if each.name in LATER)),
)

# The holder of an asked trial; a row stays when its trial has ended, so that the end may be sent twice.
trial_leases = Table(
    "trial_leases",
    metadata,
    parent("trials", primary_key=True),
    text("key"),
    told("holder"),
    number("seconds"),
    time("expires_at"),
    whole("vanished"),
    Index(None, "key"),
)

# Clustered by trial and step, so that a training is on neighbouring pages. NULL is NaN, which SQLite lacks.
convergence = Table(
    "convergence",
    metadata,
    parent("trials", primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("samples", BigInteger, nullable=False),
    number("epochs"),
    number("seconds"),
    number("train_loss", nullable=True),
    number("loss", nullable=True),
    number("metric", nullable=True),
    number("learning_rate"),
    whole("global_batch_size"),
    number("gradient_noise_scale", nullable=True),
    rule("figures", rule_of(POINT_FIGURES)),
    sqlite_with_rowid=False,
)

forecasts = Table(
    "forecasts",
    metadata,
    identity(),
    parent("studies"),
    whole("global_batch_size"),
    number("epochs_median"),
    number("epochs_low"),
    number("epochs_high"),
    Column("trust", one_of(Trust, "trust"), nullable=False),
    told("reason"),
    time("created_at"),
    Index(None, "study_id"),
    rule("global_batch_size_positive", "global_batch_size > 0"),
    rule("epochs_interval", "epochs_low <= epochs_high"),
)

forecast_settings = Table(
    "forecast_settings",
    metadata,
    parent("forecasts", primary_key=True),
    Column("name", Text, primary_key=True),
    whole("position"),
    number("median"),
    number("low"),
    number("high"),
    rule("interval", "low <= high"),
)

laws = Table(
    "laws",
    metadata,
    parent("forecasts", primary_key=True),
    Column("name", Text, primary_key=True),
    Column("parameter", Text, primary_key=True),
    whole("position"),
    number("median"),
    number("low"),
    number("high"),
    rule("interval", "low <= high"),
)

plans = Table(
    "plans",
    metadata,
    identity(),
    parent("studies"),
    parent("forecasts", nullable=True),
    Column("kind", one_of(PlanKind, "kind"), nullable=False),
    text("machine"),
    whole("nodes"),
    whole("workers"),
    whole("global_batch_size"),
    whole("local_batch_size"),
    whole("micro_batch_size", nullable=True),
    *setting_columns(),
    number("epochs_median", nullable=True),
    number("epochs_low", nullable=True),
    number("epochs_high", nullable=True),
    number("seconds_median", nullable=True),
    number("seconds_low", nullable=True),
    number("seconds_high", nullable=True),
    Column("trust", one_of(Trust, "trust")),
    text("directory"),
    time("created_at"),
    text("launcher", earlier="local"),
    whole("ranks_per_node", earlier="1"),
    number("slot_seconds", nullable=True),
    number("chance_in_slot", nullable=True),
    text("limited_by", earlier=""),
    Column("details", Text),
    Index(None, "study_id"),
    Index(None, "forecast_id"),
    rule(
        "sizes_positive",
        "nodes > 0 AND workers > 0 AND global_batch_size > 0 AND local_batch_size > 0 "
        "AND (micro_batch_size IS NULL OR micro_batch_size > 0)",
    ),
    rule(
        "forecast_predicts",
        "kind <> 'forecast' OR (forecast_id IS NOT NULL AND epochs_median IS NOT NULL "
        "AND epochs_low IS NOT NULL AND epochs_high IS NOT NULL)",
    ),
    rule("epochs_interval", "epochs_low <= epochs_high"),
    rule("seconds_interval", "seconds_low <= seconds_high"),
)

outcomes = Table(
    "outcomes",
    metadata,
    identity(),
    parent("plans"),
    Column("seed", BigInteger, nullable=False),
    text("backend"),
    whole("workers"),
    Column("state", one_of(TrialState, "state"), nullable=False),
    number("epochs_to_target", nullable=True),
    number("epochs"),
    number("seconds"),
    number("best_metric", nullable=True),
    told("reason"),
    time("created_at"),
    whole("restarts", earlier="0"),
    whole("nodes", nullable=True),
    number("samples_per_second", nullable=True),
    text("source", earlier=""),
    Index(None, "plan_id"),
    rule("finished", "state NOT IN ('queued', 'running')"),
    rule("workers_positive", "workers > 0"),
    _reached_has_epochs(),
    rule("figures", rule_of(OUTCOME_FIGURES)),
)

# Rows of earlier schemas that break a rule of the present one, as JSON: they were corrected or removed.
quarantine = Table(
    "quarantine",
    metadata,
    identity(),
    text("source"),
    text("content"),
    text("reason"),
)

# Sample images of an outcome's model, as JSON: a separate table, so that reading outcomes does not read them.
exhibits = Table(
    "exhibits",
    metadata,
    parent("outcomes", primary_key=True),
    text("content"),
)
