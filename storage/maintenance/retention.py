"""Retention: removes old, unused curves, but never a result.

The last point of a removed curve stays. Trials, forecasts, plans and outcomes stay, so that forecasts and their
calibration remain possible; only the course of a trial and its gradient noise scale are lost. ``keep_best`` keeps the
curve of the best trial at every batch size and combination of other sizes: the one that reached the target in the
fewest epochs or, if none reached it, the one with the best metric at the end of its budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, case, cast, delete, func, select
from sqlalchemy.dialects.postgresql import JSONB

from storage.database import Database
from storage.records import StudyState, TrialState
from storage.schema.setting_types import OWN_SETTINGS
from storage.schema.tables import convergence, metadata, studies, trials
from storage.statements import checksums

_ENDED = (StudyState.FINISHED, StudyState.FAILED, StudyState.CANCELLED)
_SIZES = ("width", "depth", "training_samples")
"""The settings, besides the batch size, that make up a rung."""


@dataclass(frozen=True)
class PrunedRows:
    """The number of rows (for ``checkpoints``, files) that were or would be removed; ``trials`` counts trials that lost
    curves.
    """

    points: int
    trials: int
    events: int
    tokens: int
    workers: int
    checkpoints: int
    dry_run: bool


def prune_database(
    database: Database, before: datetime, *, keep_best: bool, dry_run: bool, checkpoints: int = 0
) -> PrunedRows:
    """Remove data older than ``before``, all or nothing; a dry run only counts it.

    It removes the curves of ended studies that have not changed since then, older events, workers not seen since then,
    and tokens that have been invalid since then.
    """
    with database.read() if dry_run else database.write() as connection:
        curves = _curves(connection, before, keep_best)
        affected = select(convergence.c.trial_id).distinct().where(curves)
        thinned = list(connection.execute(affected).scalars())
        # a damaged trial keeps the checksum that shows the damage
        sound = [
            each.id
            for each in ([] if dry_run else checksums.of_trials(connection, thinned))
            if each.stored == each.found
        ]
        old = {name: _remove(connection, name, before, dry_run=dry_run) for name in _AGES}
        points = _delete(connection, convergence, curves, dry_run=dry_run)
        checksums.write_of_trials(connection, sound)
        return PrunedRows(
            points=points,
            trials=len(thinned),
            **old,
            checkpoints=checkpoints,
            dry_run=dry_run,
        )


def _curves(connection: Connection, before: datetime, keep_best: bool) -> ColumnElement[bool]:
    """Select the points of old trials, except for the last point of each trial."""
    old = (
        select(trials.c.id)
        .join(studies, studies.c.id == trials.c.study_id)
        .where(studies.c.state.in_(_ENDED), studies.c.updated_at < before)
    )
    if keep_best:
        metric = trials.c.best_metric
        order = func.row_number().over(
            partition_by=(
                trials.c.study_id,
                trials.c.global_batch_size,
                *(_size(connection, name) for name in _SIZES),
            ),
            order_by=(
                case((trials.c.state == TrialState.REACHED, 0), else_=1),
                trials.c.epochs_to_target,
                case((studies.c.higher_is_better, -metric), else_=metric),
                trials.c.id,
            ),
        )
        to_the_end = (trials.c.state == TrialState.CENSORED) & metric.is_not(None)
        ranked = (
            select(trials.c.id, order.label("rank"))
            .join(studies, studies.c.id == trials.c.study_id)
            .where((trials.c.state == TrialState.REACHED) | to_the_end)
            .subquery()
        )
        old = old.where(trials.c.id.not_in(select(ranked.c.id).where(ranked.c.rank == 1)))
    of_trial = convergence.alias()
    last = (
        select(func.max(of_trial.c.step))
        .where(of_trial.c.trial_id == convergence.c.trial_id)
        .scalar_subquery()
    )
    return convergence.c.trial_id.in_(old) & (convergence.c.step < last)


def _size(connection: Connection, name: str) -> ColumnElement[Any]:
    """Return a size in the settings of a trial, NULL if it has no such size."""
    own = trials.c[OWN_SETTINGS]
    if connection.dialect.name == "postgresql":
        size: ColumnElement[Any] = cast(own, JSONB)[name].as_string()
        return size
    return case((func.json_valid(own) == 1, func.json_extract(own, f"$.{name}")))


_AGES: dict[str, tuple[str, ...]] = {
    "events": ("at",),
    "tokens": ("expires_at", "revoked_at"),
    "workers": ("seen_at",),
}
"""The time columns of each table; a row counts as old if any of them is."""


def _remove(connection: Connection, name: str, before: datetime, *, dry_run: bool) -> int:
    table = metadata.tables[name]
    old: Any = table.c[_AGES[name][0]] < before
    for column in _AGES[name][1:]:
        old = old | (table.c[column] < before)
    return _delete(connection, table, old, dry_run=dry_run)


def _delete(
    connection: Connection, table: Table, condition: ColumnElement[bool], *, dry_run: bool
) -> int:
    if dry_run:
        return int(
            connection.execute(
                select(func.count()).select_from(table).where(condition)
            ).scalar_one()
        )
    return connection.execute(delete(table).where(condition)).rowcount
