"""The tables of the service: events, tokens, workers and measured throughputs.

A change here needs a revision in ``storage/migrations/versions``; a test compares the tables with the migrations.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text

from storage.schema.columns import (
    check_rule,
    identity_column,
    integer_column,
    metadata,
    number_column,
    parent_column,
    readable_text_column,
    text_column,
    time_column,
)

# Readers ask for rows after the last id they have seen, so an id must not be reused: AUTOINCREMENT.
events = Table(
    "events",
    metadata,
    identity_column(),
    parent_column("studies", nullable=True),
    time_column("at"),
    text_column("kind"),
    readable_text_column("message"),
    Column("data", Text),
    Index(None, "study_id"),
    sqlite_autoincrement=True,
)

tokens = Table(
    "tokens",
    metadata,
    identity_column(),
    text_column("name"),
    text_column("owner"),
    Column("digest", Text, nullable=False, unique=True),
    text_column("scopes"),
    time_column("created_at"),
    time_column("expires_at", nullable=True),
    time_column("revoked_at", nullable=True),
    time_column("last_used_at", nullable=True),
    Index(None, "owner"),
)

workers = Table(
    "workers",
    metadata,
    Column("name", Text, primary_key=True),
    text_column("host"),
    Column("pid", BigInteger, nullable=False),
    text_column("version"),
    parent_column("studies", nullable=True, on_delete="SET NULL"),
    integer_column("cores"),
    integer_column("accelerators"),
    time_column("started_at"),
    time_column("seen_at"),
    Index(None, "study_id"),
)

workload_costs = Table(
    "workload_costs",
    metadata,
    parent_column("studies", primary_key=True),
    Column("parameters", BigInteger, nullable=False),
    Column("gradient_tensors", Integer, nullable=False),
    number_column("flops_per_sample"),
    number_column("activation_bytes_per_sample"),
    number_column("sample_bytes"),
    number_column("host_seconds_per_sample", earlier="0"),
    integer_column("evaluation_samples", earlier="0"),
)

throughputs = Table(
    "throughputs",
    metadata,
    identity_column(),
    text_column("machine"),
    text_column("workload"),
    integer_column("nodes"),
    integer_column("accelerators"),
    integer_column("global_batch_size"),
    text_column("precision"),
    number_column("samples_per_second"),
    text_column("source"),
    time_column("created_at"),
    Index(None, "machine", "workload"),
    check_rule("sizes_positive", "nodes > 0 AND accelerators > 0 AND global_batch_size > 0"),
    check_rule("samples_per_second_positive", "samples_per_second > 0"),
)

# Which process is running a plan with a seed, so that no other process does. The row is deleted when the run ends.
plan_runs = Table(
    "plan_runs",
    metadata,
    parent_column("plans", primary_key=True),
    Column("seed", BigInteger, primary_key=True),
    readable_text_column("holder"),
    time_column("expires_at"),
)

# Laws fitted to a study's evidence, identified by its fingerprint: plain numbers, as text.
fits = Table(
    "fits",
    metadata,
    parent_column("studies", primary_key=True),
    Column("fingerprint", Text, primary_key=True),
    text_column("content"),
    time_column("made_at"),
)

# Browser sessions: each cookie maps to the token that logged in, until it expires.
sessions = Table(
    "sessions",
    metadata,
    Column("digest", Text, primary_key=True),
    parent_column("tokens"),
    time_column("expires_at"),
    Index(None, "token_id"),
)
