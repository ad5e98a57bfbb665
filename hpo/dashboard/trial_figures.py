"""Figures of single trials: how each converged, and how each setting affected the epochs."""

from __future__ import annotations

from typing import Any

import numpy as np
from plotly import graph_objects as go

from hpo.dashboard import style
from hpo.dashboard.batch_figures import check_setting_tuned, plotted_setting_value, setting_axis
from hpo.dashboard.points import (
    epochs_ends,
    metric_axis,
    metric_of_trial,
    thin_trials,
    trial_height,
    trial_text,
    trials_by_state,
)
from hpo.errors import EvidenceError
from hpo.runs.formatting import format_number, format_target, setting_with_unit, setting_words
from hpo.runs.results import StudyResult
from search_spaces.domains import Categorical
from storage.records import Convergence, TrialState

FAINT, FULL = 0.28, 0.9


def learning_curves(
    result: StudyResult, convergence: Convergence, global_batch_size: int | None = None
) -> go.Figure:
    """Plot the target metric against epochs, with one line per trial and one colour per rung.

    Lines of trials that were stopped early or diverged are faint; ``global_batch_size`` selects a single rung.
    Raises :class:`EvidenceError` for a batch size that no trial has.
    """
    batches = sorted({trial.global_batch_size for trial in result.trials})
    if global_batch_size is not None and global_batch_size not in batches:
        raise EvidenceError(
            "global_batch_size must be one that was swept "
            f"({', '.join(map(str, batches)) or 'none yet'}), but got {global_batch_size}"
        )
    where = (
        ""
        if global_batch_size is None
        else f" at global batch size {format_number(global_batch_size)}"
    )
    figure = style.figure(f"{result.study.name}: learning curves{where}")
    colours, shown = style.rung_colours(batches), set[int]()
    # draw the faint lines first, so that the others are on top
    for trial in sorted(result.trials, key=lambda trial: trial.state is TrialState.REACHED):
        points, batch = convergence.of(trial.id), trial.global_batch_size
        if len(points) == 0 or global_batch_size not in (None, batch):
            continue
        bright = trial.state in (TrialState.REACHED, TrialState.CENSORED, TrialState.RUNNING)
        figure.add_scatter(
            x=points.epochs.astype(np.float32),
            y=points.metric.astype(np.float32),
            mode="lines",
            name=format_number(batch),
            legendgroup=str(batch),
            showlegend=False,
            line={"color": colours[batch], "width": 1.6 if bright else 1},
            opacity=FULL if bright else FAINT,
            hoverinfo="text",
            hovertext=trial_text(result, trial),
            meta=trial.number,
        )
        shown.add(batch)
    for batch in sorted(shown):  # legend lines must not be faint, whichever trial comes first
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="lines",
            name=format_number(batch),
            legendgroup=str(batch),
            line={"color": colours[batch], "width": 3},
            hoverinfo="skip",
        )
    if result.spec.target.ends:
        words = format_target(
            result.study.metric, result.study.threshold, result.study.higher_is_better
        )
        figure.add_hline(
            y=result.study.threshold,
            line={"color": style.INK, "width": 1.5, "dash": "dot"},
            annotation={
                "text": style.plain(f"target {words}"),
                "font": {"size": 12, "color": style.INK},
            },
            annotation_position="bottom left" if result.study.higher_is_better else "top left",
        )
    figure.update_xaxes(title_text="epochs", rangemode="tozero")
    figure.update_yaxes(title_text=style.plain(result.study.metric))
    figure.update_layout(legend_title_text="global batch size", showlegend=bool(shown))
    if not shown:
        style.note(figure, "no trial has been evaluated yet")
    return figure


def noise_scale(result: StudyResult, convergence: Convergence) -> go.Figure:
    """Plot the gradient noise scale (arXiv:1812.06162), in samples, during each trial, with one colour per rung.

    Well below it, larger batches need few extra samples; well above it, they waste samples.
    """
    figure = style.figure(f"{result.study.name}: gradient noise scale")
    batches = sorted({trial.global_batch_size for trial in result.trials})
    colours, values, shown = style.rung_colours(batches), list[float](), set[int]()
    for trial in result.trials:
        points = convergence.of(trial.id)
        known = points.gradient_noise_scale > 0  # unmeasured values are NaN
        if known.any():
            batch = trial.global_batch_size
            figure.add_scatter(
                x=points.epochs[known],
                y=points.gradient_noise_scale[known],
                mode="lines",
                name=format_number(batch),
                legendgroup=str(batch),
                showlegend=batch not in shown,
                line={"color": colours[batch], "width": 1.6},
                opacity=FULL,
                meta=trial.number,
                hoverinfo="text",
                hovertext=trial_text(result, trial),
            )
            shown.add(batch)
            values += points.gradient_noise_scale[known].tolist()
    figure.update_xaxes(title_text="epochs", rangemode="tozero")
    figure.update_yaxes(
        title_text="gradient noise scale (samples)", **style.log_axis(*style.log_range(values))
    )
    figure.update_layout(legend_title_text="global batch size", showlegend=bool(shown))
    if not shown:
        style.note(figure, "no trial measured the noise scale")
    return figure


