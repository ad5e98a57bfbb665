"""Results on stdout, as tables and sentences."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.text import Text

from hpo.cli.output.plan_text import trade_offs_table
from hpo.cli.output.style import new_console, new_list, new_table
from hpo.extrapolation.forecast import Forecast
from hpo.extrapolation.inference.intervals import Interval
from hpo.runs.formatting import (
    KIND_NAMES,
    forecast_remarks,
    format_answer,
    format_interval,
    format_metric_interval,
    format_number,
    format_target,
)
from hpo.runs.importances import Importances, importance_order
from hpo.runs.losses import group_by_cause
from hpo.runs.results import PlannedRun, StudyResult, best_of_rungs, trial_ended_because
from hpo.runs.verdict import mean_epochs_of_runs, rule_verdicts
from hpo.study.sizes import Point, points, sizes_of_settings
from storage.figures import TRIAL_FIELDS
from storage.records import CalibrationRow, Study, Trial

if TYPE_CHECKING:
    from rich.table import Table

    from hpo.planning.launchers.launch import LaunchReport
    from hpo.planning.plan import Plan

YES_OR_NO = {None: "", True: "yes", False: "no"}


def show_study(result: StudyResult, found: Sequence[Importances] = ()) -> None:
    """Print the rungs, setting importances, the full-scale forecast, and its validation against rules of thumb."""
    console = new_console()
    console.print(_rungs(result))
    for each in result.keeping:
        console.print(str(each), markup=False)
    if result.raced:
        console.print(_raced(result))
    if found:
        console.print(_importances(found))
    if result.study.message:
        console.print(
            f"{result.study.name} is {result.study.state}: {result.study.message}", markup=False
        )
    if result.forecast:
        console.print(_forecasts([result.forecast.numbers], f"forecast for {result.study.name}"))
        console.print(f"trust {result.forecast.trust}: {result.forecast.reason}", markup=False)
        console.print(_prospects(result.forecast.numbers))
    if result.launched:
        console.print(_launched(result))
        for line in [
            *(rule_verdicts(result.plan, result.baselines) if result.plan else []),
            *_references(result),
        ]:
            console.print(line, markup=False)


def show_forecasts(
    forecasts: Sequence[Forecast], trade_offs: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Print forecasts at several batch sizes, the reasons for their trust levels, and the trade-offs across sizes."""
    console = new_console()
    console.print(_forecasts(forecasts, "forecast"))
    for each in forecasts:
        console.print(
            f"at {each.global_batch_size:g}, trust {each.trust}: {each.reason}", markup=False
        )
        console.print(_prospects(each))
    if trade_offs:
        console.print(trade_offs_table(trade_offs))


def show_studies(studies: Sequence[Study]) -> None:
    """Print a table of studies."""
    table = new_table("studies", "name", "state", "workload", "target", "created", "message")
    for study in studies:
        table.add_row(
            Text(study.name),
            str(study.state),
            study.workload,
            format_target(study.metric, study.threshold, study.higher_is_better),
            f"{study.created_at:%Y-%m-%d %H:%M}",
            Text(study.message),
        )
    new_console().print(table)


def trial_rows(result: StudyResult) -> list[dict[str, Any]]:
    """Return the trials as flat rows: identity, settings, results."""
    further = sorted({name for trial in result.trials for name in trial.measures or ()})
    return [
        {
            "number": trial.number,
            "state": str(trial.state),
            "global_batch_size": trial.global_batch_size,
            "seed": trial.seed,
            **trial.settings,
            **{each.name: getattr(trial, each.name) for each in TRIAL_FIELDS},
            **{name: (trial.measures or {}).get(name) for name in further},
            "reason": trial_ended_because(result, trial),
        }
        for trial in result.trials
    ]


