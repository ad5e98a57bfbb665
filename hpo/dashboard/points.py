"""Trials as points of figures: their groups, hover texts and positions on the batch axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go

from hpo.dashboard.style import KINDS, STATES, lines, log_axis, log_range, marker
from hpo.runs.formatting import KIND_NAMES, format_number, setting_words
from hpo.runs.results import PlannedRun, StudyResult, trial_ended_because
from storage.records import Outcome, Trial, TrialState
from trainers.job import Question

MOST_POINTS = 1500
"""Maximum number of trials that a figure draws as points; a browser still handles this many without delay."""


def trials_by_state(trials: Sequence[Trial]) -> dict[TrialState, list[Trial]]:
    """Return the ended trials by state; states without trials are omitted."""
    groups = {state: [trial for trial in trials if trial.state is state] for state in STATES}
    return {state: group for state, group in groups.items() if group}


def thin_trials(trials: Sequence[Trial], most: int = MOST_POINTS) -> list[Trial]:
    """Return at most about ``most`` trials, the same share of each rung and state, to keep a figure fast.

    The returned trials are spaced evenly from the fewest epochs to the most, including the first and the last. If there
    are no more than ``most`` trials, all are returned in the given order.
    """
    if len(trials) <= most:
        return list(trials)
    groups: dict[tuple[int, TrialState], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.global_batch_size, trial.state), []).append(trial)
    kept = []
    for group in groups.values():
        group.sort(key=lambda trial: epochs_of_trial(trial) or math.inf)
        count = min(len(group), max(2, round(len(group) * most / len(trials))))
        kept += [group[at] for at in np.linspace(0, len(group) - 1, count).round().astype(int)]
    return sorted(kept, key=lambda trial: trial.number)


def epochs_of_trial(trial: Trial) -> float | None:
    """Return the epochs to the target or to the trial's end; None if it ended before its first evaluation."""
    return trial.epochs_to_target or trial.epochs or None


def metric_of_trial(trial: Trial) -> float | None:
    """Return a trial's best value of the target metric, or its last value if the best is unknown."""
    return trial.final_metric if trial.best_metric is None else trial.best_metric


def metric_axis(question: Question, values: Sequence[float]) -> dict[str, Any]:
    """Return the axis of a metric after a fixed budget: logarithmic for a loss, linear for a fraction."""
    if not question.target.higher_is_better and min(values, default=0.0) > 0:
        return log_axis(*log_range(values))
    return {"rangemode": "normal"}


def epochs_ends(result: StudyResult, more: Sequence[float] = ()) -> tuple[float, float]:
    """Return the limits of an epochs axis for the trials of a study and the values ``more``.

    Trials that were stopped long before any reached the target would squeeze all others. Therefore the axis starts at
    a quarter of the fewest epochs to the target, and earlier trials are drawn at its lower end.
    """
    heights = [*more, *(epochs for trial in result.trials if (epochs := epochs_of_trial(trial)))]
    low, high = log_range(heights)
    quickest = min(
        (trial.epochs_to_target for trial in result.trials if trial.epochs_to_target), default=0.0
    )
    return max(low, min([quickest / 4, *more])), high


def trial_height(trial: Trial, low: float) -> float:
    """Return a trial's position on an axis of epochs that starts at ``low``."""
    epochs = epochs_of_trial(trial) or 0.0
    return epochs if epochs >= low else low * 1.05


def trial_text(result: StudyResult, trial: Trial) -> str:
    """Return the hover text of a trial: number, batch, seed, the settings that vary, how it ended and why."""
    epochs = epochs_of_trial(trial)
    if trial.state is TrialState.REACHED:
        end = f"{format_number(epochs)} epochs to the target"
    elif result.spec.question.need(trial) is not None:
        end = f"trained to the end of its {format_number(epochs)} epochs"
    else:
        end = (
            f"{trial.state} after {format_number(epochs)} epochs"
            if epochs
            else f"{trial.state} before its first evaluation"
        )
    best = (
        f"best {result.study.metric} {trial.best_metric:.4g}"
        if trial.best_metric is not None
        else ""
    )
    return lines(
        f"trial {trial.number}: {end}",
        f"global batch size {format_number(trial.global_batch_size)}, seed {trial.seed}",
        *settings_lines(trial.settings, result.spec.varied),
        best,
        trial_ended_because(result, trial),
    )


def settings_lines(settings: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return a line for each of the named settings."""
    return [
        f"{setting_words(name)} {format_number(settings[name])}"
        for name in names
        if name in settings
    ]


def outcome_texts(result: StudyResult, run: PlannedRun) -> list[str]:
    """Return the hover text of each launched run of a plan."""
    settings = settings_lines(run.plan.job.settings.to_dict(), result.spec.search.names)
    return [
        lines(
            f"{KIND_NAMES[run.plan.kind]}, plan {run.plan.id}: {outcome_end(outcome)}",
            f"global batch size {format_number(run.plan.global_batch_size)} on {outcome.workers} workers, seed "
            f"{outcome.seed}, {outcome.backend}",
            *settings,
            outcome.reason,
        )
        for outcome in run.outcomes
    ]


def outcome_end(outcome: Outcome) -> str:
    """Return how a launched run ended: ``28.5 epochs to the target``, or ``diverged after 3 epochs``."""
    if outcome.epochs_to_target:
        return f"{format_number(outcome.epochs_to_target)} epochs to the target"
    return f"{outcome.state} after {format_number(outcome.epochs)} epochs"


def outcome_markers(run: PlannedRun) -> dict[str, Any]:
    """Return the markers of a plan's launched runs: filled if the target was reached, open if not."""
    look = KINDS[run.plan.kind]
    symbols = [
        look.symbol if run.question.need(outcome) is not None else f"{look.symbol}-open"
        for outcome in run.outcomes
    ]
    return marker(
        look, symbol=symbols, line={"width": 1, "color": "white"} if run.needs else {"width": 2}
    )


def step_aside(result: StudyResult) -> float:
    """Return how far points of one batch size may spread without touching the next rung, in log units."""
    batches = sorted({*result.spec.ladder, *(trial.global_batch_size for trial in result.trials)})
    gaps: list[float] = np.diff(np.log(batches)).tolist()
    return 0.36 * min([math.log(2), *gaps])


def spread_trials(result: StudyResult, trials: Sequence[Trial]) -> NDArray[np.float64]:
    """Return the x positions of ``trials``: side by side at each rung, from left to right in the order of the sweep."""
    order: dict[int, list[int]] = {}
    for trial in result.trials:
        order.setdefault(trial.global_batch_size, []).append(trial.number)
    places = {
        (batch, trial): (place + 0.5) / len(numbers) - 0.5
        for batch, numbers in order.items()
        for place, trial in enumerate(sorted(numbers))
    }
    aside = np.array([places[trial.global_batch_size, trial.number] for trial in trials])
    batches = np.array([trial.global_batch_size for trial in trials], dtype=float)
    return np.asarray(batches * np.exp(step_aside(result) * aside))


def add_trial_points(
    figure: go.Figure,
    result: StudyResult,
    trials: Sequence[Trial],
    state: TrialState,
    x: Sequence[Any] | NDArray[np.float64],
    y: Sequence[Any],
    **look: Any,
) -> None:
    """Add points for trials with the same state; ``look`` overrides that state's marker."""
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers",
        name=STATES[state].name,
        legendgroup=str(state),
        marker=marker(STATES[state], **look),
        hoverinfo="text",
        hovertext=[trial_text(result, trial) for trial in trials],
        customdata=[trial.number for trial in trials],
    )
