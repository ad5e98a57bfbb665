"""Pages of studies and of trials, and the usage of a study, as statements on one connection.

The contract is in ``storage.store``. A page continues after the last row of the previous page (keyset pagination), not
after a number of rows, so that rows added in the meantime do not shift it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Double,
    Integer,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    true,
)

from storage.errors import InvalidRecord, NotFound, nearest_or_all
from storage.figures import MOST, MOST_SAMPLES, MOST_WHOLE
from storage.records import PlanKind, StudyState, StudySummary, Trial, TrialState, Usage
from storage.schema.column_types import FloatList
from storage.schema.tables import convergence, outcomes, plans, studies, trials
from storage.statements import damage
from storage.statements import studies as study_statements
from storage.statements.trials import trials_of_statement

_ESCAPE = "/"
_UNFINISHED = trials.c.state.in_([TrialState.QUEUED, TrialState.RUNNING])
ORDERS = tuple(
    column.name
    for column in trials.c
    if column.name != "checksum" and not isinstance(column.type, FloatList)
)
"""The allowed sort keys of a page of trials."""


def of_studies(
    connection: Connection,
    *,
    owner: str | None,
    state: StudyState | None,
    search: str | None,
    after: int | None,
    limit: int,
) -> list[StudySummary]:
    """Return studies, newest first, with a summary of their trials but without their files, which may be up to a
    megabyte each.
    """
    given = {
        "owner": owner,
        "state": None if state is None else StudyState(state),
        "search": f"%{_escaped(search)}%" if search else None,
        "after": after,
    }
    wanted = {name: value for name, value in given.items() if value is not None}
    page = _page_of_studies(frozenset(wanted))
    try:
        return _summaries(connection.execute(page, {**wanted, "most": limit}).all())
    except damage.CAUSES:
        return _sound_summaries(connection, wanted, limit)


def _summaries(rows: Sequence[Row[Any]]) -> list[StudySummary]:
    return [_summary(list(of_study)) for _, of_study in groupby(rows, key=lambda row: row.id)]


def _sound_summaries(
    connection: Connection, wanted: Mapping[str, Any], limit: int
) -> list[StudySummary]:
    """Read the page row by row; older studies replace those whose own row is damaged, so that only the last page is
    short.
    """
    found: list[StudySummary] = []
    more = True
    while more and len(found) < limit:
        page, given = _page_of_studies(frozenset(wanted)), {**wanted, "most": limit}
        of_page = connection.execute(page.with_only_columns(page.selected_columns["id"]), given)
        ids = list(dict.fromkeys(of_page.scalars()))
        for study_id in ids:
            one = page.where(page.selected_columns["id"] == study_id)
            try:
                found += _summaries(connection.execute(one, given).all())
            except damage.CAUSES as error:
                damage.left_out(f"the study with id {study_id}", error)
        more = len(ids) == limit
        wanted = {**wanted, "after": ids[-1]} if more else wanted
    return found[:limit]


@functools.cache
def _page_of_studies(given: frozenset[str]) -> Select[Any]:
    """Return the statement for the given filters; it is cached, because building it takes longer than executing it."""
    short = [
        literal("").label("spec") if column.name == "spec" else column
        for column in study_statements.COLUMNS
    ]
    pattern: BindParameter[str] = bindparam("search", type_=Text)
    conditions = {
        "owner": studies.c.owner == bindparam("owner"),
        "state": studies.c.state == bindparam("state"),
        "search": or_(
            studies.c.name.ilike(pattern, escape=_ESCAPE),
            studies.c.workload.ilike(pattern, escape=_ESCAPE),
        ),
        "after": studies.c.id < bindparam("after"),
    }
    wanted = select(*short).where(*(conditions[name] for name in sorted(given)))
    page = wanted.order_by(studies.c.id.desc()).limit(bindparam("most")).cte("page")
    counted = (
        select(
            trials.c.study_id,
            trials.c.state.label("trial_state"),
            func.count().label("trials"),
            func.min(_sound(trials.c.epochs_to_target, MOST)).label("best"),
            func.min(_sound(trials.c.best_metric, MOST, -MOST)).label("lowest_metric"),
            func.max(_sound(trials.c.best_metric, MOST, -MOST)).label("highest_metric"),
            _sum(_so_far("samples"), MOST_SAMPLES).label("samples"),
        )
        .where(trials.c.study_id.in_(select(page.c.id)), trials.c.state.in_(list(TrialState)))
        .group_by(trials.c.study_id, trials.c.state)
        .subquery()
    )
    return (
        select(page, *(column for column in counted.c if column.name != "study_id"))
        .select_from(page.outerjoin(counted, counted.c.study_id == page.c.id))
        .order_by(page.c.id.desc(), counted.c.trial_state)
    )


def _escaped(text: str) -> str:
    """Escape the text for a literal match with LIKE."""
    return re.sub(f"[%_{_ESCAPE}]", rf"{_ESCAPE}\g<0>", text)


def of_trials(
    connection: Connection,
    study_id: int,
    *,
    after: int | None,
    limit: int,
    states: Collection[TrialState] | None,
    global_batch_size: int | None,
    order: str,
    descending: bool,
) -> list[Trial]:
    """Return trials in the given order, with those without a value last."""
    if order not in ORDERS:
        raise InvalidRecord(
            f"trials cannot be ordered by {order!r}; {nearest_or_all(order, ORDERS, 'orders')}"
        )
    key = trials.c[order]
    # Only ids are sorted, because a trial has some eighty columns. Within a study, ids increase with trial numbers, and
    # every SQLite index contains the ids.
    wanted = select(trials).where(trials.c.study_id == study_id)
    if states is not None:
        wanted = wanted.where(trials.c.state.in_([TrialState(state) for state in states]))
    if global_batch_size is not None:
        wanted = wanted.where(trials.c.global_batch_size == global_batch_size)
    if after is not None:
        wanted = wanted.where(_comes_after(connection, study_id, after, key, descending))
    by = [key, trials.c.id] if order != "number" else [key]
    sorted_by = [(column.desc() if descending else column.asc()).nulls_last() for column in by]
    wanted = wanted.order_by(*sorted_by)
    page = trials.c.id.in_(wanted.with_only_columns(trials.c.id).limit(limit))
    return trials_of_statement(
        connection, wanted, page=select(trials).where(page).order_by(*sorted_by), limit=limit
    )


def usage(connection: Connection, study_id: int) -> Usage:
    """Return a study's usage so far, by its trials and by the launches of its plans, in one statement."""
    used = connection.execute(_usage(), {"study": study_id}).first()
    if used is None:
        raise study_statements.no_study(study_id)
    return Usage(
        trials=used.trials,
        samples=int(used.samples or 0),
        accelerator_seconds=float(used.seconds or 0.0) + float(used.launched or 0.0),
    )


