"""The content of a study's page: the forecast in a sentence, tables, and figures with captions."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plotly import graph_objects as go

from hpo.dashboard import figures
from hpo.dashboard.points import outcome_end
from hpo.dashboard.view import StudyView, shown_curve_trials
from hpo.errors import EvidenceError, ExportError
from hpo.extrapolation.inference.posterior import Posterior
from hpo.runs.designs import designs
from hpo.runs.formatting import (
    KIND_NAMES,
    format_answer,
    format_interval,
    format_metric_interval,
    format_number,
    format_target,
    setting_words,
)
from hpo.runs.importances import importance_order, importances
from hpo.runs.results import RULES_OF_THUMB, PlannedRun, StudyResult, best_of_rungs
from hpo.runs.study_plan import full_scale_trade_offs
from hpo.runs.verdict import rule_verdicts
from hpo.study.sizes import full_scale_sizes
from storage.records import Outcome, PlanKind, TrialState

VALIDATION = """The bar is the 90 % interval that was forecast for the mean of a few runs; each mark is one launched
run, open if the run missed the target."""
LADDER = """Each point is one trial; at each rung, trials are side by side in the order of the sweep. Triangles are
trials that were stopped before they reached the target and would have needed more epochs than shown; trials stopped
long before it are at the bottom. The band is the 90 % interval for settings tuned as well as the sweep's; the line is
dashed where no batch size was swept."""
SETTING = """Coloured trials reached the target, and darker ones reached it sooner; triangles were stopped, crosses
diverged. Rings mark the best settings of each rung, and the line is their law with its 90 % band."""
RESPONSE = """Filled circles reached the target; triangles were stopped at the epochs shown, and crosses diverged."""
LADDER_OF_METRIC = """Each point is one trial; at each rung, trials are side by side in the order of the sweep. Filled
triangles trained to the end of the budget; open triangles were stopped earlier and show their last value. The band is
the 90 % interval for settings tuned as well as the sweep's; the line is dashed where no batch size was swept."""
SETTING_OF_METRIC = """Filled triangles trained to the end of the budget, open triangles were stopped earlier, and
crosses diverged. Rings mark the best settings of each rung, and the line is their law with its 90 % band."""
RESPONSE_OF_METRIC = """Filled triangles trained to the end of the budget, open triangles were stopped earlier and show
their last value, and crosses diverged."""
LADDER_OF_SIZES = """Each point is one trial, with a panel for each training length and a colour for each model; faint
points were stopped early. Lines are the laws with their 90 % bands, for settings as good as the best; the dashed line
is beyond everything that was trained."""
SETTING_OF_SIZES = """There is a panel for each training length and a colour for each model; faint trials were stopped
early. Lines are the best value by the law with its 90 % band; the dashed line is beyond everything that was trained."""
DESIGNS = """This figure shows the width of the 90 % interval at full scale (the ratio of its high end to its low end)
against the cost of the training runs, according to the laws fitted here, for fewer and more runs than in this
study."""
IMPORTANCES = """fANOVA gives the share of the variance in epochs that a setting explains alone; PED-ANOVA measures how
much its values in the best trials differ from its values in all trials. A trial that missed the target counts as long
as the longest trial of its batch size. A few dozen trials give a ranking, not exact values."""
SLICES = """This is Optuna's slice plot; darker points came later in the sweep. A trial that missed the target is drawn
at the epochs of the longest trial of its batch size."""
CONTOURS = """This is Optuna's contour plot of the two most important settings; darker is better. A trial that missed
the target counts with the epochs of the longest trial of its batch size."""
TRADE_OFFS = """No other plan that the evidence supports beats these in time, accelerator hours and epochs (or the
metric of a fixed budget) at once; lighter points have a larger batch size. The cost includes repeating runs that may be
lost."""
CURVES = """Each line is one trial; trials that were stopped early or diverged are faint. Click a batch size to hide it,
or double-click to show only that batch size."""
CALIBRATION = """Each point is one launched plan of this study; the bars are 90 % intervals, and nine in ten should
cross the diagonal."""


