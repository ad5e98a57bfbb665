"""Passes the results of a trial to its sweep, and records why the trial ended."""

from __future__ import annotations

from typing import Any

from hpo.tuning.stopping import CurveStopping, LadderASHA, RunningTrial
from hpo.tuning.trainings import StudyTrainings
from storage.records import TrialState


class ResultHandler:
    """Handles each result and each end of a sweep's trials, whichever process trains them."""

    def __init__(self, sweep: StudyTrainings, rule: LadderASHA | CurveStopping) -> None:
        self._sweep, self._rule = sweep, rule

    def result(self, trial: RunningTrial, result: dict[str, Any]) -> None:
        """Record a convergence point, or the trial's final result."""
        self._sweep.result(trial.trial_id, result)

    def end(self, trial: RunningTrial) -> None:
        """Record that the trial ended by itself or was stopped by the rule."""
        last = trial.last_result
        if self._sweep.interrupted and last.get("state", "running") == "running":
            return  # the trial has not ended: the next run resumes it
        if trial.trial_id in self._rule.stopped:
            reason = self._rule.reason(trial.trial_id, last["epochs"])
            self._sweep.end(trial.trial_id, TrialState.PRUNED, None, reason)
        else:
            self._sweep.end(
                trial.trial_id,
                TrialState(last["state"]),
                last.get("outcome"),
                last.get("reason", ""),
            )
