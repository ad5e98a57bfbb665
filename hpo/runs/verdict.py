"""The verdict on a study's launches: compares the forecast's settings with those of rules of thumb.

Runs are compared by the logarithm of their epochs, or of their shortfall after a fixed budget, because settings change
both by factors. If two means are within two standard errors of their difference, there is no verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hpo.runs.formatting import KIND_NAMES, format_answer, format_number, format_percent
from hpo.runs.results import PlannedRun
from trainers.job import HOW_SOON, Question

STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class MeanEpochs:
    """The geometric mean of the epochs to target of one plan's runs, with its relative standard error.

    ``error`` is None for a single run. ``lost`` is how many of the ``runs`` did not reach the target; they are excluded
    from the mean and its error. If the ``question`` has a fixed budget, ``epochs`` holds
    the distance from a perfect metric at its end instead.
    """

    epochs: float
    error: float | None
    runs: int
    lost: int
    question: Question = HOW_SOON

    def told(self) -> str:
        """Return the mean as text, such as ``8.31 ± 0.2 (5 runs)``."""
        spread = "" if self.error is None else f" ± {format_number(self.epochs * self.error)}"
        lost = f", {self.lost} lost" if self.lost else ""
        return f"{self._middle}{spread} ({self.runs} run{'' if self.runs == 1 else 's'}{lost})"

    @property
    def _middle(self) -> str:
        return (
            format_answer(self.question, self.epochs)
            if self.question.fixed
            else format_number(self.epochs)
        )


def mean_epochs_of_runs(run: PlannedRun) -> MeanEpochs | None:
    """Return the mean over a plan's runs; None if none reached the target or the end of a fixed budget."""
    logs = [math.log(need) for need in run.needs if need > 0]
    if not logs:
        return None
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else None
    return MeanEpochs(
        math.exp(statistics.fmean(logs)),
        error,
        len(run.outcomes),
        len(run.outcomes) - len(logs),
        run.question,
    )


def rule_verdicts(forecast: PlannedRun, rules: Sequence[PlannedRun]) -> list[str]:
    """Return one line for each rule of thumb that was launched."""
    ours = mean_epochs_of_runs(forecast)
    lines = []
    for rule in rules:
        theirs, name = mean_epochs_of_runs(rule), KIND_NAMES[rule.plan.kind]
        if not rule.outcomes or not forecast.outcomes:
            continue
        if ours is None or theirs is None:
            told = (
                "both lost every run"
                if ours is theirs
                else f"{name if ours else 'the forecast'} lost every run"
            )
            lines.append(f"against {name}: {told}")
            continue
        if ours.error is None or theirs.error is None:
            lines.append(f"against {name}: {_arrived(ours, theirs, name)}")
            continue
        lost = (
            ""
            if ours.lost == theirs.lost == 0
            else f"; lost: {ours.lost} of {ours.runs} by the forecast, "
            f"{theirs.lost} of {theirs.runs} by {name}"
        )
        lines.append(f"against {name}: {_compared(ours, theirs)}{lost}")
    return lines


def _arrived(ours: MeanEpochs, theirs: MeanEpochs, name: str) -> str:
    """Return the text for a comparison in which at least one side has only a single run that was not lost."""
    if ours.runs == theirs.runs == 1:
        return "no verdict on a single run"
    arrived = [f"{each.runs - each.lost} of {each.runs}" for each in (ours, theirs)]
    return f"{arrived[0]} runs by the forecast succeeded, {arrived[1]} by {name}"


def _compared(ours: MeanEpochs, theirs: MeanEpochs) -> str:
    assert ours.error is not None
    assert theirs.error is not None
    away, error = math.log(theirs.epochs / ours.epochs), math.hypot(ours.error, theirs.error)
    if abs(away) <= STANDARD_ERRORS * error:
        return f"no verdict within 2 standard errors ({_signed(away, ours.question)})"
    errors = f"{abs(away) / error:.1f} standard errors" if error > 0 else "without scatter"
    does = "leaves" if ours.question.fixed else "needs"
    return f"the forecast {does} {_signed(away, ours.question)} ({errors})"


def _signed(away: float, question: Question) -> str:
    share = 1 - math.exp(-away)
    if question.fixed:
        what = (
            f"to a perfect {question.unit}" if question.target.higher_is_better else question.unit
        )
        return f"{format_percent(abs(share))} {'less' if share >= 0 else 'more'} {what}"
    return f"{format_percent(abs(share))} {'fewer' if share >= 0 else 'more'} epochs"
