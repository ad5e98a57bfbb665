"""Figures of launched plans: forecasts against observed outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plotly import graph_objects as go

from hpo.dashboard import style
from hpo.dashboard.points import metric_axis, outcome_markers, outcome_texts
from hpo.extrapolation.inference.intervals import Interval
from hpo.runs.formatting import KIND_NAMES, format_interval, format_number
from hpo.runs.results import PlannedRun, StudyResult
from storage.records import CalibrationRow

VERDICTS = {
    True: ("inside the interval", "circle", "#4477AA"),
    False: ("outside", "x", "#CC3311"),
    None: ("unknown", "circle-open", "#5b6670"),
}


def validation(result: StudyResult) -> go.Figure:
    """Plot the forecast's 90 % interval of epochs to target and each launched run, beside the rules of thumb.

    A run that missed the target is drawn as an open marker at the epochs it trained for.
    """
    fixed = result.spec.question.fixed
    runs = [run for run in result.runs if run.outcomes or run.plan.epochs]
    labels = _labels(runs)
    figure = style.figure(
        f"{result.study.name}: forecast and observed", height=170 + 64 * max(len(runs), 1)
    )
    values: list[float] = []
    for run, label in zip(runs, labels, strict=True):
        ends = (run.plan.best and run.plan.best.interval) if fixed else run.plan.epochs
        if ends:
            _add_interval(figure, ends, label, first=not values)
            values += [ends.low, ends.median, ends.high]
        epochs = [
            outcome.best_metric or 0.0 if fixed else outcome.epochs_to_target or outcome.epochs
            for outcome in run.outcomes
        ]
        figure.add_scatter(
            x=epochs,
            y=[label] * len(epochs),
            mode="markers",
            name=style.KINDS[run.plan.kind].name,
            marker=outcome_markers(run),
            hoverinfo="text",
            showlegend=False,
            hovertext=outcome_texts(result, run),
        )
        values += epochs
    figure.update_xaxes(
        title_text=style.plain(result.spec.question.answer),
        **(
            metric_axis(result.spec.question, values)
            if fixed
            else style.log_axis(*style.log_range(values))
        ),
    )
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=labels[::-1],
        showgrid=False,
        range=[-0.6, max(len(runs), 1) - 0.4],
    )
    if not runs:
        style.note(figure, "no plan has been launched yet")
    return figure


def calibration(rows: Sequence[CalibrationRow]) -> go.Figure:
    """Plot observed against predicted epochs to target, both logarithmic, with a point per launched plan.

    The bars are the 90 % intervals. The points of good forecasts are on the diagonal, and nine in ten bars should cross
    it. Plans without a prediction (the rules of thumb) and plans that never reached the target are not shown.
    """
    figure = style.figure("forecasts against outcomes")
    placed = [
        row
        for row in rows
        if row.predicted_epochs_median is not None and row.observed_epochs_mean is not None
    ]
    ends = style.log_range(
        [
            value
            for row in placed
            for value in (
                row.predicted_epochs_low,
                row.predicted_epochs_high,
                row.observed_epochs_mean,
            )
            if value
        ]
    )
    _add_diagonal(figure, ends)
    for inside, (name, symbol, colour) in VERDICTS.items():
        group = [row for row in placed if row.inside is inside]
        if group:
            _add_rows(figure, group, name, {"symbol": symbol, "color": colour, "size": 10})
    figure.update_xaxes(
        title_text="predicted epochs to target (median and 90 % interval)", **style.log_axis(*ends)
    )
    figure.update_yaxes(title_text="observed epochs to target (mean)", **style.log_axis(*ends))
    if not placed:
        style.note(figure, "no launched plan can be compared with a forecast yet")
    return figure


def calibration_of_time(rows: Sequence[CalibrationRow]) -> go.Figure:
    """Plot observed against predicted seconds to target, as :func:`calibration` does for epochs."""
    figure = style.figure("forecast times against outcomes")
    placed = [row for row in rows if row.predicted_seconds_median and row.observed_seconds_mean]
    ends = style.log_range(
        [
            value
            for row in placed
            for value in (
                row.predicted_seconds_low,
                row.predicted_seconds_high,
                row.observed_seconds_mean,
            )
            if value
        ]
    )
    _add_diagonal(figure, ends)
    for inside, (name, symbol, colour) in VERDICTS.items():
        group = [row for row in placed if _time_inside(row) is inside]
        if group:
            predicted = [
                Interval(
                    row.predicted_seconds_median or 0.0,
                    row.predicted_seconds_low or 0.0,
                    row.predicted_seconds_high or 0.0,
                )
                for row in group
            ]
            texts = [
                style.lines(
                    f"plan {row.plan_id} of {row.study} on {row.machine}",
                    f"predicted {format_interval(of)} seconds",
                    f"observed {format_number(row.observed_seconds_mean)}",
                )
                for row, of in zip(group, predicted, strict=True)
            ]
            figure.add_scatter(
                x=[of.median for of in predicted],
                y=[row.observed_seconds_mean for row in group],
                mode="markers",
                name=name,
                marker={"symbol": symbol, "color": colour, "size": 10},
                hoverinfo="text",
                hovertext=texts,
                customdata=[row.plan_id for row in group],
                error_x=style.interval_bar(predicted, colour),
            )
    figure.update_xaxes(
        title_text="predicted seconds to target (median and 90 % interval)", **style.log_axis(*ends)
    )
    figure.update_yaxes(title_text="observed seconds to target (mean)", **style.log_axis(*ends))
    if not placed:
        style.note(figure, "no launched plan can be compared with a time forecast yet")
    return figure


def _time_inside(row: CalibrationRow) -> bool | None:
    if (
        row.predicted_seconds_low is None
        or row.predicted_seconds_high is None
        or row.observed_seconds_mean is None
    ):
        return None
    return row.predicted_seconds_low <= row.observed_seconds_mean <= row.predicted_seconds_high


def _add_diagonal(figure: go.Figure, ends: tuple[float, float]) -> None:
    figure.add_scatter(
        x=list(ends),
        y=list(ends),
        mode="lines",
        name="observed as predicted",
        hoverinfo="skip",
        line={"color": style.MUTED, "width": 1.5, "dash": "dot"},
    )


def _labels(runs: Sequence[PlannedRun]) -> list[str]:
    """Return a label for each run, with the batch size or plan number where needed to make the label unique."""
    several = len({run.plan.global_batch_size for run in runs}) > 1
    names = [
        KIND_NAMES[run.plan.kind]
        + (f" at {format_number(run.plan.global_batch_size)}" if several else "")
        for run in runs
    ]
    return [
        f"{name} (plan {run.plan.id})" if names.count(name) > 1 else name
        for name, run in zip(names, runs, strict=True)
    ]


def _add_interval(figure: go.Figure, ends: Interval, label: str, *, first: bool) -> None:
    text = [style.lines(f"{label}: epochs to target {format_interval(ends)}")]
    figure.add_scatter(
        x=[ends.low, ends.high],
        y=[label, label],
        mode="lines",
        name="90 % interval forecast",
        line={"color": style.FORECAST, "width": 12},
        opacity=0.25,
        hoverinfo="text",
        hovertext=text * 2,
        showlegend=first,
    )
    figure.add_scatter(
        x=[ends.median],
        y=[label],
        mode="markers",
        name="median forecast",
        hoverinfo="text",
        hovertext=text,
        marker={
            "symbol": "line-ns-open",
            "size": 20,
            "color": style.FORECAST,
            "line": {"width": 2},
        },
        showlegend=first,
    )


def _add_rows(
    figure: go.Figure, rows: Sequence[CalibrationRow], name: str, marker: dict[str, Any]
) -> None:
    predicted = [
        Interval(
            row.predicted_epochs_median or 0.0,
            row.predicted_epochs_low or 0.0,
            row.predicted_epochs_high or 0.0,
        )
        for row in rows
    ]
    texts = [
        style.lines(
            f"plan {row.plan_id} of {row.study}, global batch size {format_number(row.global_batch_size)}",
            f"predicted {format_interval(ends)}, trust {row.trust or 'unknown'}",
            f"observed {format_number(row.observed_epochs_mean)}, {row.reached} of {row.runs} runs "
            "reached the target",
        )
        for row, ends in zip(rows, predicted, strict=True)
    ]
    figure.add_scatter(
        x=[ends.median for ends in predicted],
        y=[row.observed_epochs_mean for row in rows],
        mode="markers",
        name=name,
        marker=marker,
        hoverinfo="text",
        hovertext=texts,
        customdata=[row.plan_id for row in rows],
        error_x=style.interval_bar(predicted, marker["color"]),
    )
