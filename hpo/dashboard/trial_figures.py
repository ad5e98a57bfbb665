"""Figures of single trials: how each converged, and what each setting did to the epochs."""

from __future__ import annotations

import numpy as np
from plotly import graph_objects as go

from hpo.dashboard import style
from hpo.dashboard.batch_figures import check_tuned, setting_axis, value_of
from hpo.dashboard.points import by_state, epochs_ends, height, trial_text
from hpo.errors import EvidenceError
from hpo.results import StudyResult
from hpo.words import number, readable, target, with_unit
from storage.records import Convergence, TrialState

FAINT, FULL = 0.28, 0.9


def learning_curves(result: StudyResult, convergence: Convergence, global_batch_size: int | None = None) -> go.Figure:
    """The target's metric against epochs, one line for each trial, one colour for each rung.

    Lines of trials that were stopped early or diverged are faint; ``global_batch_size`` shows one rung only.
    Raises :class:`EvidenceError` for a batch size that no trial has.
    """
    batches = sorted({trial.global_batch_size for trial in result.trials})
    if global_batch_size is not None and global_batch_size not in batches:
        raise EvidenceError("global_batch_size must be one that was swept "
                            f"({', '.join(map(str, batches)) or 'none yet'}), but got {global_batch_size}")
    where = "" if global_batch_size is None else f" at global batch size {number(global_batch_size)}"
    figure = style.figure(f"{result.study.name}: learning curves{where}")
    colours, shown = style.rung_colours(batches), set[int]()
    # the faint ones first, so that the others lie on top
    for trial in sorted(result.trials, key=lambda trial: trial.state is TrialState.REACHED):
        points, batch = convergence.of(trial.id), trial.global_batch_size
        if len(points) == 0 or global_batch_size not in (None, batch):
            continue
        bright = trial.state in (TrialState.REACHED, TrialState.CENSORED, TrialState.RUNNING)
        figure.add_scatter(x=points.epochs.astype(np.float32), y=points.metric.astype(np.float32), mode="lines",
                           name=number(batch), legendgroup=str(batch), showlegend=False,
                           line={"color": colours[batch], "width": 1.6 if bright else 1},
                           opacity=FULL if bright else FAINT, hoverinfo="text", hovertext=trial_text(result, trial),
                           meta=trial.number)
        shown.add(batch)
    for batch in sorted(shown):     # the legend's lines are not faint, whichever trial comes first
        figure.add_scatter(x=[None], y=[None], mode="lines", name=number(batch), legendgroup=str(batch),
                           line={"color": colours[batch], "width": 3}, hoverinfo="skip")
    words = target(result.study.metric, result.study.threshold, result.study.higher_is_better)
    figure.add_hline(y=result.study.threshold, line={"color": style.INK, "width": 1.5, "dash": "dot"},
                     annotation={"text": style.plain(f"target {words}"), "font": {"size": 12, "color": style.INK}},
                     annotation_position="bottom left" if result.study.higher_is_better else "top left")
    figure.update_xaxes(title_text="epochs", rangemode="tozero")
    figure.update_yaxes(title_text=style.plain(result.study.metric))
    figure.update_layout(legend_title_text="global batch size", showlegend=bool(shown))
    if not shown:
        style.note(figure, "no training has been evaluated yet")
    return figure


def response(result: StudyResult, name: str) -> go.Figure:
    """Epochs against the values of a tuned setting, one colour for each rung, every trial by its state.

    What is best moves from rung to rung: that is what the laws extrapolate. Raises :class:`EvidenceError` for a
    setting that the study does not tune.
    """
    check_tuned(result, name)
    figure = style.figure(f"{result.study.name}: epochs against {readable(name)}")
    batches = sorted({trial.global_batch_size for trial in result.trials})
    colours = style.rung_colours(batches)
    ends = epochs_ends(result)
    for batch in batches:
        trials = [trial for trial in result.trials if trial.global_batch_size == batch and trial.state in style.STATES]
        looks = [style.STATES[trial.state] for trial in trials]
        reached = [trial.state is TrialState.REACHED for trial in trials]
        figure.add_scatter(
            x=[value_of(trial.settings[name]) for trial in trials],
            y=[height(trial, ends[0]) for trial in trials], mode="markers", name=number(batch), legendgroup=str(batch),
            showlegend=False, hoverinfo="text", hovertext=[trial_text(result, trial) for trial in trials],
            customdata=[trial.number for trial in trials],
            marker={"symbol": [look.symbol for look in looks], "size": [look.size + 1 for look in looks],
                    "color": colours[batch], "opacity": [FULL if each else 0.45 for each in reached]})
        figure.add_scatter(x=[None], y=[None], mode="markers", name=number(batch), legendgroup=str(batch),
                           marker={"color": colours[batch], "size": 10}, hoverinfo="skip")
    for state in by_state(result.trials):
        look = style.STATES[state]
        figure.add_scatter(x=[None], y=[None], mode="markers", name=look.name, hoverinfo="skip",
                           marker={"symbol": look.symbol, "color": style.MUTED, "size": 9})
    axis = setting_axis(result, name, [trial.settings[name] for trial in result.trials])
    figure.update_xaxes(title_text=with_unit(name), **axis)
    figure.update_yaxes(title_text="epochs to target, or until stopped", **style.log_axis(*ends))
    figure.update_layout(legend_title_text="global batch size", showlegend=True)
    if not batches:
        style.note(figure, "no training has started yet")
    return figure
