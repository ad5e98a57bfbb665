"""Figures against the global batch size: epochs to target over the ladder, and each setting with its law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go

from hpo.dashboard import style
from hpo.dashboard.points import (
    add_trial_points,
    epochs_ends,
    epochs_of_trial,
    metric_axis,
    metric_of_trial,
    outcome_markers,
    outcome_texts,
    settings_lines,
    spread_trials,
    step_aside,
    thin_trials,
    trial_height,
    trials_by_state,
)
from hpo.dashboard.size_figures import setting_over_sizes, sized_ladder
from hpo.errors import EvidenceError
from hpo.extrapolation.forecast import Band, Forecast, epochs_band, forecast, setting_band
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.inference.posterior import Posterior
from hpo.extrapolation.trust import scaling_regime
from hpo.runs.formatting import (
    format_answer,
    format_interval,
    format_number,
    format_target,
    setting_with_unit,
    setting_words,
)
from hpo.runs.results import PlannedRun, StudyResult, SweptConfiguration, best_of_rungs
from hpo.runs.study_forecast import past_forecasts
from search_spaces.domains import Categorical
from storage.records import Outcome, TrialState

BAND_POINTS = 32
REGIME_STEPS = 120
REGIME = "regime"
"""Name by which plots.js finds the regimes' labels; on a narrow page it puts each label on a separate line."""
BEYOND_SIGHT = 12.0
"""An interval may extend an axis to this many times the largest point; anything beyond is cut off."""


def ladder(result: StudyResult, posterior: Posterior | None = None) -> go.Figure:
    """Plot epochs to target against the global batch size, both logarithmic.

    The figure shows every ended trial, by state, at the epochs it needed or was stopped after; the best settings of
    each rung; the forecast for the full-scale batch size with its 90 % interval; and the outcomes of launched plans.
    With ``posterior`` it adds the law's median with its 90 % band, the critical batch size (the median, in samples) and
    the regimes. For a study over several sizes it has a panel for each training length and a colour for each model
    (:mod:`hpo.dashboard.size_figures`).
    """
    if result.spec.sizes:
        return sized_ladder(result, full_scale_forecast(result, posterior), posterior)
    if result.spec.question.fixed:
        return _metric_ladder(result, posterior)
    figure = style.figure(f"{result.study.name}: epochs to {_target(result)}", height=520)
    numbers = full_scale_forecast(result, posterior)
    best = [*best_of_rungs(result.trials, result.spec.ladder).values()]
    observed = [
        outcome.epochs_to_target or outcome.epochs
        for run in result.runs
        for outcome in run.outcomes
    ]
    ends = epochs_ends(result, [*observed, *([numbers.epochs_to_target.median] if numbers else [])])
    if posterior is not None:
        band = epochs_band(
            posterior, _grid(result), past=past_forecasts(result, _full_scale(result))
        )
        ends = _stretch(ends, [*band.low, *band.median, *band.high])
        _add_band(figure, result, band, "epochs")
    if numbers:
        ends = _stretch(ends, [numbers.epochs_to_target.low, numbers.epochs_to_target.high])
    for state, trials in trials_by_state(thin_trials(result.trials)).items():
        heights = [trial_height(trial, ends[0]) for trial in trials]
        add_trial_points(figure, result, trials, state, spread_trials(result, trials), heights)
    _add_best(figure, result, best, [candidate.need for candidate in best])
    if numbers:
        _add_forecast(
            figure, numbers.global_batch_size, numbers.epochs_to_target, "epochs to target"
        )
    _add_outcomes(figure, result)
    _set_batch_axis(figure, result)
    figure.update_yaxes(
        title_text=f"epochs to {style.plain(_target(result))}", **style.log_axis(*ends)
    )
    if posterior is not None:
        _name_regimes(figure, posterior)
    if numbers or posterior is not None:
        _mark_critical(figure, numbers, posterior, ends)
    if not any(epochs_of_trial(trial) for trial in result.trials):
        ended = bool(trials_by_state(result.trials))
        style.note(
            figure,
            "no trial reached its first evaluation" if ended else "no trial has ended yet",
        )
    return figure


