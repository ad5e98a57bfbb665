"""Figures over sizes: a ladder whose models and training lengths grow, and the cost of a narrower interval.

There is a panel for each training length and a colour for each model, with the batch size on the x axis; each law is
drawn with its trials, and the forecast at the full scale.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from plotly import colors
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from hpo.dashboard import style
from hpo.dashboard.points import (
    epochs_of_trial,
    metric_axis,
    metric_of_trial,
    outcome_markers,
    outcome_texts,
    thin_trials,
    trial_text,
    trials_by_state,
)
from hpo.extrapolation.forecast import (
    Band,
    Forecast,
    band_at_sizes,
    epochs_band,
    setting_band,
    setting_band_at_sizes,
)
from hpo.extrapolation.inference.intervals import Interval
from hpo.extrapolation.inference.posterior import Posterior
from hpo.runs.designs import Design, Designs, design_name
from hpo.runs.formatting import (
    format_interval,
    format_metric_interval,
    format_number,
    format_target,
    setting_with_unit,
    setting_words,
)
from hpo.runs.results import StudyResult
from hpo.study.sizes import (
    SAMPLES,
    Point,
    full_scale_sizes,
    points,
    relative_cost,
    sizes_in_words,
    sizes_of_settings,
)
from storage.records import Trial
from trainers.job import LENGTH

BAND_POINTS = 24
FAINT = 0.12
ASIDE = 0.28  # spread of a rung's trials, as a share of the distance to the next rung
ROOM_FOR_TITLES = 76  # pixels; panel titles go below the figure's title and a page's buttons


@dataclass(frozen=True)
class _Panel:
    """The trials of one training length; ``models`` are the combinations of their other sizes."""

    title: str
    models: tuple[Point, ...]
    length: Point = ()
    full: bool = False


def sized_ladder(
    result: StudyResult, numbers: Forecast | None, posterior: Posterior | None = None
) -> go.Figure:
    """Draw the best metric or epochs to target over the batch size: a panel per length, a colour per model.

    With ``posterior``, each law is drawn with its 90 % band; ``numbers`` is the forecast for the full scale.
    """
    question = result.spec.question
    name = (
        f"best {result.study.metric}"
        if question.fixed
        else "epochs to "
        + format_target(result.study.metric, result.study.threshold, result.study.higher_is_better)
    )
    drawing = _Drawing(result, f"{result.study.name}: {name} over sizes")

    def of_trial(trial: Trial) -> float | None:
        return metric_of_trial(trial) if question.fixed else epochs_of_trial(trial)

    def law(batches: Sequence[float], point: Point, full: bool) -> Band | None:
        if posterior is None:
            return None
        if full:
            return epochs_band(posterior, batches)
        return band_at_sizes(posterior, batches, dict(point))

    ends = None
    if numbers is not None:
        ends = numbers.best.interval if numbers.best else numbers.epochs_to_target
    shown = drawing.draw(name, of_trial, law, numbers, ends)
    drawing.outcomes(
        lambda run, outcome: (
            outcome.best_metric
            if run.question.fixed
            else outcome.epochs_to_target or outcome.epochs
        )
    )
    axis = (
        metric_axis(question, shown) if question.fixed else style.log_axis(*style.log_range(shown))
    )
    return drawing.finished(style.plain(name), axis)


def setting_over_sizes(
    result: StudyResult,
    name: str,
    numbers: Forecast | None,
    axis: Mapping[str, Any],
    posterior: Posterior | None = None,
) -> go.Figure:
    """Draw values of a tuned setting over the batch size with their laws: a panel per length, a colour per model."""
    drawing = _Drawing(result, f"{result.study.name}: {setting_words(name)} over sizes")

    def of_trial(trial: Trial) -> Any:
        value = trial.settings.get(name)
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        return value if numeric or value is None else style.plain(str(value))

    def law(batches: Sequence[float], point: Point, full: bool) -> Band | None:
        if posterior is None or name not in posterior.tuned:
            return None
        if full:
            return setting_band(posterior, name, batches)
        if all(name != each.name for each in posterior.model.laws):
            return None  # a warmup depends on the learning rate at full scale, and has no law over sizes
        return setting_band_at_sizes(posterior, name, batches, dict(point))

    ends = numbers.settings.get(name) if numbers else None
    drawing.draw(setting_words(name), of_trial, law, numbers, ends)
    drawing.outcomes(lambda run, _: run.plan.job.settings.value(name))
    return drawing.finished(setting_with_unit(name), axis)


def cost_against_interval(result: StudyResult, found: Designs) -> go.Figure:
    """Plot the full-scale interval against the cost of training runs, from very few runs to twice the study's.

    Costs are in full-scale training runs, by :func:`hpo.runs.designs.designs`. There is a colour for each largest size;
    the line joins the designs that beat every cheaper design, and the star is the current study.
    """
    figure = style.figure(f"{result.study.name}: what more training runs would gain", height=460)
    best = found.worthwhile()
    figure.add_scatter(
        x=[each.cost for each in best],
        y=[each.factor for each in best],
        mode="lines",
        line={"color": style.MUTED, "width": 1.5, "dash": "dot"},
        name="best for its cost",
        hoverinfo="skip",
    )
    by_size: dict[str, list[Design]] = {}
    for each in found.all:
        if not each.own:
            by_size.setdefault(design_name(each), []).append(each)
    names = sorted(by_size, key=lambda name: math.prod(by_size[name][0].largest.values()))
    for index, name in enumerate(names):
        designs = by_size[name]
        figure.add_scatter(
            x=[each.cost for each in designs],
            y=[each.factor for each in designs],
            mode="lines+markers",
            name=f"up to {name}",
            line={"color": _colour(index, len(names)), "width": 1},
            marker={"size": 8, "color": _colour(index, len(names))},
            hoverinfo="text",
            hovertext=[_design_text(each, found) for each in designs],
        )
    own = found.own
    figure.add_scatter(
        x=[own.cost],
        y=[own.factor],
        mode="markers",
        name="this study",
        marker={"symbol": "star", "size": 15, "color": style.FORECAST},
        hoverinfo="text",
        hovertext=[_design_text(own, found)],
    )
    costs, factors = ([getattr(each, what) for each in found.all] for what in ("cost", "factor"))
    figure.update_xaxes(
        title_text="cost, in full-scale training runs", **style.log_axis(*style.log_range(costs))
    )
    figure.update_yaxes(
        title_text=f"interval of the {style.plain(found.question.answer)}: a factor of",
        **style.log_axis(*_at_least_one(factors)),
    )
    return figure


def _at_least_one(factors: Sequence[float]) -> tuple[float, float]:
    low, high = style.log_range(factors, pad=1.05)
    return max(low, 1.0), max(high, 1.1)


def _design_text(each: Design, found: Designs) -> str:
    hours = f", {format_number(each.hours)} accelerator hours" if each.hours is not None else ""
    ends = (
        format_metric_interval(each.interval)
        if found.question.fixed
        else format_interval(each.interval)
    )
    return style.lines(
        "this study" if each.own else f"up to {design_name(each)}",
        f"{each.trainings} training runs: cost of {format_number(each.cost)} full-scale runs{hours}",
        f"{found.question.answer} {ends}, a factor of {each.factor:.3g}",
        f"expected regret of its settings: {100 * each.regret:.2g} % of the training",
    )


@dataclass
class _Drawing:
    """A figure of panels, drawn panel by panel."""

    result: StudyResult
    title: str
    panels: list[_Panel] = field(init=False)
    figure: go.Figure = field(init=False)
    _in_legend: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.panels = _panels(self.result)
        self.figure = make_subplots(
            cols=len(self.panels),
            shared_yaxes=True,
            horizontal_spacing=0.02,
            subplot_titles=[panel.title for panel in self.panels],
        )
        base = style.figure(self.title)
        self.figure.update_layout(
            template=base.layout.template,
            title=base.layout.title.to_plotly_json(),
            height=540,
            margin_t=ROOM_FOR_TITLES,
        )
        self.figure.update_annotations(font={"size": 12, "color": style.MUTED})

    def draw(
        self,
        what: str,
        of_trial: Any,
        law: Any,
        numbers: Forecast | None,
        ends: Interval | None,
    ) -> list[float]:
        """Draw trials, laws and forecast; return the values that the y axis must cover."""
        result, shown = self.result, list[float]()
        models = _models(result)
        kept = thin_trials(result.trials)
        for column, panel in enumerate(self.panels, start=1):
            for point in panel.models:
                colour = _colour(models.index(_of_model(point)), len(models))
                label = sizes_in_words(_of_model(point)) or "all"
                trials = [
                    trial
                    for trial in kept
                    if sizes_of_settings(result.spec, trial.settings) == point
                    and of_trial(trial) is not None
                ]
                shown += self._trials(column, trials, of_trial, colour, label)
                batches = self._batches(panel, trials)
                band = law(batches, point, panel.full) if len(batches) else None
                if band is not None:
                    shown += self._band(column, band, colour, what, point, panel.full)
            if panel.full and numbers is not None and ends is not None:
                self._forecast(column, numbers, ends, what)
                shown += [ends.low, ends.high]
            self._batch_axis(column, panel)
        return [value for value in shown if isinstance(value, int | float)]

    def outcomes(self, of_outcome: Any) -> None:
        """Draw the outcomes of launched plans, at the full scale."""
        column = next(
            (index for index, panel in enumerate(self.panels, start=1) if panel.full), None
        )
        for run in self.result.launched if column else ():
            look = style.KINDS[run.plan.kind]
            self.figure.add_scatter(
                x=[run.plan.global_batch_size] * len(run.outcomes),
                y=[of_outcome(run, outcome) for outcome in run.outcomes],
                mode="markers",
                name=look.name,
                legendgroup=str(run.plan.kind),
                showlegend=self._first(look.name),
                marker=outcome_markers(run),
                hoverinfo="text",
                hovertext=outcome_texts(self.result, run),
                row=1,
                col=column,
            )

    def finished(self, words: str, axis: Mapping[str, Any]) -> go.Figure:
        """Set the title and range of the y axis, and return the figure."""
        self.figure.update_yaxes(**axis)
        self.figure.update_yaxes(title_text=words, row=1, col=1)
        if not trials_by_state(self.result.trials):
            style.note(self.figure, "no trial has ended yet")
        return self.figure

    def _first(self, name: str) -> bool:
        """Return whether a name is new in the legend."""
        new = name not in self._in_legend
        self._in_legend.add(name)
        return new

    def _trials(
        self, column: int, trials: Sequence[Trial], of_trial: Any, colour: str, label: str
    ) -> list[float]:
        answered = list[float]()
        for state, group in trials_by_state(trials).items():
            look = style.STATES[state]
            whole = [self.result.spec.question.need(trial) is not None for trial in group]
            self.figure.add_scatter(
                x=_beside(group, self.result),
                y=[of_trial(trial) for trial in group],
                mode="markers",
                name=label,
                legendgroup=label,
                showlegend=any(whole) and self._first(label),
                marker=style.marker(look, color=colour, opacity=0.9 if any(whole) else 0.35),
                hoverinfo="text",
                hovertext=[trial_text(self.result, trial) for trial in group],
                customdata=[trial.number for trial in group],
                row=1,
                col=column,
            )
            if any(whole):
                answered += [of_trial(trial) for trial in group]
        return answered

    def _band(
        self, column: int, band: Band, colour: str, what: str, point: Point, full: bool
    ) -> list[float]:
        label = sizes_in_words(_of_model(point)) or "all"
        self.figure.add_scatter(
            x=np.concatenate([band.batches, band.batches[::-1]]),
            y=np.concatenate([band.high, band.low[::-1]]),
            fill="toself",
            fillcolor=_clear(colour),
            mode="lines",
            line={"width": 0},
            legendgroup=label,
            showlegend=False,
            hoverinfo="skip",
            row=1,
            col=column,
        )
        texts = [
            style.lines(
                f"global batch size {format_number(batch)}, {sizes_in_words(point)}",
                f"{what} {format_interval(Interval(*ends))}",
            )
            for batch, *ends in zip(
                *(each.tolist() for each in (band.batches, band.median, band.low, band.high)),
                strict=True,
            )
        ]
        name = "law with 90 % band, beyond what was trained" if full else "law with 90 % band"
        self.figure.add_scatter(
            x=band.batches,
            y=band.median,
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=self._first(name),
            line={"color": colour, "width": 2, "dash": "dash" if full else "solid"},
            hoverinfo="text",
            hovertext=texts,
            row=1,
            col=column,
        )
        return [*band.median.tolist(), float(np.median(band.low)), float(np.median(band.high))]

    def _forecast(self, column: int, numbers: Forecast, ends: Interval, what: str) -> None:
        batch = numbers.global_batch_size
        text = style.lines(
            f"forecast at global batch size {format_number(batch)}, "
            f"{sizes_in_words(full_scale_sizes(self.result.spec))}",
            f"{what} {format_interval(ends)}",
        )
        self.figure.add_scatter(
            x=[batch],
            y=[ends.median],
            mode="markers",
            name="forecast, 90 % interval",
            marker={"symbol": "diamond", "size": 12, "color": style.FORECAST},
            error_y=style.interval_bar([ends], style.FORECAST),
            hoverinfo="text",
            hovertext=[text],
            row=1,
            col=column,
        )

    def _batches(self, panel: _Panel, trials: Sequence[Trial]) -> Any:
        """Return the batch sizes to draw a law over: the trained ones, or the ladder and the target at full scale."""
        if panel.full:
            batches = self._full_batches()
            return np.geomspace(batches[0], batches[-1], BAND_POINTS)
        trained = sorted({trial.global_batch_size for trial in trials})
        return np.geomspace(trained[0], trained[-1], BAND_POINTS) if trained else []

    def _full_batches(self) -> list[int]:
        full = self.result.spec.full_scale
        raced = {trial.global_batch_size for trial in self.result.raced}
        return sorted(
            {*self.result.spec.ladder, *raced, *([full.global_batch_size] if full else [])}
        )

    def _batch_axis(self, column: int, panel: _Panel) -> None:
        ticks = self._full_batches() if panel.full else list(self.result.spec.ladder)
        room = math.sqrt(2)
        self.figure.update_xaxes(
            type="log",
            title_text="global batch size",
            tickvals=ticks,
            ticktext=[f"{batch:,}" for batch in ticks],
            range=[math.log10(ticks[0] / room), math.log10(ticks[-1] * room)],
            row=1,
            col=column,
        )


def _panels(result: StudyResult) -> list[_Panel]:
    """Return one panel per training length, ordered by samples, and a separate last panel for the full scale."""
    spec, full = result.spec, full_scale_sizes(result.spec)
    trained = dict.fromkeys(
        [*points(spec), *(sizes_of_settings(spec, trial.settings) for trial in result.trials)]
    )
    lengths: dict[Point, list[Point]] = {}
    for point in sorted(trained, key=lambda point: (relative_cost(point), point)):
        if point != full:
            lengths.setdefault(_of_length(point), []).append(point)
    panels = [
        _Panel(sizes_in_words(length) or "sizes below", tuple(lengths[length]), length)
        for length in sorted(lengths)
    ]
    return [*panels, _Panel(f"full scale: {sizes_in_words(full)}", (full,), full=True)]


def _of_length(point: Point) -> Point:
    return tuple(each for each in point if each[0] in (LENGTH, SAMPLES))


def _of_model(point: Point) -> Point:
    return tuple(each for each in point if each[0] not in (LENGTH, SAMPLES))


def _models(result: StudyResult) -> list[Point]:
    """Return the models, smallest first, including the full-scale model."""
    spec = result.spec
    found = {_of_model(point) for point in (*points(spec), full_scale_sizes(spec))}
    found |= {_of_model(sizes_of_settings(spec, trial.settings)) for trial in result.trials}
    return sorted(found, key=lambda model: (relative_cost(model), model))


def _colour(index: int, count: int) -> str:
    """Return the colour of the size at position ``index``: dark violet to green."""
    return str(colors.sample_colorscale("Viridis", [0.05 + 0.75 * index / max(count - 1, 1)])[0])


def _clear(colour: str) -> str:
    return colour.replace("rgb(", "rgba(").replace(")", f", {FAINT})")


def _beside(trials: Sequence[Trial], result: StudyResult) -> Any:
    """Return the x positions of trials, with the trials of one rung side by side."""
    ladder = result.spec.ladder
    gap = min((math.log(b / a) for a, b in itertools.pairwise(ladder)), default=0.7)
    count: dict[int, int] = {}
    places = []
    totals = {batch: sum(t.global_batch_size == batch for t in trials) for batch in ladder}
    for trial in trials:
        place = count.get(trial.global_batch_size, 0)
        count[trial.global_batch_size] = place + 1
        total = totals.get(trial.global_batch_size, 1)
        aside = ((place + 0.5) / max(total, 1) - 0.5) * ASIDE * gap
        places.append(trial.global_batch_size * math.exp(aside))
    return np.array(places)