SAMPLE_IMAGES = """Fields are shown in grey, from lowest to highest value; labels and prediction are shown in the
colours of the classes."""


@dataclass(frozen=True)
class PageTable:
    """A table of strings."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PagePicture:
    """A figure with its heading and a caption on how to read it."""

    key: str
    heading: str
    caption: str
    figure: go.Figure


def headline(result: StudyResult) -> str:
    """Return the forecast in one sentence; "" without a forecast."""
    if result.forecast is None:
        return ""
    numbers = result.forecast.numbers
    ends, best = numbers.epochs_to_target, numbers.best
    settings = ", ".join(
        f"{setting_words(name)} {format_interval(each)}" for name, each in numbers.settings.items()
    )
    said = (
        f"{format_number(ends.median)} epochs to {target_of(result)} "
        f"(90 % interval {format_number(ends.low)} to {format_number(ends.high)})"
        if best is None
        else f"{best.metric} {best.interval.median:.4g} within {format_number(best.epochs)} epochs "
        f"(90 % interval {best.interval.low:.4g} to {best.interval.high:.4g})"
    )
    return (
        f"At global batch size {format_number(numbers.global_batch_size)}: {said}"
        f"{' with ' + settings if settings else ''}."
    )


def target_of(result: StudyResult) -> str:
    """Return the study's target: ``top1 ≥ 0.96``."""
    return format_target(result.study.metric, result.study.threshold, result.study.higher_is_better)


def progress(result: StudyResult) -> str:
    """Return the number of trials, by how they ended."""
    counts = Counter(trial.state for trial in result.trials)
    parts = [f"{counts[state]} {state}" for state in TrialState if counts[state]]
    raced = f" and {len(result.raced)} of a race" if result.raced else ""
    imported = f", {len(result.imported)} imported" if result.imported else ""
    own = len(result.swept) - len(result.imported)
    budget = result.spec.budget
    asked = "" if budget.ends_by_itself else f" of {budget.trials}"
    counted = f"{own}{asked} trials{raced}{imported}" + (f": {', '.join(parts)}" if parts else "")
    return ". ".join([counted, *(str(each).capitalize() for each in result.keeping)])


def runs_table(result: StudyResult) -> PageTable | None:
    """Return a table of forecast and observed values, for the plan and the rules of thumb; None without a plan."""
    if not result.runs:
        return None
    scaled = result.spec.search.scaled
    columns = (
        "settings from",
        "batch size",
        "workers",
        *(setting_words(name) for name in scaled),
        f"{result.spec.question.unit} forecast",
        f"{result.spec.question.unit} observed",
        "each run",
        "inside the interval",
    )
    return PageTable(
        columns,
        tuple(
            (
                KIND_NAMES[run.plan.kind],
                format_number(run.plan.global_batch_size),
                format_number(run.plan.workers),
                *(format_number(run.plan.job.settings.value(name)) for name in scaled),
                _forecast(run),
                _observed(run),
                _each(run),
                _inside(run),
            )
            for run in result.runs
        ),
    )


def _forecast(run: PlannedRun) -> str:
    if run.question.fixed:
        return format_metric_interval(run.plan.best.interval) if run.plan.best else "–"
    return format_interval(run.plan.epochs) if run.plan.epochs else "–"


