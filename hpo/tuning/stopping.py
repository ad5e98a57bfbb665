"""Early stopping of trials by successive halving, or by a learning curve that will not reach the target in time.

Asynchronous successive halving (ASHA, arXiv:1810.05934) has one bracket for each rung of the ladder. Learning curves at
different batch sizes are not comparable, so a trial is compared only with others at its own global batch size. The
milestones lie where a comparison is most informative: at the fewest epochs in which a trial on the rung has reached the
target so far, and at twice as many, so that no trial is stopped before it is slower than the fastest. If those epochs
are a small part of the budget, the milestones are later: a trial with too high a learning rate takes a while to show
that it never reaches the target, and the forecast needs this information. Repetitions are never stopped, because they
measure scatter, and scatter measured only on survivors would be too small. ``config["stoppable"]`` says whether a trial
may be stopped. The rules do not depend on Ray, which takes two seconds to import, because sweeps of simulations and of
fused trials run without it (:mod:`hpo.tuning.callbacks` passes the rules to Tune).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hpo.tuning.generation.curves import is_hopeless

MILESTONES = (1.0, 2.0)
"""The milestones, as multiples of the fewest epochs on the rung. Half of the trials continue past each milestone, which
leaves enough data on a rung to fit a law.
"""

EARLIEST, UNKNOWN = (1 / 16, 1 / 8), (1 / 4, 1 / 2)
"""The earliest milestones as shares of the budget of epochs, and the milestones while no trial on the rung has reached
the target.
"""


FAR_BEHIND = 1.4
"""A race drops a trial that needs more than this many times the fewest epochs of any of its trials so far."""


@dataclass
class RunningTrial:
    """The attributes of a trial that the rules and the trial record use; Ray Tune's trial class has the same names."""

    trial_id: str
    config: dict[str, Any]
    last_result: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Curve:
    """The history of a trial: its scores by epochs (higher is better), and at how many milestones it has
    been judged.
    """

    points: list[tuple[float, float]] = field(default_factory=list)
    reached: bool = False
    judged: int = 0

    @property
    def epochs(self) -> float:
        return self.points[-1][0] if self.points else 0.0

    def at(self, milestone: float) -> float | None:
        """Return the score at a milestone: inf if the trial had reached the target, None if it has not trained that
        far.
        """
        if self.reached and self.epochs <= milestone:
            return math.inf
        before = [score for epochs, score in self.points if epochs <= milestone]
        return before[-1] if before and self.epochs >= milestone else None


class LadderASHA:
    """An ASHA bracket for each global batch size.

    ``stopped`` collects the ids of trials stopped by this rule, so that they are recorded as pruned.
    """

    def __init__(
        self,
        epochs: float,
        *,
        higher_is_better: bool,
    ) -> None:
        self._epochs = epochs
        self._sign = 1.0 if higher_is_better else -1.0
        self.stopped: set[str] = set()
        self._rungs: defaultdict[str, dict[str, _Curve]] = defaultdict(dict)

    def replay(self, trial_id: str, rung: str, results: Sequence[Mapping[str, Any]]) -> None:
        """Register a trial of a ``rung`` (:func:`hpo.study.sizes.rung_in_words`) that has ended in an earlier run."""
        for result in results:
            self._add(self._rungs[rung], trial_id, result)

    def begins(self, trial: RunningTrial) -> None:
        """Do nothing: a trial is registered with its first result."""

    def stops(self, trial: RunningTrial, result: Mapping[str, Any]) -> bool:
        """Return whether the trial stops here: at a milestone where half of the rung's trials did better."""
        if not _is_stoppable(trial):
            return False
        rung = self._rungs[_rung(trial)]
        epochs = trial.config["job"].get("epochs", self._epochs)
        curve = self._add(rung, trial.trial_id, result)
        if curve.reached or curve.epochs >= epochs:
            return False
        for milestone in self._milestones(rung, epochs)[curve.judged :]:
            if curve.epochs < milestone:
                break
            curve.judged += 1
            mine = curve.at(milestone)
            others = [
                score
                for other in rung.values()
                if other is not curve and (score := other.at(milestone)) is not None
            ]
            if mine is not None and others and mine < median(others):
                self.stopped.add(trial.trial_id)
                return True
        return False

    def ended(self, trial: RunningTrial, result: Mapping[str, Any]) -> None:
        """Record the last evaluation of a trial that ended; a failed trial may have none."""
        if (
            _is_stoppable(trial)
            and trial.trial_id not in self.stopped
            and result.get("metric") is not None
        ):
            rung = self._rungs[_rung(trial)]
            self._add(rung, trial.trial_id, result)

    def reason(self, trial_id: str, epochs: float) -> str:
        """Return why a trial was stopped."""
        return f"half of the trials at this batch size were better at epoch {epochs:.2f}"

    def _add(self, rung: dict[str, _Curve], trial_id: str, result: Mapping[str, Any]) -> _Curve:
        curve = rung.setdefault(trial_id, _Curve())
        score = self._sign * float(result["metric"])
        point = (float(result["epochs"]), -math.inf if math.isnan(score) else score)
        if not curve.points or point[0] > curve.epochs:
            curve.points.append(point)
        curve.reached = curve.reached or result.get("state") == "reached"
        return curve

    def _milestones(self, rung: Mapping[str, _Curve], budget: float) -> tuple[float, ...]:
        """Return the milestones in epochs; shares of the budget if no trial has reached the target."""
        fewest = min((curve.epochs for curve in rung.values() if curve.reached), default=None)
        if fewest is None:
            return tuple(share * budget for share in UNKNOWN)
        return tuple(
            max(times * fewest, share * budget)
            for times, share in zip(MILESTONES, EARLIEST, strict=True)
        )


