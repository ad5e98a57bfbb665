"""Calibration: every launched plan together with the results of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from sqlalchemy import Connection, Row, select

from storage.records import CalibrationRow, PlanKind, TrialState
from storage.schema.tables import outcomes, plans, studies
from storage.statements import damage

_TELLING = (TrialState.REACHED, TrialState.CENSORED, TrialState.DIVERGED)


def rows(connection: Connection, study_id: int | None) -> list[CalibrationRow]:
    """Return one row for each plan with outcomes, oldest first, except imported plans, which have no forecast."""
    return list(_rows(connection, study_id))


def is_inside(
    low: float | None, high: float | None, runs: Sequence[tuple[TrialState, float | None, float]]
) -> bool | None:
    """Return whether the runs' mean epochs to target lie in [low, high]; None if that is unknown.

    ``runs`` holds the state, the epochs to target and the epochs trained of each run. Crashed and pruned runs are
    ignored. A diverged run never reaches the target, so no finite interval contains the mean. A censored run needs more
    epochs than it was given, so only a lower bound on the mean is known.
    """
    telling = [run for run in runs if run[0] in _TELLING]
    if low is None or high is None or not telling:
        return None
    states = {state for state, _, _ in telling}
    if TrialState.DIVERGED in states:
        return False
    mean = fmean(epochs if to_target is None else to_target for _, to_target, epochs in telling)
    if TrialState.CENSORED in states:
        return False if mean >= high else None
    return low <= mean <= high


def _rows(connection: Connection, study_id: int | None) -> Iterator[CalibrationRow]:
    statement = (
        select(
            plans.c.id,
            plans.c.kind,
            plans.c.trust,
            plans.c.machine,
            plans.c.global_batch_size,
            plans.c.epochs_median,
            plans.c.epochs_low,
            plans.c.epochs_high,
            plans.c.seconds_median,
            plans.c.seconds_low,
            plans.c.seconds_high,
            studies.c.name,
            outcomes.c.state,
            outcomes.c.epochs_to_target,
            outcomes.c.epochs,
            outcomes.c.seconds,
        )
        .select_from(outcomes.join(plans).join(studies))
        .where(plans.c.kind != PlanKind.IMPORTED)
    )
    statement = statement.order_by(plans.c.id, outcomes.c.id)
    if study_id is not None:
        statement = statement.where(plans.c.study_id == study_id)
    try:
        yield from [*_of_plans(connection.execute(statement).all())]
        return
    except damage.CAUSES:
        found = list(
            dict.fromkeys(connection.execute(statement.with_only_columns(plans.c.id)).scalars())
        )
    for plan_id in found:
        try:
            yield from [
                *_of_plans(connection.execute(statement.where(plans.c.id == plan_id)).all())
            ]
        except damage.CAUSES as error:
            damage.left_out(f"plan {plan_id} or one of its outcomes", error)


def _of_plans(found: Sequence[Row[*tuple[Any, ...]]]) -> Iterator[CalibrationRow]:
    for table in (plans, outcomes, studies):
        damage.check_kinds(table, found)
    for _, runs in groupby(found, key=lambda row: row.id):
        yield _row(list(runs))


def _row(runs: Sequence[Row[*tuple[Any, ...]]]) -> CalibrationRow:
    plan = runs[0]
    # an interval of zero width comes from a fixed training budget, not from a forecast of the epochs
    fixed = plan.epochs_low is not None and plan.epochs_low == plan.epochs_high
    low, high = (None, None) if fixed else (plan.epochs_low, plan.epochs_high)
    reached = [run for run in runs if run.state is TrialState.REACHED]
    seconds = fmean(run.seconds for run in reached) if reached else None
    return CalibrationRow(
        plan_id=plan.id,
        study=plan.name,
        kind=plan.kind,
        trust=plan.trust,
        machine=plan.machine,
        global_batch_size=plan.global_batch_size,
        predicted_epochs_median=None if fixed else plan.epochs_median,
        predicted_epochs_low=low,
        predicted_epochs_high=high,
        observed_epochs_mean=fmean(run.epochs_to_target for run in reached) if reached else None,
        runs=len(runs),
        reached=len(reached),
        inside=is_inside(
            low,
            high,
            [(run.state, run.epochs_to_target, run.epochs) for run in runs],
        ),
        predicted_seconds_median=plan.seconds_median,
        predicted_seconds_low=plan.seconds_low,
        predicted_seconds_high=plan.seconds_high,
        observed_seconds_mean=seconds,
        inside_seconds=None
        if seconds is None or plan.seconds_low is None or plan.seconds_high is None
        else plan.seconds_low <= seconds <= plan.seconds_high,
    )