def rungs_table(result: StudyResult) -> PageTable:
    """Return a table of the rungs: how the trials ended, and the best settings of those that reached the target."""
    names, question = result.spec.search.names, result.spec.question
    shown = [state for state in TrialState if any(trial.state is state for trial in result.trials)]
    columns = (
        *result.spec.sizes,
        "batch size",
        "trials",
        *map(str, shown),
        question.answer if question.fixed else "best epochs",
        "seeds",
        *(f"best {setting_words(name)}" for name in names),
    )
    rows = []
    by_sizes = result.by_sizes()
    for point, batch in itertools.product(by_sizes, result.spec.ladder):
        trials = [each for each in by_sizes[point] if each.global_batch_size == batch]
        if not trials and point == full_scale_sizes(result.spec) != ():
            continue  # at the full scale there are only the trials of a race, at another batch size
        counts = Counter(trial.state for trial in trials)
        each = best_of_rungs(trials, [batch], question).get(batch)
        rows.append(
            (
                *(format_number(size) for _, size in point),
                format_number(batch),
                format_number(counts.total()),
                *(format_number(counts[state]) for state in shown),
                "–"
                if each is None
                else format_answer(question, each.need)
                if question.fixed
                else format_number(each.need),
                format_number(each.runs) if each else "–",
                *(format_number(each.settings.value(name)) if each else "–" for name in names),
            )
        )
    return PageTable(columns, tuple(rows))


def verdict(result: StudyResult) -> str:
    """Say how well the forecast matched the launched runs, alone and against rules of thumb; "" before any launch."""
    run = result.plan
    if run is None or not run.outcomes:
        return ""
    fixed = run.question.fixed
    observed = run.observed_best if fixed else run.observed_epochs
    if observed is None:
        came = "reached the end of the budget" if fixed else "reached the target"
        said = f"Of {len(run.outcomes)} launched runs, {len(run.needs)} {came}."
    else:
        place = {"yes": "inside", "no": "outside"}.get(_inside(run), "beside")
        took = (
            f"came to {run.question.unit} {observed:.4g}"
            if fixed
            else f"took {format_number(observed)} epochs"
        )
        said = f"The forecast's plan {took}, {place} its 90 % interval."
    rules = [
        each
        for each in result.runs
        if each.plan.kind in RULES_OF_THUMB
        and each.plan.global_batch_size == run.plan.global_batch_size
    ]
    return " ".join(
        [said, *(f"{line[0].upper()}{line[1:]}." for line in rule_verdicts(run, rules))]
    )


def pictures(view: StudyView) -> Iterator[PagePicture]:
    """Yield the figures of a study in reading order."""
    result, law = view.result, view.posterior
    ended = any(trial.state.finished for trial in result.trials)
    varied = result.spec.search.names if ended else ()
    if result.runs:
        yield PagePicture(
            "validation", "Forecast and observed", VALIDATION, figures.validation(result)
        )
    shown = run_with_images(result)
    if shown is not None and shown[2].get("panels"):
        yield PagePicture(
            "sample-images",
            str(shown[2].get("title", "Predictions of the model")),
            f"{images_caption(*shown)} {SAMPLE_IMAGES}",
            figures.sample_images(shown[2]),
        )
    question = result.spec.question
    over = "sizes" if result.spec.sizes else "batch size"
    answer, ladder, setting, response = (
        (question.answer.capitalize(), LADDER_OF_METRIC, SETTING_OF_METRIC, RESPONSE_OF_METRIC)
        if question.fixed
        else ("Epochs to target", LADDER, SETTING, RESPONSE)
    )
    if result.spec.sizes:
        ladder, setting = LADDER_OF_SIZES, SETTING_OF_SIZES
    yield PagePicture("ladder", f"{answer} against {over}", ladder, figures.ladder(result, law))
    if rows := weighed(result, law):
        yield PagePicture(
            "trade-offs",
            "Time, cost and epochs",
            TRADE_OFFS,
            figures.trade_offs(rows, f"{result.study.name}: trade-offs"),
        )
    for name in varied:
        yield PagePicture(
            f"batch-{name}",
            f"{setting_words(name).capitalize()} against {over}",
            setting,
            figures.setting_against_batch(result, name, law),
        )
    for name in varied:
        yield PagePicture(
            f"response-{name}",
            f"{answer if question.fixed else 'Epochs'} against {setting_words(name)}",
            response,
            figures.response(result, name),
        )
    yield from _designs(result)
    if varied:
        yield from _importances(result)
    if len(view.convergence):
        drawn, trials = len(shown_curve_trials(result.trials)), len(result.trials)
        of = f" The quickest {drawn:,} of {trials:,} trials are drawn." if drawn < trials else ""
        yield PagePicture(
            "curves",
            "Learning curves",
            CURVES + of,
            figures.learning_curves(result, view.convergence),
        )
    if sum(row.predicted_epochs_median is not None for row in view.calibration) > 1:
        yield PagePicture(
            "calibration",
            "Forecasts against outcomes",
            CALIBRATION,
            figures.calibration(view.calibration),
        )


