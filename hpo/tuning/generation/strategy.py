"""What a sweep does next, as a pure function of its trials so far, so that a resumed sweep continues where it stopped.

Every rung of the ladder gets its share of the trials. Most trials on a rung explore; the others repeat the rung's best
settings with other seeds, to distinguish good settings from lucky trials. Rungs are processed from small to large, so
that each starts from the results of the rung below. Every trial has its own seed, so that no initialization and no
sample order counts more than once; repetitions are recognized by their settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpo.study.budgets import RungBudget
from hpo.study.sizes import Point
from storage.records import Trial
from trainers.job import HOW_SOON, Question


@dataclass(frozen=True)
class ExploreSettings:
    """Train settings picked by the sampler, at this batch size and these sizes of model and training length."""

    global_batch_size: int
    sizes: Point = ()


@dataclass(frozen=True)
class RepeatTraining:
    """Train these settings once more."""

    global_batch_size: int
    settings: Mapping[str, Any]
    sizes: Point = ()


@dataclass(frozen=True)
class WaitForTrainings:
    """Start nothing until a running trial has ended."""


@dataclass(frozen=True)
class SweepDone:
    """Start nothing more, because every trial of the budget has been started."""


@dataclass(frozen=True)
class ChooseBatch:
    """Train at a batch size and with settings that the sampler picks."""


Task = ExploreSettings | ChooseBatch | RepeatTraining | WaitForTrainings | SweepDone


def unused_trial_seed(trials: Sequence[Trial]) -> int:
    """Return a seed that none of the trials has."""
    return max((trial.seed for trial in trials), default=-1) + 1


def explorations(trials: Sequence[Trial]) -> list[Trial]:
    """Return the first trial of each configuration at each batch size; all others are repetitions."""
    first: dict[tuple[int, str], Trial] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        first.setdefault(_key(trial), trial)
    return list(first.values())


def next_task(
    budgets: Mapping[int, RungBudget], trials: Sequence[Trial], question: Question = HOW_SOON
) -> Task:
    """Return the next trial of a sweep, given its ``trials`` in every state, on the smallest unfinished rung first.

    ``question`` defines the best settings: those that need the fewest epochs, or get furthest within a budget.
    """
    waiting = False
    for batch in sorted(budgets):
        task = _next_in_rung(
            batch,
            budgets[batch],
            [t for t in trials if t.global_batch_size == batch],
            question,
        )
        if isinstance(task, (ExploreSettings, RepeatTraining)):
            return task
        waiting = waiting or isinstance(task, WaitForTrainings)
    return WaitForTrainings() if waiting else SweepDone()


def next_of_all(
    budgets: Mapping[Point, Mapping[int, RungBudget]],
    trials: Mapping[Point, Sequence[Trial]],
    question: Question = HOW_SOON,
) -> Task:
    """Return the next trial of a sweep over several sizes, the cheapest unfinished size first.

    ``trials`` holds the trials of each combination of sizes.
    """
    waiting = False
    for sizes, of_batches in budgets.items():
        task = next_task(of_batches, trials.get(sizes, ()), question)
        if isinstance(task, (ExploreSettings, RepeatTraining)):
            return replace(task, sizes=sizes)
        waiting = waiting or isinstance(task, WaitForTrainings)
    return WaitForTrainings() if waiting else SweepDone()


def _next_in_rung(
    batch: int, budget: RungBudget, trials: Sequence[Trial], question: Question
) -> Task:
    if len(trials) >= budget.trainings:
        return SweepDone()
    explored = explorations(trials)
    if len(explored) < budget.explorations:
        return ExploreSettings(batch)
    if not all(trial.state.finished for trial in explored):
        return WaitForTrainings()
    answered = [(need, t.number, t) for t in explored if (need := question.need(t)) is not None]
    trained = Counter(_key(trial) for trial in trials)
    for seeds in range(1, budget.seeds):
        for _, _, best in sorted(answered)[: budget.repeated_settings]:
            if trained[_key(best)] <= seeds:
                return RepeatTraining(batch, best.settings)
    # Too few settings reached the target (or the end of the budget) to be repeated: look for better settings instead.
    return ExploreSettings(batch)


def _key(trial: Trial) -> tuple[int, str]:
    return trial.global_batch_size, trial.settings_key
