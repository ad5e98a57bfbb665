"""What Ray Tune reports, handed to the sweep that records it."""

from __future__ import annotations

from typing import Any

from ray import tune

from hpo.tuning.stopping import CurveStopping, LadderASHA
from hpo.tuning.sweep import Sweep
from storage.records import TrialState


class Recording(tune.Callback):  # type: ignore[misc]
    """Records every result, and every end with its true reason."""

    def __init__(self, sweep: Sweep, scheduler: LadderASHA | CurveStopping) -> None:
        self._sweep, self._scheduler = sweep, scheduler

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any],
                        **info: Any) -> None:
        """A convergence point, or the trial's own last word."""
        self._sweep.result(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial ended by itself, or the scheduler stopped it."""
        last = trial.last_result
        if self._sweep.interrupted and last.get("state") == "running":
            return      # it has not ended: it waits for the next run
        if trial.trial_id in self._scheduler.stopped:
            reason = self._scheduler.reason(trial.trial_id, last["epochs"])
            self._sweep.end(trial.trial_id, TrialState.PRUNED, None, reason)
        else:
            self._sweep.end(trial.trial_id, TrialState(last["state"]), last.get("outcome"), last.get("reason", ""))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial's process died more often than it is started again."""
        self._sweep.end(trial.trial_id, TrialState.FAILED, None, "its process died: out of memory, or killed")