def write_csv(rows: Sequence[Mapping[str, Any]], out: TextIO) -> None:
    """Write rows as CSV with a header; strings are put on one line and cannot act as spreadsheet formulas."""
    writer = csv.DictWriter(
        out, fieldnames=list(rows[0]) if rows else ["number"], lineterminator="\n"
    )
    # a trial's client names its further metrics
    writer.writerow({name: _no_formula(_one_line(name)) for name in writer.fieldnames})
    writer.writerows(
        {name: _no_formula(_one_line(value)) for name, value in row.items()} for row in rows
    )


def _one_line(value: Any) -> Any:
    """Return the value, with the lines of a string joined by " | "."""
    return re.sub(r"\s*[\r\n]\s*", " | ", value.strip("\r\n")) if isinstance(value, str) else value


def _no_formula(value: Any) -> Any:
    """Return the value; a string that a spreadsheet would evaluate gets a leading apostrophe (OWASP, CSV injection)."""
    computed = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if computed else value


def show_trials(result: StudyResult) -> None:
    """Print the trials with the settings that vary, then each cause of failure once, with the program's last output."""
    varied, fixed = result.spec.varied, result.spec.question.fixed
    table = new_table(
        f"trials of {result.study.name}",
        "trial",
        "batch size",
        "seed",
        *varied,
        "state",
        "epochs",
        *([result.study.metric] if fixed else []),
        "reason",
    )
    for trial in result.trials:
        table.add_row(
            str(trial.number),
            str(trial.global_batch_size),
            str(trial.seed),
            *(format_number(trial.settings.get(name)) for name in varied),
            str(trial.state),
            format_number(trial.epochs_to_target or trial.epochs),
            *([_metric(trial)] if fixed else []),
            Text(_first(trial_ended_because(result, trial))),
        )
    console = new_console()
    console.print(table)
    told = [trial for trial in result.trials if "\n" in trial.reason.strip()]
    for trials in group_by_cause(told):
        numbers = ", ".join(str(trial.number) for trial in trials)
        count = f"{len(trials)} trials ({numbers})" if len(trials) > 1 else f"trial {numbers}"
        console.print(f"{count}: {trials[0].reason.strip()}", markup=False)


def _metric(trial: Trial) -> str:
    value = trial.final_metric if trial.best_metric is None else trial.best_metric
    return "" if value is None else f"{value:.4g}"


def forecast_epochs(plan: Plan) -> str:
    """Return the epochs forecast for a plan; "" for a fixed budget, which is not a forecast."""
    return "" if plan.job.question.fixed else format_interval(plan.epochs)


def _first(reason: str) -> str:
    """Return the first line of a reason, without the name of the log quoted after it."""
    return reason.strip().partition("\n")[0].partition("; the end of ")[0]


def show_launched(plan: Plan, runs: Sequence[LaunchReport]) -> None:
    """Print the launched runs of a plan beside its forecast and the baselines for their models."""
    table = new_table(
        f"plan {plan.id} at {plan.global_batch_size}",
        "outcome",
        plan.job.question.unit,
        "forecast",
        "seconds",
        "samples/s",
        "restarts",
        "reason",
    )
    for run in runs:
        outcome = run.outcome
        table.add_row(
            outcome.state,
            f"{outcome.best_metric:.4g}"
            if plan.job.question.fixed
            else format_number(outcome.epochs_to_target or outcome.epochs),
            format_metric_interval(plan.best.interval) if plan.best else forecast_epochs(plan),
            f"{outcome.seconds:.1f}",
            format_number(run.samples_per_second),
            str(run.restarts or ""),
            Text(outcome.reason),
        )
    console = new_console()
    console.print(table)
    for line in _rates(plan, runs):
        console.print(line, markup=False)
    metric = plan.job.target.metric
    for run in runs:
        if run.references:
            references = "; ".join(
                f"{name} {format_number(float(value))}" for name, value in run.references.items()
            )
            console.print(
                f"{metric} {format_number(run.outcome.best_metric)}; {references}", markup=False
            )


