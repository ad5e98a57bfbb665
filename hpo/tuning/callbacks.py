"""Callbacks for Ray Tune that record its results and decide which trials stop."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.stopper import NoopStopper

from hpo.tuning.lost_machines import wait_for_notice
from hpo.tuning.result_handler import ResultHandler
from hpo.tuning.stopping import CurveStopping, LadderASHA
from hpo.tuning.trainings import StudyTrainings
from storage.records import TrialState

GRACE_SECONDS = 1.5
"""How long the trials of an ending sweep may continue in order to finish their epoch."""


class RayScheduler(FIFOScheduler):  # type: ignore[misc]
    """Applies the stopping rule to each result; trials run in the order that the sweep gives."""

    def __init__(self, sweep: StudyTrainings, rule: LadderASHA | CurveStopping) -> None:
        super().__init__()
        self._sweep, self._rule = sweep, rule

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Record that a trial starts."""
        self._rule.begins(trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Continue or stop the trial; stop everything if the sweep is interrupted."""
        if self._sweep.interrupted:
            tune_controller.request_stop_experiment()
        return str(self.STOP if self._rule.stops(trial, result) else self.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Record that the trial ended without being stopped."""
        self._rule.ended(trial, result)

    def debug_string(self) -> str:
        """Return how many trials were stopped."""
        return f"{len(self._rule.stopped)} trials stopped"


class RayResultCallback(tune.Callback):  # type: ignore[misc]
    """Passes results and trial ends to a :class:`~hpo.tuning.result_handler.ResultHandler`, and tracks the trials'
    actors.
    """

    def __init__(self, sweep: StudyTrainings, rule: LadderASHA | CurveStopping) -> None:
        self._sweep, self._handler = sweep, ResultHandler(sweep, rule)
        self._actors: dict[str, Any] = {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record which actor runs a trial; the actor may have run another trial before."""
        self._actors[trial.trial_id] = getattr(trial.temporary_state, "ray_actor", None)

    def kill_actors(self) -> None:
        """Kill the processes of all trials."""
        import ray

        for actor in [each for each in self._actors.values() if each is not None]:
            with contextlib.suppress(Exception):  # the actor has already exited
                ray.kill(actor)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a convergence point, or the trial's final result."""
        self._handler.result(trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record that the trial ended, by itself or because it was stopped."""
        self._handler.end(trial)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Wait before restarting a trial whose process died, so that it is not restarted on a lost machine."""
        if not self._sweep.interrupted:
            wait_for_notice()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record that the trial's process died more often than it may be restarted; ignore this if the sweep is ending.

        Tune also gives up on a trial that has restarts left if the trial reused the actor of a finished trial and that
        actor was already dead, on a lost machine. Such a trial is started again.
        """
        if self._sweep.interrupted:
            return
        if trial.run_metadata.num_failures <= trial.max_failures and self._sweep.again(
            trial.trial_id
        ):
            wait_for_notice()
            return
        self._sweep.end(
            trial.trial_id, TrialState.FAILED, None, "its process died: out of memory, or killed"
        )


class SweepStopper(tune.Stopper):  # type: ignore[misc]
    """Tells Tune, which polls several times a second, when to end the sweep.

    Tune waits ten seconds or more for actors in the middle of an epoch. The next run resumes their trials anyway, so
    the actors are killed if they are still running ``GRACE_SECONDS`` after the sweep should have ended.
    """

    def __init__(self, sweep: StudyTrainings, handler: RayResultCallback) -> None:
        self._sweep, self._handler = sweep, handler
        self._killing: threading.Timer | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> SweepStopper:
        """Return this object itself: Tune copies its arguments, but there is only one sweep."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a placeholder: Tune's saved state is not used, because the state is in the database."""
        return NoopStopper, ()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return False: individual trials are not stopped here."""
        return False

    def stop_all(self) -> bool:
        """Return whether the sweep must end now."""
        interrupted = self._sweep.interrupted
        if interrupted and self._killing is None:
            self._killing = threading.Timer(GRACE_SECONDS, self._handler.kill_actors)
            self._killing.daemon = True
            self._killing.start()
        return interrupted

    def close(self) -> None:
        """Cancel the pending kill."""
        if self._killing is not None:
            self._killing.cancel()
            self._killing.join()