@functools.cache
def _usage() -> Select[Any]:
    study = bindparam("study", type_=Integer)
    swept = (
        select(
            func.count().label("trials"),
            _sum(_so_far("samples"), MOST_SAMPLES).label("samples"),
            _sum(_so_far("seconds"), MOST).label("seconds"),
        )
        .where(trials.c.study_id == study)
        .subquery()
    )
    launched = (
        select(_sum(outcomes.c.seconds * outcomes.c.workers, float(MOST) * MOST_WHOLE))
        .select_from(outcomes.join(plans))
        .where(plans.c.study_id == study, plans.c.kind != PlanKind.IMPORTED)
        .scalar_subquery()
    )
    return (
        select(swept, launched.label("launched"))
        .select_from(studies.join(swept, true()))
        .where(studies.c.id == study)
    )


def _sum(amount: ColumnElement[Any], most: float) -> ColumnElement[Any]:
    """Return the sum of the valid values as a double, which overflows in neither database; damaged rows are ignored.

    Integers are exact up to 2^53.
    """
    return func.sum(cast(_sound(amount, most), Double))


def _sound(amount: ColumnElement[Any], most: float, least: float = 0.0) -> ColumnElement[Any]:
    return case((amount.between(least, most), amount))


def _so_far(name: str) -> ColumnElement[Any]:
    """Return a trial's ``samples`` or ``seconds``, from its last point while it has not ended."""
    last = (
        select(convergence.c[name])
        .where(convergence.c.trial_id == trials.c.id)
        .order_by(convergence.c.step.desc())
        .limit(1)
        .correlate(trials)
        .scalar_subquery()
    )
    return case((_UNFINISHED, last), else_=trials.c[name])


def _comes_after(
    connection: Connection, study_id: int, number: int, key: ColumnElement[Any], descending: bool
) -> ColumnElement[bool]:
    """Return the condition for rows after the trial with the given number."""
    last = connection.execute(
        select(trials.c.id, key.label("key")).where(
            trials.c.study_id == study_id, trials.c.number == number
        )
    ).first()
    if last is None:
        raise NotFound(
            f"there is no trial {number} in the study with id {study_id} to continue after"
        )
    if key is trials.c.number:
        return key < number if descending else key > number
    later = trials.c.id < last.id if descending else trials.c.id > last.id
    if last.key is None:
        return and_(key.is_(None), later)
    value = literal(last.key, key.type)
    further = key < value if descending else key > value
    return or_(further, and_(key == value, later), key.is_(None))


def _summary(rows: list[Row[Any]]) -> StudySummary:
    counted = [row for row in rows if row.trial_state is not None]
    best = [row.best for row in counted if row.best is not None]
    study = study_statements.to_study(rows[0])
    metrics = [
        row.highest_metric if study.higher_is_better else row.lowest_metric
        for row in counted
        if row.trial_state == TrialState.CENSORED
    ]
    return StudySummary(
        study=study,
        trials={row.trial_state: row.trials for row in counted},
        best_epochs_to_target=min(best) if best else None,
        best_metric=metrics[0] if metrics else None,
        samples=int(sum(row.samples or 0 for row in counted)),
    )