def _rates(plan: Plan, runs: Sequence[LaunchReport]) -> Iterator[str]:
    """Yield notes on time that counts in the plan's rate but not in the measured rate of a launched run."""
    timed = [run for run in runs if run.samples_per_second and run.outcome.seconds > 0]
    if not timed:
        return
    whole = statistics.median(
        run.outcome.steps * plan.global_batch_size / run.outcome.seconds for run in timed
    )
    told = ((plan.details or {}).get("rate") or {}).get("samples_per_second")
    yield (
        "samples/s is the median between evaluations; "
        f"over the whole run, including startup, it was {format_number(whole)}"
        + (
            f", where the plan forecast {format_interval(Interval(**told))}, including startup"
            if told
            else ""
        )
    )


def launched_run_to_dict(run: LaunchReport) -> dict[str, Any]:
    """Return a launched run as plain values: its outcome, and the values of the launch itself."""
    return {
        **run.outcome.to_dict(),
        "restarts": run.restarts,
        "workers": run.workers,
        "nodes": run.nodes,
        "samples_per_second": run.samples_per_second,
        "references": run.references or None,
    }


def calibration_row(row: CalibrationRow) -> dict[str, Any]:
    """Return a calibration row as plain values."""
    plain = dataclasses.asdict(row)
    return {
        name: str(value) if name in {"kind", "trust"} and value is not None else value
        for name, value in plain.items()
    }


def show_calibration(rows: Sequence[CalibrationRow]) -> None:
    """Print forecasts beside the outcomes of all launched plans, and how many intervals contained the outcome."""
    table = new_table(
        "calibration",
        "plan",
        "study",
        "settings from",
        "batch size",
        "epochs forecast",
        "observed",
        "runs",
        "inside",
        "seconds forecast",
        "observed",
        "inside",
    )
    for row in rows:
        table.add_row(
            str(row.plan_id),
            Text(row.study),
            KIND_NAMES[row.kind],
            str(row.global_batch_size),
            _predicted(
                row.predicted_epochs_median, row.predicted_epochs_low, row.predicted_epochs_high
            ),
            format_number(row.observed_epochs_mean),
            f"{row.reached}/{row.runs}",
            YES_OR_NO[row.inside],
            _predicted(
                row.predicted_seconds_median, row.predicted_seconds_low, row.predicted_seconds_high
            ),
            format_number(row.observed_seconds_mean),
            YES_OR_NO[row.inside_seconds],
        )
    console = new_console()
    console.print(table)
    for what, found in (
        ("epochs", [row.inside for row in rows]),
        ("time", [row.inside_seconds for row in rows]),
    ):
        known = [each for each in found if each is not None]
        if known:
            console.print(
                f"{sum(known)} of {len(known)} intervals of {what} contained the outcome; 90 % of them should"
            )


def _predicted(median: float | None, low: float | None, high: float | None) -> str:
    return (
        ""
        if median is None or low is None or high is None
        else format_interval(Interval(median, low, high))
    )


def _rungs(result: StudyResult) -> Table:
    scaled = result.spec.search.scaled
    study = result.study
    question = result.spec.question
    title = f"{study.name}: {format_target(study.metric, study.threshold, study.higher_is_better)}"
    if question.fixed:
        title += f" within {question.epochs:g} epochs"
    table = new_table(
        title,
        *result.spec.sizes,
        "batch size",
        "trials",
        "to the end" if question.fixed else "reached",
        question.answer if question.fixed else "best epochs",
        "seeds",
        *(f"best {name}" for name in scaled),
    )
    by_sizes: dict[Point, list[Trial]] = {point: [] for point in points(result.spec)}
    for trial in result.trials:
        by_sizes.setdefault(sizes_of_settings(result.spec, trial.settings), []).append(trial)
    for point, batch in itertools.product(by_sizes, result.batches):
        rung = [trial for trial in by_sizes[point] if trial.global_batch_size == batch]
        best = best_of_rungs(rung, [batch], question).get(batch)
        table.add_row(
            *(str(size) for _, size in point),
            str(batch),
            str(len(rung)),
            str(sum(question.need(t) is not None for t in rung)),
            "" if best is None else format_answer(question, best.need),
            str(best.runs) if best else "",
            *(format_number(best.settings.value(name)) if best else "" for name in scaled),
        )
    return table