def _metric_ladder(result: StudyResult, posterior: Posterior | None) -> go.Figure:
    """Plot the best metric against the batch size, for a study with a fixed budget."""
    question, name = result.spec.question, result.study.metric
    figure = style.figure(f"{result.study.name}: {question}", height=520)
    numbers = full_scale_forecast(result, posterior)
    best = [*best_of_rungs(result.trials, result.spec.ladder, question).values()]
    told = [question.told(candidate.need) for candidate in best]
    drawn = [*told]
    if posterior is not None:
        band = epochs_band(posterior, _grid(result))
        drawn += [*band.low, *band.median, *band.high]
        _add_band(figure, result, band, name)
    for state, trials in trials_by_state(thin_trials(result.trials)).items():
        known = [trial for trial in trials if metric_of_trial(trial) is not None]
        heights = [metric_of_trial(trial) or 0.0 for trial in known]
        drawn += heights if state is TrialState.CENSORED else []
        add_trial_points(figure, result, known, state, spread_trials(result, known), heights)
    _add_best(figure, result, best, told)
    if numbers and numbers.best:
        ends = numbers.best.interval
        drawn += [ends.low, ends.high]
        _add_forecast(figure, numbers.global_batch_size, ends, f"best {name}")
    for run in result.runs:
        drawn += [each.best_metric for each in run.outcomes if each.best_metric is not None]
    _add_outcomes(figure, result)
    _set_batch_axis(figure, result)
    figure.update_yaxes(
        title_text=f"best {style.plain(name)} within {format_number(question.epochs)} epochs",
        **metric_axis(question, drawn),
    )
    if not drawn:
        style.note(figure, "no trial has reached the end of its budget yet")
    return figure


def setting_against_batch(
    result: StudyResult, name: str, posterior: Posterior | None = None
) -> go.Figure:
    """Plot the values of a tuned setting against the global batch size, coloured by the epochs to target.

    The best value of each rung is highlighted. With ``posterior`` and an extrapolated setting, the figure also shows
    the law with its 90 % band, the forecast for the full-scale batch size, and the values used by launched plans.
    Raises :class:`EvidenceError` for a setting that the study does not tune.
    """
    check_setting_tuned(result, name)
    numbers = full_scale_forecast(result, posterior)
    if result.spec.sizes:
        told = [trial.settings.get(name) for trial in result.trials]
        shown = [each for each in told if isinstance(each, int | float)]
        shown += (
            [*vars(numbers.settings[name]).values()] if numbers and name in numbers.settings else []
        )
        axis = setting_axis(result, name, shown)
        return setting_over_sizes(result, name, numbers, axis, posterior)
    figure = style.figure(f"{result.study.name}: {setting_words(name)} against batch size")
    best = [*best_of_rungs(result.trials, result.spec.ladder, result.spec.question).values()]
    if posterior is not None and name in posterior.tuned:
        _add_band(figure, result, setting_band(posterior, name, _grid(result)), setting_words(name))
    for state, trials in trials_by_state(thin_trials(result.trials)).items():
        values = [plotted_setting_value(trial.settings[name]) for trial in trials]
        reached = [trial.epochs_to_target for trial in trials if trial.epochs_to_target]
        look = _epochs_colours(reached) if state is TrialState.REACHED else {}
        add_trial_points(
            figure, result, trials, state, spread_trials(result, trials), values, **look
        )
    _add_best(
        figure,
        result,
        best,
        [plotted_setting_value(candidate.settings.value(name)) for candidate in best],
    )
    if numbers and name in numbers.settings:
        _add_forecast(
            figure, numbers.global_batch_size, numbers.settings[name], setting_words(name)
        )
    _add_outcomes(figure, result, name)
    _set_batch_axis(figure, result)
    figure.update_yaxes(
        title_text=setting_with_unit(name), **setting_axis(result, name, _numbers(figure))
    )
    if not result.trials:
        style.note(figure, "no trial has started yet")
    return figure


