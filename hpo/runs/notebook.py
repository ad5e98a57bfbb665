"""Shows a study in a notebook: an HTML representation, and its progress while it runs.

It is plain HTML without scripts, style sheets or widgets, so that it looks the same in JupyterLab, VS Code and viewers
of stored notebooks; it uses the notebook's own colours. All names, messages and reasons are escaped.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from hpo.extrapolation.inference.intervals import BestMetric, Interval
from hpo.runs.formatting import (
    KIND_NAMES,
    format_interval,
    format_metric_interval,
    format_number,
    format_target,
    setting_words,
)
from hpo.runs.progress import Progress, TimeLeft, ladder_columns, ladder_rows

if TYPE_CHECKING:
    from hpo.planning.plan import Plan
    from hpo.study.spec import StudySpec
    from storage.records import Trial
    from trainers.report import ConvergencePoint

DRAWN_EVERY = 0.25
"""Minimum number of seconds between two redraws of the progress."""


def study_html(document: Mapping[str, Any], settings: Sequence[str]) -> str:
    """Return a study as HTML, from its document (:meth:`StudyResult.to_dict`): its state, its ladder and its forecast.

    ``settings`` are the names of the tuned settings; their best values are shown for each rung.
    """
    study, trials = document["study"], document["trials"]
    sizes = [*study.get("sizes", ())]
    aim = study["target"]
    ends = aim["threshold"] is not None
    ended = ", ".join(
        f"{count} {state}" for state, count in trials.items() if count and state != "total"
    )
    parts = [
        _line(
            f"<b>{escape(study['name'])}</b>: {escape(study['workload'])} to "
            f"{escape(format_target(aim['metric'], aim['threshold'], aim['higher_is_better']))}, "
            f"{escape(study['state'])}"
        ),
        _line(escape(f"{trials['total']} trials" + (f": {ended}" if ended else ""))),
        _line(escape(study["message"])) if study["message"] else "",
        _table(
            [
                *sizes,
                "batch size",
                "trials",
                "reached" if ends else "to the end",
                "best epochs" if ends else f"best {aim['metric']}",
                *(f"best {setting_words(name)}" for name in settings),
            ],
            [
                [
                    *(format_number(rung["sizes"].get(name)) for name in sizes),
                    format_number(rung["global_batch_size"]),
                    str(rung["trials"]),
                    str(rung["reached"] if ends else rung["to_the_end"]),
                    format_number(rung["best_epochs_to_target"] if ends else rung["best_metric"]),
                    *(format_number((rung["best_settings"] or {}).get(name)) for name in settings),
                ]
                for rung in document["rungs"]
            ],
        ),
        forecast_html(document["forecast"]) if document["forecast"] else "",
    ]
    return "".join(part for part in parts if part)


def forecast_html(document: Mapping[str, Any]) -> str:
    """Return a forecast as HTML, from its document: epochs and settings with their 90 % intervals, and the level of
    trust.
    """
    best = document.get("best")
    if best is None:
        rows = [["epochs to target", format_interval(Interval(**document["epochs_to_target"]))]]
    else:
        found = BestMetric.from_dict(best)
        rows = [
            [f"{found.metric} in {found.epochs:g} epochs", format_metric_interval(found.interval)]
        ]
    rows += [
        [setting_words(name), format_interval(Interval(**ends))]
        for name, ends in document["settings"].items()
    ]
    rows.append(["trust", document["trust"]])
    batch = format_number(document["global_batch_size"])
    return _table([f"forecast at batch size {batch}", "median and 90 % interval"], rows) + _line(
        escape(document["reason"])
    )


class NotebookProgress(Progress):
    """Shows a sweep, a race or a launched run in the output of a notebook cell: a bar, the ladder and the time left."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._left = TimeLeft()
        self._bar = self._ladder = self._text = ""
        self._drawn = time.monotonic()
        self._shown = display(HTML(_line("starting")), display_id=True)

    def message(self, text: str) -> None:
        """Show one line below the ladder."""
        self._text = text
        self._draw(now=True)

    def sweep(
        self, spec: StudySpec, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Redraw the ladder."""
        ended = sum(trial.state.finished for trial in trials)
        left = self._left.of(ended, spec.budget.trials)
        self._ladder = _table(ladder_columns(spec), ladder_rows(spec, trials, running))
        self._text = spec.budget.counted(ended)
        if not spec.budget.ends_by_itself:
            self._bar = f'<progress value="{ended}" max="{spec.budget.trials}" style="width: 24em"></progress>'
            self._text += f", {left}"
        self._draw(now=ended == spec.budget.trials)

    def race(self, trials: Sequence[Trial], running: Mapping[int, Mapping[str, Any]]) -> None:
        """Show the progress of the race."""
        ended = sum(trial.state.finished for trial in trials)
        self._text = f"race: {ended} of {len(trials)} trials have ended"
        self._draw(now=ended == len(trials))

    def run(self, plan: Plan, seed: int, point: ConvergencePoint) -> None:
        """Show the progress of a launched run."""
        self._text = (
            f"{KIND_NAMES[plan.kind]} at {format_number(plan.global_batch_size)} "
            f"on {plan.workers} workers, seed {seed}: "
            f"epoch {point.epochs:.1f}, {plan.job.target.metric} {point.metric:.3f}"
        )
        self._draw()

    def _draw(self, *, now: bool = False) -> None:
        if self._shown is None or not (now or time.monotonic() - self._drawn >= DRAWN_EVERY):
            return
        self._drawn = time.monotonic()
        self._shown.update(self._html(self._bar + self._ladder + _line(escape(self._text))))


def notebook_progress() -> Progress:
    """Return the default progress display: HTML in a notebook cell, and nothing elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # only a kernel's IPython shell has this attribute; a terminal would print the markup
    if getattr(shell, "kernel", None) is None:
        return Progress()
    # Optuna loads tqdm, which warns once that its progress bars need widgets, but none is drawn here
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")
        importlib.import_module("tqdm.auto")
    return NotebookProgress()


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _line(markup: str) -> str:
    return f"<div>{markup}</div>"