def _raced(result: StudyResult) -> Table:
    scaled = result.spec.search.scaled
    table = new_table("race", "batch size", *scaled, "seed", "ended", "epochs")
    for trial in result.raced:
        table.add_row(
            str(trial.global_batch_size),
            *(format_number(trial.settings.get(name)) for name in scaled),
            str(trial.seed),
            str(trial.state),
            format_number(trial.epochs_to_target or trial.epochs),
        )
    return table


def _importances(found: Sequence[Importances]) -> Table:
    """Return a table with a row for each setting, the most important first, and a column for each batch size."""
    table = new_table(
        "which settings matter (fANOVA | PED-ANOVA)",
        "setting",
        *(
            "all batch sizes" if each.global_batch_size is None else str(each.global_batch_size)
            for each in found
        ),
    )
    for name in importance_order(found):
        table.add_row(
            name,
            *(
                f"{each.fanova[name]:.2f} | {each.ped_anova[name]:.2f}"
                if name in each.fanova
                else ""
                for each in found
            ),
        )
    table.add_row("trainings", *(str(each.trials) for each in found))
    return table


def _forecasts(forecasts: Sequence[Forecast], title: str) -> Table:
    names = sorted({name for each in forecasts for name in each.settings})
    best = next((each.best for each in forecasts if each.best), None)
    answer = "epochs to target" if best is None else f"{best.metric} in {best.epochs:g} epochs"
    table = new_table(f"{title} (median and 90 % interval)", "batch size", *names, answer, "trust")
    for each in forecasts:
        table.add_row(
            f"{each.global_batch_size:g}",
            *(format_interval(each.settings[name]) for name in names),
            format_metric_interval(each.best.interval)
            if each.best
            else format_interval(each.epochs_to_target),
            each.trust,
        )
    return table


def _prospects(forecast: Forecast) -> Table:
    """Return a table of further remarks on a forecast, one per line."""
    table = new_list()
    for name, text in forecast_remarks(forecast):
        table.add_row(Text(name), Text(text))
    return table


def _launched(result: StudyResult) -> Table:
    scaled = result.spec.search.scaled
    table = new_table(
        "runs of its plans",
        "settings from",
        "batch size",
        "workers",
        *scaled,
        f"{result.study.metric} forecast" if result.spec.question.fixed else "epochs forecast",
        "mean ± standard error",
        "each seed",
        "inside",
    )
    for run in result.launched:
        plan = run.plan
        table.add_row(
            KIND_NAMES[plan.kind],
            str(plan.global_batch_size),
            str(plan.workers),
            *(format_number(plan.job.settings.value(name)) for name in scaled),
            format_metric_interval(plan.best.interval) if plan.best else forecast_epochs(plan),
            mean.told() if (mean := mean_epochs_of_runs(run)) else "",
            _each(run),
            YES_OR_NO[run.inside],
        )
    return table


def _references(result: StudyResult) -> Iterator[str]:
    """Yield the metrics of each launched run beside the baselines of its workload."""
    for run in result.launched:
        for outcome in run.outcomes:
            others = run.references(outcome)
            if others:
                references = "; ".join(
                    f"{name} {format_number(float(value))}" for name, value in others.items()
                )
                yield (
                    f"{KIND_NAMES[run.plan.kind]} at {format_number(run.plan.global_batch_size)}, seed {outcome.seed}: "
                    f"{result.study.metric} {format_number(outcome.best_metric) or 'not measured'}; {references}"
                )


def _each(run: PlannedRun) -> str:
    if run.question.fixed:
        return ", ".join(
            f"{o.state} after {o.epochs:.1f}"
            if run.question.need(o) is None
            else f"{o.best_metric:.4g}"
            for o in run.outcomes
        )
    return ", ".join(
        format_number(o.epochs_to_target)
        if o.epochs_to_target
        else f"{o.state} after {o.epochs:.1f}"
        for o in run.outcomes
    )
