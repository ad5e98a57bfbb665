"""The only writer of a sweep: it buffers convergence points and writes them in bulk.

Points of running trials reach the database within WRITE_INTERVAL. The last points of a trial and its result are written
in one transaction, so that a finished trial always has its curve. While the database is unavailable, points and results
stay in memory.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from hpo.tuning.retry import StorageRetry
from storage.errors import InvalidRecord
from storage.figures import TRIAL_FIELDS, fault_of_points, fault_of_reached
from storage.records import ConvergencePoint, Trial, TrialResult, TrialState
from storage.store import Store

WRITE_INTERVAL = 0.5
"""Seconds between bulk writes."""


class TrialWriter:
    """Buffers the points of running trials; ``flush`` and ``finish`` write them."""

    def __init__(self, store: Store, retry: StorageRetry) -> None:
        self._store, self._retry = store, retry
        self._points: dict[int, list[ConvergencePoint]] = defaultdict(list)
        self._last: dict[int, ConvergencePoint] = {}
        self._resolution: dict[int, float] = {}
        self._faults: dict[int, str] = {}
        self._written_at = time.monotonic()

    def point(self, trial_id: int, values: Mapping[str, Any]) -> bool:
        """Buffer one convergence point, as reported by the trainer; return True if all buffered points were written."""
        point = ConvergencePoint(**values)
        if trial_id in self._faults:
            return False
        before = self._last.get(trial_id)
        if before is not None and before.step >= point.step:
            before = None  # the trial was restarted
            if self._points[trial_id] and self._points[trial_id][-1].step >= point.step:
                kept = [each for each in self._points[trial_id] if each.step < point.step]
                self._points[trial_id] = kept
        if fault := fault_of_points([point], before=before):
            self._faults[trial_id] = fault
            return False
        self._resolution[trial_id] = point.epochs - (before.epochs if before else 0.0)
        self._last[trial_id] = point
        self._points[trial_id].append(point)
        if time.monotonic() - self._written_at >= WRITE_INTERVAL:
            self.flush()
            return True
        return False

    def flush(self) -> None:
        """Write all buffered points in one transaction."""
        if self._points:
            self._retry(lambda: self._store.record(dict(self._points)))
            self._points.clear()
        self._written_at = time.monotonic()

    def finish(
        self, trial: Trial, state: TrialState, outcome: Mapping[str, Any] | None, reason: str
    ) -> Trial:
        """Write a trial's last points and its result in one transaction; return the trial as stored afterwards.

        ``outcome`` is the trainer's final report. A trial that was pruned or whose process died has no report, and its
        last point shows how far it got.
        """
        fault = self._faults.pop(trial.id, "")
        last, resolution = self._last.pop(trial.id, None), self._resolution.pop(trial.id, None)
        try:
            if fault:
                raise InvalidRecord(fault)
            result = result_of_trial(state, outcome, last, resolution, reason)
            if fault := fault_of_reached(result.epochs_to_target, result.epochs):
                raise InvalidRecord(fault)
        except InvalidRecord as error:  # the report is not evidence; the stored points stay
            told = f"its training reported an impossible figure: {error}"
            result = result_of_trial(TrialState.FAILED, None, last, resolution, told)
        points = self._points.pop(trial.id, [])

        def stored() -> Trial:
            return self._store.trial(trial.study_id, trial.number)

        def write() -> bool:
            self._store.finish_trial(trial.id, result, points)
            return True

        self._retry(write, lambda: stored().state.finished or None)
        return self._retry(stored)


def result_of_trial(
    state: TrialState,
    outcome: Mapping[str, Any] | None,
    last: ConvergencePoint | None,
    resolution: float | None,
    reason: str,
) -> TrialResult:
    """Return how a trial ended, from its ``outcome``. Without an outcome, the ``last`` point shows how far the trial
    got.
    """
    if outcome is not None:
        came = {each.name: outcome[each.name] for each in TRIAL_FIELDS if each.name in outcome}
        came |= {"resolution_epochs": resolution, "reason": reason or outcome["reason"]}
        came["measures"] = outcome.get("measures") or None
        return TrialResult(state=state, **came)
    ended = TrialResult(state=state, reason=reason, resolution_epochs=resolution)
    if last is None:
        return ended
    return dataclasses.replace(
        ended,
        epochs=last.epochs,
        steps=last.step,
        seconds=last.seconds,
        final_metric=last.metric,
    )