def check_setting_tuned(result: StudyResult, name: str) -> None:
    """Raise :class:`EvidenceError` unless the study tunes the setting."""
    tuned = result.spec.search.names
    if name not in tuned:
        raise EvidenceError(
            f"a figure needs a setting that study {result.study.name!r} tunes "
            f"({', '.join(tuned) or 'it tunes no settings'}), but got {name!r}"
        )


def full_scale_forecast(result: StudyResult, posterior: Posterior | None = None) -> Forecast | None:
    """Return the forecast for the full-scale batch size, from the result or ``posterior``; None without either."""
    if result.forecast is not None:
        return result.forecast.numbers
    batch = _full_scale(result)
    if posterior is None or batch is None:
        return None
    return forecast(posterior, batch, past=past_forecasts(result, batch))


def plotted_setting_value(value: Any) -> Any:
    """Return a setting's value as a coordinate: numbers unchanged, other values as text."""
    return (
        value
        if isinstance(value, int | float) and not isinstance(value, bool)
        else style.plain(str(value))
    )


def setting_axis(result: StudyResult, name: str, shown: Sequence[Any]) -> dict[str, Any]:
    """Return the axis of a tuned setting, covering its domain and the values ``shown``."""
    domain = result.spec.search.domains[name]
    if isinstance(domain, Categorical):
        return {
            "type": "category",
            "categoryorder": "array",
            "range": [-0.5, len(domain.values) - 0.5],
            "categoryarray": [str(plotted_setting_value(value)) for value in domain.values],
        }
    if not domain.log:
        return {"rangemode": "tozero"}
    return style.log_axis(
        *style.log_range([float(value) for value in (domain.low, domain.high, *shown)])
    )


def _target(result: StudyResult) -> str:
    return format_target(result.study.metric, result.study.threshold, result.study.higher_is_better)


def _full_scale(result: StudyResult) -> int | None:
    return result.spec.full_scale.global_batch_size if result.spec.full_scale else None


def _batches(result: StudyResult) -> list[int]:
    full = _full_scale(result)
    swept = [trial.global_batch_size for trial in result.trials]
    planned = [run.plan.global_batch_size for run in result.runs]
    return sorted({*result.spec.ladder, *swept, *planned, *([full] if full else [])})


def _grid(result: StudyResult) -> NDArray[np.float64]:
    """Return the batch sizes to draw the law over, including the largest rung, where extrapolation starts."""
    batches = _batches(result)
    return np.unique(
        np.append(np.geomspace(batches[0], batches[-1], BAND_POINTS), _largest_rung(result))
    )


def _largest_rung(result: StudyResult) -> float:
    return float(
        max([trial.global_batch_size for trial in result.trials], default=result.spec.ladder[-1])
    )


def _stretch(ends: tuple[float, float], values: Sequence[float]) -> tuple[float, float]:
    low, high = style.log_range(values)
    return max(min(low, ends[0]), ends[0] / BEYOND_SIGHT), min(
        max(high, ends[1]), ends[1] * BEYOND_SIGHT
    )


def _add_band(figure: go.Figure, result: StudyResult, band: Band, what: str) -> None:
    """Add the law's 90 % band and its median, solid over the ladder and dashed beyond it."""
    figure.add_scatter(
        x=np.concatenate([band.batches, band.batches[::-1]]),
        mode="lines",
        line={"width": 0},
        y=np.concatenate([band.high, band.low[::-1]]),
        fill="toself",
        fillcolor=style.BAND,
        name="90 % band",
        hoverinfo="skip",
        legendgroup="law",
        showlegend=False,
    )
    edge, columns = (
        _largest_rung(result),
        np.stack([band.batches, band.median, band.low, band.high]),
    )
    for name, inside, dash in (
        ("law with 90 % band", band.batches <= edge, "solid"),
        ("law beyond the ladder", band.batches >= edge, "dash"),
    ):
        if inside.sum() > 1:
            texts = [
                style.lines(
                    f"global batch size {format_number(batch)}",
                    f"{what} {format_interval(Interval(*ends))}",
                )
                for batch, *ends in columns[:, inside].T.tolist()
            ]
            figure.add_scatter(
                x=band.batches[inside],
                y=band.median[inside],
                mode="lines",
                name=name,
                legendgroup="law",
                showlegend=bool(dash == "solid" or edge == band.batches[0]),
                line={"color": style.INK, "width": 2, "dash": dash},
                hoverinfo="text",
                hovertext=texts,
            )


