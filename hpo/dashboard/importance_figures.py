"""Figures of setting importance: importances by batch size, and Optuna's slice and contour plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from hpo.dashboard import style
from hpo.errors import EvidenceError
from hpo.runs.exports.optuna_study import BATCH_SIZE, optuna_study
from hpo.runs.formatting import format_number, setting_words
from hpo.runs.importances import LEAST_REACHED, LEAST_TRIALS, Importances, importance_order
from hpo.runs.importances import importances as found_importances
from hpo.runs.results import StudyResult

if TYPE_CHECKING:
    import optuna

LEAST_DRAWN = 2


def importances(result: StudyResult, found: Sequence[Importances] | None = None) -> go.Figure:
    """Plot the importances of the tuned settings by fANOVA and PED-ANOVA, coloured by batch size; grey is all.

    ``found`` is the result of :func:`hpo.importances`, which is computed if not given. Raises
    :class:`ExportError` if Optuna is not installed.
    """
    found = found_importances(result) if found is None else found
    names = importance_order(found)
    figure = make_subplots(
        rows=1,
        cols=2,
        shared_yaxes=True,
        horizontal_spacing=0.06,
        subplot_titles=("fANOVA", "PED-ANOVA"),
    )
    groups = len(found) * max(len(names), 1)
    figure.update_layout(
        template=style.TEMPLATE,
        title_text=style.plain(f"{result.study.name}: importance of the settings"),
        height=max(320, 150 + 16 * groups),
        barmode="group",
        legend={"title_text": "global batch size", "traceorder": "reversed"},
    )
    colours = style.rung_colours(
        [each.global_batch_size for each in found if each.global_batch_size]
    )
    for each in reversed(found):  # plotly draws the bars of a group from the bottom up
        batch = each.global_batch_size
        label = "all" if batch is None else format_number(batch)
        for column, shares in enumerate((each.fanova, each.ped_anova), start=1):
            values = [shares.get(name) for name in names]
            figure.add_bar(
                x=values,
                y=[setting_words(name) for name in names],
                orientation="h",
                name=label,
                legendgroup=label,
                showlegend=column == 1,
                marker={"color": style.MUTED if batch is None else colours[batch]},
                hoverinfo="text",
                hovertext=[
                    "" if value is None else _text(name, value, each)
                    for name, value in zip(names, values, strict=True)
                ],
                row=1,
                col=column,
            )
    figure.update_xaxes(title_text="share", range=[0, 1])
    figure.update_yaxes(autorange="reversed", row=1, col=1)
    if not found:
        style.note(
            figure,
            f"needs {LEAST_TRIALS} finished trials at one batch size, {LEAST_REACHED} of "
            f"which reached the target",
        )
    return figure


def slice_plot(result: StudyResult, global_batch_size: int | None = None) -> go.Figure:
    """Draw Optuna's slice plot: epochs to target against each tuned setting and the batch size, for one rung or all.

    A trial that missed the target is drawn at the epochs of the longest trial of its batch size. Raises
    :class:`ExportError` where Optuna is not installed, and :class:`EvidenceError` for a batch size that no trial has.
    """
    study = _study(result, global_batch_size)
    from optuna.visualization import plot_slice

    figure = _styled(result, "slices", global_batch_size)
    if _enough(result, global_batch_size, figure):
        figure = _styled(
            result,
            "slices",
            global_batch_size,
            plot_slice(study, target_name=result.spec.question.answer),
        )
    return figure


def contour(
    result: StudyResult, first: str, second: str, global_batch_size: int | None = None
) -> go.Figure:
    """Draw Optuna's contour plot: epochs to target over two tuned settings, or one setting and the batch size.

    A trial that missed the target is drawn with the epochs of the longest trial of its batch size. Raises
    :class:`ExportError` where Optuna is not installed, and :class:`EvidenceError` for a setting that the study does not
    tune or a batch size that no trial has.
    """
    known = [*result.spec.varied, *([BATCH_SIZE] if global_batch_size is None else [])]
    for name in (first, second):
        if name not in known or first == second:
            raise EvidenceError(
                f"a contour plot needs two different settings of {', '.join(known)}, but got "
                f"{first!r} and {second!r}"
            )
    study = _study(result, global_batch_size)
    from optuna.visualization import plot_contour

    figure = _styled(result, "contours", global_batch_size)
    if _enough(result, global_batch_size, figure):
        drawn = plot_contour(study, params=[first, second], target_name=result.spec.question.answer)
        figure = _styled(result, "contours", global_batch_size, drawn)
    return figure


def _text(name: str, share: float, of: Importances) -> str:
    where = (
        "over all batch sizes"
        if of.global_batch_size is None
        else f"at global batch size {format_number(of.global_batch_size)}"
    )
    return style.lines(f"{setting_words(name)}: {share:.0%} {where}", f"of {of.trials} trials")


def _study(result: StudyResult, global_batch_size: int | None) -> optuna.Study:
    return optuna_study(
        result.study,
        result.spec,
        result.trials,
        global_batch_size=global_batch_size,
        count_missed=True,
    )


def _enough(result: StudyResult, global_batch_size: int | None, figure: go.Figure) -> bool:
    """Return whether there is something to draw; if not, add a note to the figure."""
    question = result.spec.question
    answered = sum(
        question.need(trial) is not None and global_batch_size in (None, trial.global_batch_size)
        for trial in result.trials
    )
    if answered < LEAST_DRAWN:
        what = "trained to the end of the budget" if question.fixed else "reached the target"
        style.note(figure, f"needs {LEAST_DRAWN} trials that {what}")
    return answered >= LEAST_DRAWN


def _styled(
    result: StudyResult, what: str, batch: int | None, drawn: go.Figure | None = None
) -> go.Figure:
    where = "" if batch is None else f" at global batch size {format_number(batch)}"
    empty = style.figure(f"{result.study.name}: {what}{where}")
    if drawn is None:
        return empty
    return drawn.update_layout(
        template=style.TEMPLATE, title_text=empty.layout.title.text, height=440
    )
