"""What ends a training early: successive halving, or a learning curve that will not reach the target in time.

Asynchronous successive halving (ASHA, arXiv:1810.05934) has one bracket for each rung of the ladder: learning curves at
different batch sizes are not comparable, so a training is measured only against others at its own global batch size.
Repetitions are never stopped: they are there to measure scatter, and scatter measured on survivors is too small.
Whether a trial may be stopped stands in its ``config["stoppable"]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler

from hpo.tuning.acquisition.curves import hopeless

REDUCTION_FACTOR = 2
"""Half of the trainings go on past each milestone; halving keeps enough of a rung's response to fit a law to."""

MILESTONES = 2
"""Milestones lie at a quarter and at half of the budget of epochs."""


FAR_BEHIND = 1.4
"""Times the fewest epochs of any training of a race so far: one that needs more is dropped."""


@dataclass(frozen=True)
class _Stub:
    trial_id: str


class LadderASHA(FIFOScheduler):  # type: ignore[misc]
    """A Ray Tune scheduler that hands each trial to the ASHA bracket of its global batch size.

    ``stopped`` collects the ids of the trials that it ended, so that they are recorded as pruned.
    """

    def __init__(
        self,
        ladder: Sequence[int],
        epochs: float,
        *,
        higher_is_better: bool,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._interrupted = interrupted
        self.stopped: set[str] = set()
        self._milestones = [epochs / REDUCTION_FACTOR**power for power in range(MILESTONES, 0, -1)]
        self._brackets = {
            batch: AsyncHyperBandScheduler(
                time_attr="epochs",
                metric="metric",
                mode="max" if higher_is_better else "min",
                max_t=epochs,
                grace_period=self._milestones[0],
                reduction_factor=REDUCTION_FACTOR,
                stop_last_trials=False,
            )
            for batch in ladder
        }

    def replay(
        self, trial_id: str, global_batch_size: int, results: Sequence[Mapping[str, Any]]
    ) -> None:
        """Tell a bracket of a trial that an earlier run of this study has finished."""
        bracket, stub = self._brackets[global_batch_size], _Stub(trial_id)
        bracket.on_trial_add(None, stub)
        for result in results:
            bracket.on_trial_result(None, stub, result)
        self._complete(bracket, stub, results[-1] if results else {})

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Enter the trial into its rung's bracket."""
        if _is_stoppable(trial):
            self._bracket(trial).on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Go on, or stop at a milestone where half of the rung did better; stop everything where interrupted."""
        if self._interrupted():
            tune_controller.request_stop_experiment()
        if not _is_stoppable(trial):
            return str(FIFOScheduler.CONTINUE)
        decision = str(self._bracket(trial).on_trial_result(tune_controller, trial, result))
        if decision == FIFOScheduler.STOP:
            self.stopped.add(trial.trial_id)
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Count the last result of a trial that ended."""
        if _is_stoppable(trial) and trial.trial_id not in self.stopped:
            self._complete(self._bracket(trial), trial, result)

    def reason(self, trial_id: str, epochs: float) -> str:
        """Why a trial was stopped."""
        return f"half of the trainings at this batch size did better by epoch {epochs:.2f}"

    def debug_string(self) -> str:
        """How many trials were stopped."""
        return f"ASHA over {len(self._brackets)} batch sizes: {len(self.stopped)} trials stopped"

    def _complete(
        self, bracket: AsyncHyperBandScheduler, trial: Any, result: Mapping[str, Any]
    ) -> None:
        """A training that reached the target early stands, with that metric, at every later milestone too."""
        if result.get("state") == "reached":
            for milestone in self._milestones:
                if milestone > result["epochs"]:
                    bracket.on_trial_result(None, trial, {**result, "epochs": milestone})
        bracket.on_trial_remove(None, trial)

    def _bracket(self, trial: Any) -> AsyncHyperBandScheduler:
        return self._brackets[trial.config["job"]["global_batch_size"]]


class CurveStopping(FIFOScheduler):  # type: ignore[misc]
    """Stops a trial at its limit of epochs, or as soon as its learning curve says that it will not make it.

    The limit is ``config["limit_epochs"]``, beyond which a trial tells the forecast little more, or what ``most`` says
    now where that is lower. Curves are not judged where ``config["by_curve"]`` is false. Every trial, stoppable or not,
    ends with the last evaluation within ``config["most_epochs"]``: they are all that it may train. ``stopped`` collects
    the ids of the trials that were ended here.
    """

    def __init__(
        self,
        threshold: float,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        most: Callable[[], float] = lambda: math.inf,
    ) -> None:
        super().__init__()
        self._threshold, self._interrupted, self._most = threshold, interrupted, most
        self._curves: dict[str, list[tuple[float, float]]] = {}
        self._reasons: dict[str, str] = {}

    @property
    def stopped(self) -> set[str]:
        """The trials that were ended here."""
        return set(self._reasons)

    def replay(
        self, trial_id: str, global_batch_size: int, results: Sequence[Mapping[str, Any]]
    ) -> None:
        """Nothing: a curve is measured by itself alone."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """A trial begins, or begins again: its curve does."""
        self._curves.pop(trial.trial_id, None)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Go on, or stop a hopeless trial; stop everything where interrupted."""
        if self._interrupted():
            tune_controller.request_stop_experiment()
        if result.get("state") != "running":
            return str(FIFOScheduler.CONTINUE)
        curve = self._curves.setdefault(trial.trial_id, [])
        curve += [(point["epochs"], point["metric"]) for point in result["points"]]
        epochs, metrics = [each for each, _ in curve], [each for _, each in curve]
        most, limit = trial.config.get("most_epochs", math.inf), self._limit(trial)
        if epochs[-1] + (epochs[-1] - epochs[-2] if len(epochs) > 1 else 0.0) > most:
            self._reasons[trial.trial_id] = (
                f"the budget left it {most:.2f} epochs, of which it has trained {epochs[-1]:.2f}"
            )
            return str(FIFOScheduler.STOP)
        if not _is_stoppable(trial) or limit is None:
            return str(FIFOScheduler.CONTINUE)
        judged = trial.config.get("by_curve", True)
        if epochs[-1] >= limit or (judged and hopeless(epochs, metrics, self._threshold, limit)):
            self._reasons[trial.trial_id] = (
                f"by its curve up to epoch {epochs[-1]:.2f} it needs more than {limit:.2f} epochs, more than a trial "
                "at this batch size is worth"
            )
            return str(FIFOScheduler.STOP)
        return str(FIFOScheduler.CONTINUE)

    def _limit(self, trial: Any) -> float | None:
        limit = trial.config.get("limit_epochs")
        return None if limit is None else min(limit, self._most())

    def reason(self, trial_id: str, epochs: float) -> str:
        """Why a trial was stopped."""
        return self._reasons[trial_id]

    def debug_string(self) -> str:
        """How many trials were stopped."""
        return f"learning curves: {len(self._reasons)} trials stopped"


def _is_stoppable(trial: Any) -> bool:
    return bool(trial.config["stoppable"])