def _answer(result: StudyResult, each: SweptConfiguration) -> str:
    question = result.spec.question
    if question.fixed:
        return f"{question.answer} {format_answer(question, each.need)}"
    return f"{format_number(each.need)} epochs to the target"


def _add_best(
    figure: go.Figure,
    result: StudyResult,
    best: Sequence[SweptConfiguration],
    values: Sequence[Any],
) -> None:
    if not best:
        return
    texts = [
        style.lines(
            f"best settings at global batch size {format_number(each.global_batch_size)}",
            f"{_answer(result, each)}, mean of {each.runs} {'seed' if each.runs == 1 else 'seeds'}",
            *settings_lines(each.settings.to_dict(), result.spec.search.names),
        )
        for each in best
    ]
    figure.add_scatter(
        x=[each.global_batch_size for each in best],
        y=values,
        mode="markers",
        name="best settings of a rung",
        marker={"symbol": "circle-open", "size": 15, "color": style.INK, "line": {"width": 2}},
        hoverinfo="text",
        hovertext=texts,
    )


def _add_forecast(figure: go.Figure, batch: int, ends: Interval, what: str) -> None:
    text = style.lines(
        f"forecast at global batch size {format_number(batch)}", f"{what} {format_interval(ends)}"
    )
    figure.add_scatter(
        x=[batch],
        y=[ends.median],
        mode="markers",
        name="forecast, 90 % interval",
        marker={"symbol": "diamond", "size": 12, "color": style.FORECAST},
        error_y=style.interval_bar([ends], style.FORECAST),
        hoverinfo="text",
        hovertext=[text],
    )


def _add_outcomes(figure: go.Figure, result: StudyResult, name: str | None = None) -> None:
    """Add the outcome of each launched plan, or the value that it used for a setting, at its batch size."""
    shown: set[str] = set()
    for run in result.runs:
        if run.outcomes:
            x = run.plan.global_batch_size * math.exp(_steps_beside(run) * step_aside(result))
            y = [
                _seen(run, outcome)
                if name is None
                else plotted_setting_value(run.plan.job.settings.value(name))
                for outcome in run.outcomes
            ]
            label = style.KINDS[run.plan.kind].name
            figure.add_scatter(
                x=[x] * len(y),
                y=y,
                mode="markers",
                name=label,
                legendgroup=str(run.plan.kind),
                showlegend=label not in shown,
                marker=outcome_markers(run),
                hoverinfo="text",
                hovertext=outcome_texts(result, run),
            )
            shown.add(label)


def _seen(run: PlannedRun, outcome: Outcome) -> float | None:
    """Return the y value of a launched run: its best metric for a fixed budget, otherwise its epochs."""
    if run.question.fixed:
        return outcome.best_metric
    return outcome.epochs_to_target or outcome.epochs


def _steps_beside(run: PlannedRun) -> float:
    """Return the horizontal offset of a plan's runs from their batch size, in steps, by the kind of plan."""
    return 0.45 * (list(style.KINDS).index(run.plan.kind) + 1)


def _set_batch_axis(figure: go.Figure, result: StudyResult) -> None:
    batches, room = _batches(result), math.exp(step_aside(result))
    drawn, all_trials = len(thin_trials(result.trials)), len(result.trials)
    furthest = max((_steps_beside(run) + 0.3 for run in result.runs if run.outcomes), default=0.0)
    style.batch_axis(figure, batches, batches[0] / room, batches[-1] * room ** max(furthest, 1.0))
    if drawn < all_trials:
        figure.update_xaxes(
            title_text=f"{figure.layout.xaxis.title.text}; {drawn:,} of {all_trials:,} trials drawn"
        )