class CurveStopping:
    """Stops a trial at its limit of epochs, or as soon as its learning curve predicts that it will exceed that limit.

    The limit is ``config["limit_epochs"]``, beyond which a trial adds little to the forecast, or the current ``most``
    if that is lower; ``config["limit_reason"]`` may give the reason. Curves are not judged if ``config["by_curve"]`` is
    false. Every trial, stoppable or not, ends with the last evaluation within ``config["most_epochs"]``, its hard
    limit. ``stopped`` collects the ids of the trials stopped by this rule.
    """

    def __init__(
        self,
        threshold: float,
        *,
        most: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._threshold, self._most = threshold, most
        self._curves: dict[str, list[tuple[float, float]]] = {}
        self._reasons: dict[str, str] = {}

    @property
    def stopped(self) -> set[str]:
        """The ids of the trials stopped by this rule."""
        return set(self._reasons)

    def replay(self, trial_id: str, rung: str, results: Sequence[Mapping[str, Any]]) -> None:
        """Do nothing, because each curve is judged on its own."""

    def begins(self, trial: RunningTrial) -> None:
        """Start a new curve for a trial that starts or restarts."""
        self._curves.pop(trial.trial_id, None)

    def stops(self, trial: RunningTrial, result: Mapping[str, Any]) -> bool:
        """Return whether the trial stops here: at its limit, or because its curve is hopeless."""
        if result.get("state") != "running":
            return False
        curve = self._curves.setdefault(trial.trial_id, [])
        curve += [(point["epochs"], point["metric"]) for point in result["points"]]
        epochs, metrics = [each for each, _ in curve], [each for _, each in curve]
        most, limit = trial.config.get("most_epochs", math.inf), self._limit(trial)
        if epochs[-1] + (epochs[-1] - epochs[-2] if len(epochs) > 1 else 0.0) > most:
            self._reasons[trial.trial_id] = (
                f"the remaining budget allowed {most:.2f} epochs, of which the trial has trained {epochs[-1]:.2f}"
            )
            return True
        if not _is_stoppable(trial) or limit is None:
            return False
        judged = trial.config.get("by_curve", True)
        if epochs[-1] >= limit or (judged and is_hopeless(epochs, metrics, self._threshold, limit)):
            self._reasons[trial.trial_id] = trial.config.get("limit_reason") or (
                f"its curve up to epoch {epochs[-1]:.2f} predicts over {limit:.2f} epochs, more than a trial "
                "at this batch size is worth"
            )
            return True
        return False

    def ended(self, trial: RunningTrial, result: Mapping[str, Any]) -> None:
        """Do nothing: see :meth:`replay`."""

    def _limit(self, trial: RunningTrial) -> float | None:
        limit = trial.config.get("limit_epochs")
        return None if limit is None else min(limit, self._most())

    def reason(self, trial_id: str, epochs: float) -> str:
        """Return why a trial was stopped."""
        return self._reasons[trial_id]


def _rung(trial: RunningTrial) -> str:
    return str(trial.config.get("rung", trial.config["job"]["global_batch_size"]))


def _is_stoppable(trial: RunningTrial) -> bool:
    return bool(trial.config["stoppable"])