def parallel_coordinates(result: StudyResult) -> go.Figure:
    """Draw one line for each ended trial, through its batch size, its tuned settings and its epochs to the target.

    Trials that did not reach the target are grey. Logarithmic domains have logarithmic axes; choices are evenly spaced.
    """
    figure = style.figure(f"{result.study.name}: parallel coordinates", height=480)
    trials = [trial for trial in result.trials if trial.state.finished]
    rows = {"global_batch_size": ([float(trial.global_batch_size) for trial in trials], True)}
    choices: dict[str, list[str]] = {}
    for name in result.spec.search.names:
        domain, found = result.spec.search.domains[name], [trial.settings[name] for trial in trials]
        if isinstance(domain, Categorical):
            choices[name] = [str(value) for value in domain.values]
            rows[name] = [float(choices[name].index(str(value))) for value in found], False
        else:
            rows[name] = [float(value) for value in found], bool(domain.log)
    most = max((trial.epochs_to_target for trial in trials if trial.epochs_to_target), default=1.0)
    rows["epochs_to_target"] = [trial.epochs_to_target or most * 1.5 for trial in trials], True
    dimensions = [
        _dimension(name, values, log, choices.get(name)) for name, (values, log) in rows.items()
    ]
    reached = [float(trial.epochs_to_target is not None) for trial in trials]
    figure.add_parcoords(
        dimensions=dimensions,
        line={
            "color": reached,
            "cmin": 0,
            "cmax": 1,
            "colorscale": [[0, "#c3c9cf"], [1, "#4477AA"]],
            "showscale": False,
        },
    )
    figure.update_layout(margin={"l": 70, "r": 40, "t": 90, "b": 30})
    return figure


def _dimension(
    name: str, values: list[float], log: bool, choices: list[str] | None
) -> dict[str, Any]:
    """Return one axis, in decades if ``log``, because Plotly's parallel coordinates have no logarithmic axes."""
    label = (
        "epochs to target<br>(missed: top)" if name == "epochs_to_target" else setting_words(name)
    )
    if choices is not None:
        return {
            "label": label,
            "values": values,
            "tickvals": list(range(len(choices))),
            "ticktext": [style.plain(each) for each in choices],
        }
    if not log or not all(value > 0 for value in values):
        return {"label": label, "values": values}
    axis = style.log_axis(*style.log_range(values))
    return {
        "label": label,
        "values": np.log10(values),
        "range": axis["range"],
        "ticktext": axis["ticktext"],
        "tickvals": np.log10(axis["tickvals"]),
    }


def response(result: StudyResult, name: str) -> go.Figure:
    """Plot epochs against the values of a tuned setting, with one colour per rung and one marker per state.

    The best values shift from rung to rung, and the laws extrapolate this shift. Raises :class:`EvidenceError` for a
    setting that the study does not tune.
    """
    check_setting_tuned(result, name)
    question = result.spec.question
    what = result.study.metric if question.fixed else "epochs"
    figure = style.figure(f"{result.study.name}: {what} against {setting_words(name)}")
    batches = sorted({trial.global_batch_size for trial in result.trials})
    colours = style.rung_colours(batches)
    ends, points = epochs_ends(result), thin_trials(result.trials)
    for batch in batches:
        trials = [
            trial
            for trial in points
            if trial.global_batch_size == batch
            and trial.state in style.STATES
            and not (question.fixed and metric_of_trial(trial) is None)
        ]
        looks = [style.STATES[trial.state] for trial in trials]
        reached = [question.need(trial) is not None for trial in trials]
        figure.add_scatter(
            x=[plotted_setting_value(trial.settings[name]) for trial in trials],
            y=[
                metric_of_trial(trial) if question.fixed else trial_height(trial, ends[0])
                for trial in trials
            ],
            mode="markers",
            name=format_number(batch),
            legendgroup=str(batch),
            showlegend=False,
            hoverinfo="text",
            hovertext=[trial_text(result, trial) for trial in trials],
            customdata=[trial.number for trial in trials],
            marker={
                "symbol": [look.symbol for look in looks],
                "size": [look.size + 1 for look in looks],
                "color": colours[batch],
                "opacity": [FULL if each else 0.45 for each in reached],
            },
        )
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=format_number(batch),
            legendgroup=str(batch),
            marker={"color": colours[batch], "size": 10},
            hoverinfo="skip",
        )
    for state in trials_by_state(result.trials):
        look = style.STATES[state]
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=look.name,
            hoverinfo="skip",
            marker={"symbol": look.symbol, "color": style.MUTED, "size": 9},
        )
    axis = setting_axis(result, name, [trial.settings[name] for trial in result.trials])
    figure.update_xaxes(title_text=setting_with_unit(name), **axis)
    if question.fixed:
        told = [value for trial in points if (value := metric_of_trial(trial)) is not None]
        figure.update_yaxes(title_text=style.plain(question.answer), **metric_axis(question, told))
    else:
        figure.update_yaxes(
            title_text="epochs to target, or until stopped", **style.log_axis(*ends)
        )
    figure.update_layout(legend_title_text="global batch size", showlegend=True)
    if not batches:
        style.note(figure, "no trial has started yet")
    return figure