def _mark_critical(
    figure: go.Figure,
    numbers: Forecast | None,
    posterior: Posterior | None,
    ends: tuple[float, float],
) -> None:
    """Add a line at the critical batch size, or a label at the nearer edge if it lies outside the figure."""
    if numbers and numbers.critical_batch is not None:
        critical = numbers.critical_batch
    elif posterior is not None:
        critical = Interval(
            *np.exp(np.quantile(posterior.values["log_critical"], (0.5, 0.05, 0.95))).tolist()
        )
    else:
        return
    low, high = (10**end for end in figure.layout.xaxis.range)
    text = f"critical batch size {format_number(float(round(critical.median)))}"
    label = {
        "text": text,
        "xref": "paper",
        "yref": "paper",
        "y": 0.985,
        "yanchor": "top",
        "showarrow": False,
        "font": {"size": 12, "color": style.MUTED},
    }
    place = math.log(critical.median / low) / math.log(high / low)
    if not 0 <= place <= 1:
        label |= (
            # the forecast is above, on that side
            {"x": 0.99, "xanchor": "right", "y": 0.015, "yanchor": "bottom", "text": f"{text} →"}
            if place > 1
            else {"x": 0.01, "xanchor": "left", "text": f"← {text}"}
        )
        figure.add_annotation(label)
        return
    text = style.lines(
        f"critical batch size {format_interval(critical)}",
        "where the law needs about twice the minimum number of epochs",
    )
    figure.add_scatter(
        x=[critical.median] * 2,
        y=list(ends),
        mode="lines",
        name="critical batch size",
        line={"color": style.MUTED, "width": 1.5, "dash": "dot"},
        hoverinfo="text",
        hovertext=[text] * 2,
        showlegend=False,
    )
    side = "right" if place > 0.5 else "left"
    figure.add_annotation(
        label | {"x": place, "xanchor": side, "xshift": -6 if side == "right" else 6}
    )


def _name_regimes(figure: go.Figure, posterior: Posterior) -> None:
    """Label the regimes of the law (Shallue et al., arXiv:1811.03600) above the figure, each over its batch sizes."""
    low, high = figure.layout.xaxis.range
    places = np.linspace(low, high, REGIME_STEPS)
    names = [scaling_regime(posterior, 10.0**place) for place in places]
    starts = [at for at, name in enumerate(names) if at == 0 or name != names[at - 1]]
    for start, stop in zip(starts, [*starts[1:], REGIME_STEPS], strict=True):
        if start:
            figure.add_shape(
                type="line",
                xref="paper",
                yref="paper",
                x0=start / REGIME_STEPS,
                x1=start / REGIME_STEPS,
                y0=0,
                y1=1.05,
                line={"color": style.MUTED, "width": 0.8},
            )
        if stop - start >= REGIME_STEPS / 8:
            wide = stop - start >= REGIME_STEPS / 4
            figure.add_annotation(
                name=REGIME,
                text=names[start] if wide else names[start].replace(" ", "<br>", 1),
                xref="paper",
                yref="paper",
                x=(start + stop) / 2 / REGIME_STEPS,
                y=1,
                yanchor="bottom",
                showarrow=False,
                font={"size": 12, "color": style.MUTED},
            )


def _epochs_colours(epochs: Sequence[float]) -> dict[str, Any]:
    """Return marker colours by the logarithm of epochs to target (dark means few), with a colour bar in epochs."""
    low, high = style.log_range(epochs, pad=1.0)
    axis = style.log_axis(low, high if high > low else low * 1.1)
    scale = {
        "title": {"text": "epochs<br>to target", "font": {"size": 12}},
        "thickness": 12,
        "outlinewidth": 0,
        "len": 0.85,
        "tickvals": [math.log10(tick) for tick in axis["tickvals"]],
        "ticktext": axis["ticktext"],
    }
    return {
        "color": np.log10(epochs),
        "colorscale": "Viridis",
        "cmin": math.log10(low),
        "cmax": math.log10(high),
        "showscale": True,
        "colorbar": scale,
        "opacity": 0.95,
        "size": 10,
        "line": {"width": 1, "color": "white"},
    }


def _numbers(figure: go.Figure) -> list[float]:
    return [value for trace in figure.data for value in trace.y if isinstance(value, int | float)]
