"""Trials that missed the target: how many, why, and what can be done about it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence

from storage.records import Trial, TrialState
from trainers.job import HOW_SOON, Question

_PRUNED = TrialState.PRUNED
LOST = (TrialState.FAILED, TrialState.DIVERGED)
_LONGEST = 300  # maximum number of characters of a reason


def lost_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that failed or diverged."""
    return [trial for trial in trials if trial.state in LOST]


def outcome_words(question: Question, trials: Sequence[Trial] = ()) -> str:
    """Return the words for the outcome of a trial that answered the question; ``trials`` are those that did not."""
    if metric_range_advice(trials, question):
        return f"trained to the end of its budget with {question.target.metric} {question.metric_range}"
    return "trained to the end of its budget" if question.fixed else "reached the target"


def metric_range_advice(trials: Sequence[Trial], question: Question) -> str:
    """Return advice with an example if trials trained to the end but their best metric has no shortfall; else ""."""
    if not question.fixed:
        return ""
    ended = (trial for trial in trials if trial.state is TrialState.CENSORED)
    fault = next(filter(None, (question.metric_fault(trial.best_metric) for trial in ended)), "")
    return f"{fault}; then run the study under another name" if fault else ""


def constraints_words(trials: Sequence[Trial], question: Question) -> str:
    """Return `` within the constraints (...)``, with an example of a violation; "" if the question has none."""
    if not question.constraints:
        return ""
    free = dataclasses.replace(question, constraints=())
    broken = [question.broken(trial) for trial in trials if free.need(trial) is not None]
    example = next(filter(None, broken), "")
    said = f"; {len(broken)} did so but violated them, such as: {example}" if example else ""
    return f" within the constraints ({'; '.join(map(str, question.constraints))}{said})"


def lost_trials_advice(question: Question, trials: Sequence[Trial]) -> str:
    """Return advice for a study none of whose ``trials`` answered the question."""
    if advice := metric_range_advice(trials, question):
        return advice
    if question.constraints:
        return "loosen the constraints, or widen the ranges under search and raise budget.epochs_per_trial"
    if question.fixed:
        return "widen the ranges under search, down to lower learning rates"
    return "raise budget.epochs_per_trial or widen the ranges under search"


def is_lost_study(trials: Sequence[Trial], question: Question = HOW_SOON) -> bool:
    """Return whether failures and divergence are the reason why no trial answered the question: they ended at least
    half of the trials.

    Pruned trials do not count, as it is unknown how they would have ended. Trials that have not ended, such as when a
    budget is used up, count as not lost.
    """
    told = [trial for trial in trials if trial.state is not _PRUNED]
    return (
        all(question.need(trial) is None for trial in trials)
        and 2 * len(lost_trials(told)) >= len(told) > 0
    )


def losses_in_words(trials: Sequence[Trial]) -> str:
    """Return the counts and the most common reasons: ``3 of 5 trials failed or diverged: 2 failed, most often: ...``.

    The text is "" if no trial failed or diverged.
    """
    counts = Counter(trial.state for trial in lost_trials(trials))
    if not counts:
        return ""
    words = {state: f"{count} {state}" for state, count in counts.items()}
    if len(counts) == 1:
        (state,) = counts
        return f"{_of(counts[state], trials)} {state}{_why(trials, state)}"
    each = ", ".join(f"{words[state]}{_why(trials, state)}" for state in LOST)
    return f"{_of(counts.total(), trials)} failed or diverged: {each}"


def trial_ends_in_words(trials: Sequence[Trial]) -> str:
    """Describe how trials ended, for a study in which no trial reached the target."""
    ends = [
        f"{_of(count, trials)} {words}"
        for state, words in (
            (TrialState.CENSORED, "used up their epochs"),
            (_PRUNED, "were stopped early"),
        )
        if (count := sum(trial.state is state for trial in trials))
    ]
    return "; ".join(filter(None, ("; ".join(ends), losses_in_words(trials))))


def loss_cause(reason: str) -> str:
    """Return the reason why a trial ended in one line: what happened, and the last line of a program's output."""
    first, *more = [line.strip() for line in reason.splitlines() if line.strip()] or ["no reason"]
    text = f"{first.partition('; the end of ')[0]}: {more[-1]}" if more else first
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def group_by_cause(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Group trials by the reason why they ended, in order of first occurrence, ignoring numbers in the reasons."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(re.sub(r"\d[\w.+-]*", "#", loss_cause(trial.reason)), []).append(trial)
    return list(groups.values())


def _why(trials: Sequence[Trial], state: TrialState) -> str:
    """Return the most common reason of the trials in this state; reasons that differ only in numbers count as the
    same.
    """
    ended = [trial for trial in trials if trial.state is state]
    commonest = max(group_by_cause(ended), key=len)
    count = len(commonest)
    often = ", most often" if count > 1 else f", {count} of them" if len(ended) > 1 else ""
    return f"{often}: {loss_cause(commonest[0].reason)}"


def _of(count: int, trials: Sequence[Trial]) -> str:
    every = len(trials)
    return f"all {every} trials" if count == every > 1 else f"{count} of {every} trials"
