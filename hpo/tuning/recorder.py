"""The one writer of a sweep: gathers convergence points and writes them in bulk.

Points of running trials reach the database within WRITE_INTERVAL; the last points of a trial and its result
are written in one transaction, so that a finished trial is never there without its curve.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from storage.records import ConvergencePoint, TrialResult, TrialState
from storage.store import Store

WRITE_INTERVAL = 0.5
"""Seconds between bulk writes."""


class Recorder:
    """Buffers the points of running trials; ``flush`` and ``finish`` write them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._points: dict[int, list[ConvergencePoint]] = defaultdict(list)
        self._last: dict[int, ConvergencePoint] = {}
        self._resolution: dict[int, float] = {}
        self._written_at = time.monotonic()

    def point(self, trial_id: int, values: Mapping[str, Any]) -> None:
        """Take one convergence point, in the form in which the trainer reports it."""
        point = ConvergencePoint(**values)
        before = self._last.get(trial_id)
        self._resolution[trial_id] = point.epochs - (before.epochs if before else 0.0)
        self._last[trial_id] = point
        self._points[trial_id].append(point)
        if time.monotonic() - self._written_at >= WRITE_INTERVAL:
            self.flush()

    def flush(self) -> None:
        """Write all gathered points in one transaction."""
        if self._points:
            self._store.record(dict(self._points))
            self._points.clear()
        self._written_at = time.monotonic()

    def finish(self, trial_id: int, state: TrialState, outcome: Mapping[str, Any] | None, reason: str) -> None:
        """Write a trial's last points and its end in one transaction.

        ``outcome`` is what the trainer said at the end; a trial that something else ended (a pruned one, one
        whose process died) has none, and its last point tells how far it came.
        """
        last, resolution = self._last.pop(trial_id, None), self._resolution.pop(trial_id, None)
        if outcome is not None:
            came = {name: outcome[name] for name in ("epochs_to_target", "epochs", "steps", "seconds", "best_metric",
                                                     "final_metric")}
            reason = reason or outcome["reason"]
        elif last is not None:
            came = {"epochs": last.epochs, "steps": last.step, "seconds": last.seconds, "final_metric": last.metric}
        else:
            came = {}
        result = TrialResult(state=state, reason=reason, resolution_epochs=resolution, **came)
        self._store.finish_trial(trial_id, result, self._points.pop(trial_id, []))
