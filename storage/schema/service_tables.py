"""The tables of the service: events, tokens, workers and measured throughputs.

A change here needs a revision in ``storage/migrations/versions``; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text

from storage.schema.columns import identity, metadata, number, parent, rule, text, time, told, whole

# Readers ask for rows after the last id they have seen, so an id must not be reused: AUTOINCREMENT.
events = Table(
    "events",
    metadata,
    identity(),
    parent("studies", nullable=True),
    time("at"),
    text("kind"),
    told("message"),
    Column("data", Text),
    Index(None, "study_id"),
    sqlite_autoincrement=True,
)

tokens = Table(
    "tokens",
    metadata,
    identity(),
    text("name"),
    text("owner"),
    Column("digest", Text, nullable=False, unique=True),
    text("scopes"),
    time("created_at"),
    time("expires_at", nullable=True),
    time("revoked_at", nullable=True),
    time("last_used_at", nullable=True),
    Index(None, "owner"),
)

workers = Table(
    "workers",
    metadata,
    Column("name", Text, primary_key=True),
    text("host"),
    Column("pid", BigInteger, nullable=False),
    text("version"),
    parent("studies", nullable=True, on_delete="SET NULL"),
    whole("cores"),
    whole("accelerators"),
    time("started_at"),
    time("seen_at"),
    Index(None, "study_id"),
)

workload_costs = Table(
    "workload_costs",
    metadata,
    parent("studies", primary_key=True),
    Column("parameters", BigInteger, nullable=False),
    Column("gradient_tensors", Integer, nullable=False),
    number("flops_per_sample"),
    number("activation_bytes_per_sample"),
    number("sample_bytes"),
    number("host_seconds_per_sample", earlier="0"),
    whole("evaluation_samples", earlier="0"),
)

throughputs = Table(
    "throughputs",
    metadata,
    identity(),
    text("machine"),
    text("workload"),
    whole("nodes"),
    whole("accelerators"),
    whole("global_batch_size"),
    text("precision"),
    number("samples_per_second"),
    text("source"),
    time("created_at"),
    Index(None, "machine", "workload"),
    rule("sizes_positive", "nodes > 0 AND accelerators > 0 AND global_batch_size > 0"),
    rule("samples_per_second_positive", "samples_per_second > 0"),
)

# Which process runs a plan with a seed now, so that no other does. The row is deleted with the run.
plan_runs = Table(
    "plan_runs",
    metadata,
    parent("plans", primary_key=True),
    Column("seed", BigInteger, primary_key=True),
    told("holder"),
    time("expires_at"),
)

# Laws fitted to a study's evidence, identified by its fingerprint: plain numbers, as text.
fits = Table(
    "fits",
    metadata,
    parent("studies", primary_key=True),
    Column("fingerprint", Text, primary_key=True),
    text("content"),
    time("made_at"),
)

# Browser sessions: each cookie maps to the token that logged in, until it expires.
sessions = Table(
    "sessions",
    metadata,
    Column("digest", Text, primary_key=True),
    parent("tokens"),
    time("expires_at"),
    Index(None, "token_id"),
)
