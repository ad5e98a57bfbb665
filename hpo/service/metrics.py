"""Prometheus metrics at /metrics: the requests this server answered, and the queue in the database."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from storage.records import StudyState, Totals
from storage.store import Store

disable_created_metrics()  # type: ignore[no-untyped-call]  # would add a time series per metric that nothing reads
COUNTED_SECONDS = 10.0
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10)


class ServerMetrics:
    """The metrics of one server; all servers of a database report the same queue."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._totals: tuple[float, Totals] | None = None
        self._lock = threading.Lock()
        self.requests = Counter(
            "hpo_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "hpo_request_seconds",
            "Time until the end of a response, without event streams.",
            ("method", "route"),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.streams = Gauge("hpo_event_streams", "Open event streams.", registry=self.registry)
        self._studies = Gauge(
            "hpo_studies", "Studies by state.", ("state",), registry=self.registry
        )
        self._workers = Gauge(
            "hpo_workers",
            "Workers that sent a heartbeat within the last minute.",
            registry=self.registry,
        )
        self._queue_age = Gauge(
            "hpo_queue_age_seconds",
            "How long the oldest queued study has waited; 0 if the queue is empty.",
            registry=self.registry,
        )
        self._points = Gauge(
            "hpo_convergence_points", "Convergence points in the database.", registry=self.registry
        )
        self._trials = Gauge(
            "hpo_trials", "Trials in the database by state.", ("state",), registry=self.registry
        )

    def text(self, store: Store) -> bytes:
        """Return the page in Prometheus' text format; raise StoreUnavailable if the database does not answer."""
        totals = self._counted(store)
        for state in StudyState:
            self._studies.labels(str(state)).set(totals.studies.get(state, 0))
        for trial_state, count in totals.trials.items():
            self._trials.labels(str(trial_state)).set(count)
        self._workers.set(len(store.workers()))
        waited = (
            0.0
            if totals.oldest_queued is None
            else (datetime.now(UTC) - totals.oldest_queued).total_seconds()
        )
        self._queue_age.set(max(0.0, waited))
        self._points.set(totals.points)
        return generate_latest(self.registry)

    def _counted(self, store: Store) -> Totals:
        """Return the totals, recounted at most every ten seconds, as counting millions of points takes a while."""
        with self._lock:
            if self._totals is None or time.monotonic() - self._totals[0] > COUNTED_SECONDS:
                self._totals = time.monotonic(), store.totals()
            return self._totals[1]
