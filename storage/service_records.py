"""The service's records other than studies: events, tokens, workers and measured throughputs.

These records are frozen dataclasses like those in ``storage.records``, which re-exports them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event of one study or of the service; later events have larger ids.

    ``study_name`` is "" for an event of the service. ``data`` holds plain JSON values.
    """

    id: int
    study_id: int | None
    study_name: str
    at: datetime
    kind: str
    message: str
    data: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """The right to use the service, given to ``owner``; only the digest of the secret is stored."""

    name: str
    owner: str
    digest: str
    scopes: frozenset[str]
    expires_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Token(NewToken):
    """A token record, as returned by the store."""

    id: int
    created_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class WorkerBeat:
    """A heartbeat from the worker process ``name``, with the study that it is working on."""

    name: str
    host: str
    pid: int
    version: str
    study_id: int | None = None
    cores: int
    accelerators: int


@dataclass(frozen=True, kw_only=True)
class WorkerRecord(WorkerBeat):
    """A worker as it was last seen."""

    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The usage of a study so far; each trial counts as one accelerator, each launch as many as its workers."""

    samples: int
    accelerator_seconds: float
    trials: int


@dataclass(frozen=True, kw_only=True)
class WorkloadCost:
    """The cost of processing one sample of a workload.

    ``flops_per_sample`` counts the floating-point operations of the forward and backward passes, two per multiply-add;
    ``sample_bytes`` is the number of bytes read from storage per sample; ``host_seconds_per_sample`` is the time that
    one processor core takes to decode and augment a sample; ``evaluation_samples`` is the number of samples in one
    evaluation.
    """

    parameters: int
    gradient_tensors: int
    flops_per_sample: float
    activation_bytes_per_sample: float
    sample_bytes: float
    host_seconds_per_sample: float = 0.0
    evaluation_samples: int = 0


@dataclass(frozen=True, kw_only=True)
class NewThroughput:
    """A measured training speed; ``source`` gives its origin, such as an outcome or a published result."""

    machine: str
    workload: str
    nodes: int
    accelerators: int
    global_batch_size: int
    precision: str
    samples_per_second: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Throughput(NewThroughput):
    """A measured training speed, as returned by the store."""

    id: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Totals of the whole database: studies and trials by state, convergence points, and the start of the longest wait.

    ``oldest_queued`` is None if no study is in the queue.
    """

    studies: Mapping[str, int]
    trials: Mapping[str, int]
    points: int
    oldest_queued: datetime | None