def _designs(result: StudyResult) -> Iterator[PagePicture]:
    """Yield the value of more training runs; nothing without fitted laws and a forecast for the full scale."""
    if result.forecast is None or result.forecast.posterior is None:
        return
    with contextlib.suppress(EvidenceError):
        found = designs(result, result.forecast)
        yield PagePicture(
            "designs",
            "What more training runs would gain",
            DESIGNS,
            figures.cost_against_interval(result, found),
        )


def weighed(result: StudyResult, posterior: Posterior | None) -> list[dict[str, Any]]:
    """Return the Pareto front of the study's full-scale run on its machine; empty if the training speed is unknown."""
    made = result.forecast
    if made is None or posterior is None:
        return []
    made = dataclasses.replace(
        made, posterior=posterior, source=dataclasses.replace(result, forecast=None)
    )
    return [each.to_dict() for each in full_scale_trade_offs(made)]


def _importances(result: StudyResult) -> Iterator[PagePicture]:
    """Yield figures of setting importance; none if too few trials have ended or Optuna is not installed."""
    with contextlib.suppress(ExportError):
        found = importances(result)
        order = importance_order(found)
        if not order:
            return
        yield PagePicture(
            "importances", "Which settings matter", IMPORTANCES, figures.importances(result, found)
        )
        what = result.spec.question.answer.capitalize() if result.spec.question.fixed else "Epochs"
        yield PagePicture(
            "slices", f"{what} against each setting", SLICES, figures.slice_plot(result)
        )
        if len(order) > 1:
            yield PagePicture(
                "contours",
                f"{what} over {setting_words(order[0])} and {setting_words(order[1])}",
                CONTOURS,
                figures.contour(result, order[0], order[1]),
            )


def run_with_images(result: StudyResult) -> tuple[PlannedRun, Outcome, Mapping[str, Any]] | None:
    """Return the newest launched run with sample images, preferably of the forecast's plan; None if there is none."""
    found = [
        (run, outcome, run.sample_images[outcome.id])
        for run in result.runs
        for outcome in run.outcomes
        if outcome.id in run.sample_images
    ]
    own = [each for each in found if each[0].plan.kind is PlanKind.FORECAST]
    return (own or found)[-1] if found else None


def images_caption(run: PlannedRun, outcome: Outcome, shown: Mapping[str, Any]) -> str:
    """Return a caption that says which model made the sample images, with its metric and the target."""
    model = (
        f"Settings from {KIND_NAMES[run.plan.kind]}, global batch size {format_number(run.plan.global_batch_size)}, "
        f"seed {outcome.seed}"
    )
    parts = [
        f"{run.plan.job.target.metric} {format_number(outcome.best_metric) or 'not measured'}",
        *(
            f"{name} {format_number(float(value))}"
            for name, value in shown.get("references", {}).items()
        ),
    ]
    return f"{model}: {'; '.join(parts)}."


def _observed(run: PlannedRun) -> str:
    if run.question.fixed:
        return "–" if run.observed_best is None else f"{run.observed_best:.4g}"
    return format_number(run.observed_epochs) if run.observed_epochs is not None else "–"


def _each(run: PlannedRun) -> str:
    return (
        ", ".join(
            outcome_end(each)
            if (need := run.question.need(each)) is None
            else format_answer(run.question, need)
            if run.question.fixed
            else format_number(need)
            for each in run.outcomes
        )
        or "not launched"
    )


def _inside(run: PlannedRun) -> str:
    return {True: "yes", False: "no", None: "–"}[run.inside]
