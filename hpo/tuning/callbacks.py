"""Callbacks of Ray Tune: they record what it reports, and tell it which trials stop."""

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
from hpo.tuning.trainings import Trainings
from storage.records import TrialState

GRACE_SECONDS = 1.5
"""How long trials of a sweep that is to end may go on to the end of their epoch."""


class RayScheduler(FIFOScheduler):  # type: ignore[misc]
    """Asks the rule that stops trials at each of their results; the trials themselves go in the order of the sweep."""

    def __init__(self, sweep: Trainings, rule: LadderASHA | CurveStopping) -> None:
        super().__init__()
        self._sweep, self._rule = sweep, rule

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """A trial begins."""
        self._rule.begins(trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Go on, or stop; stop everything where the sweep is interrupted."""
        if self._sweep.interrupted:
            tune_controller.request_stop_experiment()
        return str(self.STOP if self._rule.stops(trial, result) else self.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """The trial ended by itself."""
        self._rule.ended(trial, result)

    def debug_string(self) -> str:
        """How many trials were stopped."""
        return f"{len(self._rule.stopped)} trials stopped"


class RayResultCallback(tune.Callback):  # type: ignore[misc]
    """Passes results and ends to a :class:`~hpo.tuning.result_handler.ResultHandler`, and knows the trials' actors."""

    def __init__(self, sweep: Trainings, rule: LadderASHA | CurveStopping) -> None:
        self._sweep, self._handler = sweep, ResultHandler(sweep, rule)
        self._actors: dict[str, Any] = {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial runs in an actor, which may have run another before."""
        self._actors[trial.trial_id] = getattr(trial.temporary_state, "ray_actor", None)

    def kill_actors(self) -> None:
        """End the processes of all trials."""
        import ray

        for actor in [each for each in self._actors.values() if each is not None]:
            with contextlib.suppress(Exception):  # it has ended already
                ray.kill(actor)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A convergence point, or the trial's own last word."""
        self._handler.result(trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial ended by itself, or was stopped."""
        self._handler.end(trial)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial's process died and will be started again: not on a machine that is gone."""
        if not self._sweep.interrupted:
            wait_for_notice()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial's process died more often than it may be restarted, or was killed because the sweep ends.

        Tune also gives up, restarts left or not, a trial for which it took the process of an ended one that was dead
        itself, on a machine that is gone. Such a trial begins anew.
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


class Stopping(tune.Stopper):  # type: ignore[misc]
    """Tells Tune, which asks several times a second, when the sweep is to end.

    Tune waits ten seconds and more for actors in the middle of an epoch. Their trials wait for another run anyway, so
    that they are killed where they have not ended ``GRACE_SECONDS`` after the sweep was to end.
    """

    def __init__(self, sweep: Trainings, handler: RayResultCallback) -> None:
        self._sweep, self._handler = sweep, handler
        self._killing: threading.Timer | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Stopping:
        """Tune copies what it is given; there is only one sweep."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Tune's own saved state is not used: the database is the state."""
        return NoopStopper, ()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No single trial is stopped here."""
        return False

    def stop_all(self) -> bool:
        """Whether the sweep is to end now."""
        interrupted = self._sweep.interrupted
        if interrupted and self._killing is None:
            self._killing = threading.Timer(GRACE_SECONDS, self._handler.kill_actors)
            self._killing.daemon = True
            self._killing.start()
        return interrupted

    def close(self) -> None:
        """Kill nobody any more."""
        if self._killing is not None:
            self._killing.cancel()
            self._killing.join()
