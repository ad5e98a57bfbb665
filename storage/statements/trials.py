"""Trials: statements on one connection; the contract is in ``storage.store``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Connection,
    Double,
    Row,
    Select,
    case,
    cast,
    func,
    insert,
    select,
    update,
)

from storage.errors import Conflict, NotFound
from storage.figures import END_FIGURES, MOST_SAMPLES, fault_of_measures, figures_fault
from storage.records import (
    TRAINED_BY_THE_STUDY,
    NewTrial,
    Study,
    Trial,
    TrialResult,
    TrialState,
    training_key,
)
from storage.schema import settings_columns
from storage.schema.setting_types import OWN_SETTINGS
from storage.schema.tables import convergence, trials
from storage.statements import clock, damage, studies

_Item = TypeVar("_Item")
CHUNK = 1000  # ids in one statement; SQLite accepts at most 32,766 values


def add(connection: Connection, study_id: int, new: Sequence[NewTrial]) -> list[Trial]:
    """Queue trials, continuing the study's numbering; raise :class:`Conflict` for a trial that the study
    already has.
    """
    study = studies.lock(connection, study_id)
    if not new:
        return []
    _refuse_repetitions(connection, study, new)
    last = connection.execute(
        select(func.max(trials.c.number)).where(trials.c.study_id == study_id)
    ).scalar()
    first = 0 if last is None else last + 1
    rows = [_new_row(study_id, number, trial) for number, trial in enumerate(new, first)]
    connection.execute(insert(trials), rows)
    added = select(trials).where(trials.c.study_id == study_id, trials.c.number >= first)
    return trials_of_statement(connection, added.order_by(trials.c.number))


def start(connection: Connection, ids: Collection[int]) -> None:
    """Set queued trials to running, either all of them or none."""
    wanted, started = sorted(set(ids)), 0
    for chunk in chunks(wanted):
        started += connection.execute(
            update(trials)
            .where(trials.c.id.in_(chunk), trials.c.state == TrialState.QUEUED)
            .values(state=TrialState.RUNNING, started_at=clock.now(connection))
        ).rowcount
    if started < len(wanted):
        check_exist(connection, wanted)
        raise Conflict(
            f"only queued trials can be started, but {len(wanted) - started} of the trials "
            f"{_shown(wanted)} are running or finished; requeue_running() queues running ones"
        )


def finish(connection: Connection, trial_id: int, result: TrialResult) -> None:
    """Write the result of a trial that has no result yet."""
    values = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    unfinished = trials.c.state.in_([TrialState.QUEUED, TrialState.RUNNING])
    statement = update(trials).where(trials.c.id == trial_id, unfinished)
    if (
        connection.execute(statement.values(finished_at=clock.now(connection), **values)).rowcount
        == 0
    ):
        check_exist(connection, [trial_id])
        state = connection.execute(
            select(trials.c.state).where(trials.c.id == trial_id)
        ).scalar_one()
        raise Conflict(
            f"trial {trial_id} has already finished, as {str(state)!r}; a result is written "
            f"only once"
        )


def count_samples(connection: Connection, trial_id: int) -> None:
    """Store how many samples a trial has processed, from its last point or, if it has none, from its steps."""
    last = (
        select(convergence.c.samples)
        .where(convergence.c.trial_id == trials.c.id)
        .order_by(convergence.c.step.desc())
        .limit(1)
        .scalar_subquery()
    )
    product = cast(trials.c.steps, Double) * trials.c.global_batch_size  # may exceed any integer
    steps = case((product > MOST_SAMPLES, MOST_SAMPLES), else_=cast(product, BigInteger))
    connection.execute(
        update(trials).where(trials.c.id == trial_id).values(samples=func.coalesce(last, steps))
    )


def requeue(connection: Connection, study_id: int) -> list[Trial]:
    """Queue the running trials; their points stay, because the trials restart from a checkpoint."""
    studies.lock(connection, study_id)
    running = trials.c.study_id == study_id, trials.c.state == TrialState.RUNNING
    ids = connection.execute(select(trials.c.id).where(*running)).scalars().all()
    requeued: list[Trial] = []
    for chunk in chunks(ids):
        connection.execute(
            update(trials)
            .where(trials.c.id.in_(chunk))
            .values(state=TrialState.QUEUED, started_at=None)
        )
        requeued += trials_of_statement(connection, select(trials).where(trials.c.id.in_(chunk)))
    return sorted(requeued, key=lambda trial: trial.number)


def failed(connection: Connection, study_id: int) -> list[int]:
    """Return the ids of failed trials that the study trained itself, by number."""
    found = select(trials.c.id).where(
        trials.c.study_id == study_id,
        trials.c.state == TrialState.FAILED,
        trials.c.purpose.in_(TRAINED_BY_THE_STUDY),
    )
    return list(connection.execute(found.order_by(trials.c.number)).scalars())


def renew(connection: Connection, ids: Sequence[int]) -> list[Trial]:
    """Queue ended trials as if they were new."""
    result = {field.name: None for field in dataclasses.fields(TrialResult)}
    fresh = {**result, "state": TrialState.QUEUED, "reason": "", "samples": None, "checksum": None}
    renewed: list[Trial] = []
    for chunk in chunks(ids):
        statement = update(trials).where(trials.c.id.in_(chunk))
        connection.execute(statement.values(**fresh, started_at=None, finished_at=None))
        renewed += trials_of_statement(connection, select(trials).where(trials.c.id.in_(chunk)))
    return sorted(renewed, key=lambda trial: trial.number)


def select_all(
    connection: Connection,
    study_id: int,
    states: Collection[TrialState] | None,
    purpose: str | None,
) -> list[Trial]:
    """Return the trials of a study by number, filtered by states or purpose if given."""
    statement = select(trials).where(trials.c.study_id == study_id).order_by(trials.c.number)
    if states is not None:
        statement = statement.where(trials.c.state.in_([TrialState(state) for state in states]))
    if purpose is not None:
        statement = statement.where(trials.c.purpose == purpose)
    return trials_of_statement(connection, statement)


def by_number(connection: Connection, study_id: int, number: int) -> Trial:
    """Return one trial of a study."""
    wanted = select(trials).where(trials.c.study_id == study_id, trials.c.number == number)
    with damage.named(f"trial {number} of the study with id {study_id}"):
        row = connection.execute(wanted).first()
        if row is not None:
            return to_trial(row)
    held = connection.execute(
        select(func.count()).where(trials.c.study_id == study_id)
    ).scalar_one()
    numbers = f"its trials are numbered 0 to {held - 1}" if held else "it has no trials yet"
    raise NotFound(f"there is no trial {number} in the study with id {study_id}; {numbers}")


def count(
    connection: Connection, study_id: int, purpose: str | None
) -> dict[int, dict[TrialState, int]]:
    """Count trials by global batch size, then state; zero counts are left out."""
    by = (trials.c.global_batch_size, trials.c.state)
    known = trials.c.state.in_(list(TrialState))
    statement = (
        select(*by, func.count())
        .where(trials.c.study_id == study_id, known)
        .group_by(*by)
        .order_by(*by)
    )
    if purpose is not None:
        statement = statement.where(trials.c.purpose == purpose)
    counts: dict[int, dict[TrialState, int]] = {}
    for global_batch_size, state, number in connection.execute(statement):
        if isinstance(global_batch_size, int):
            counts.setdefault(global_batch_size, {})[state] = number
    return counts


def own_settings(
    connection: Connection, study_id: int
) -> list[tuple[int, TrialState, Mapping[str, Any]]]:
    """Return global batch size, state, and user-defined settings of every trial, ordered by number."""
    own = trials.c[OWN_SETTINGS]
    known = trials.c.state.in_(list(TrialState))
    statement = (
        select(trials.c.global_batch_size, trials.c.state, own)
        .where(trials.c.study_id == study_id, known)
        .order_by(trials.c.number)
    )
    return [
        (batch, state, settings_columns.own_of(text))
        for batch, state, text in connection.execute(statement)
        if isinstance(batch, int)
    ]


def check_exist(connection: Connection, ids: Collection[int]) -> None:
    """Raise :class:`NotFound`, with the first missing ids, unless all trials exist."""
    known: set[int] = set()
    for chunk in chunks(sorted(ids)):
        known.update(
            connection.execute(select(trials.c.id).where(trials.c.id.in_(chunk))).scalars()
        )
    missing = sorted(set(ids) - known)
    if missing:
        raise NotFound(f"there is no trial with id {_shown(missing)}; add_trials() returns the ids")


def chunks(items: Sequence[_Item], size: int = CHUNK) -> Iterator[Sequence[_Item]]:
    """Yield chunks of at most ``size`` items, in order."""
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _refuse_repetitions(connection: Connection, study: Study, new: Sequence[NewTrial]) -> None:
    """Raise :class:`Conflict` if one of these trials, whatever its purpose, already exists or is given twice.

    A repetition with the same seed would add no information but count twice; it needs another seed.
    """
    wanted = [(key, trial) for trial in new if (key := training_key(trial)) is not None]
    there: dict[tuple[int, int, str] | None, str] = {}
    for seeds in chunks(sorted({trial.seed for _, trial in wanted})):
        alike = select(trials).where(
            trials.c.study_id == study.id,
            trials.c.seed.in_(seeds),
            trials.c.global_batch_size.in_({trial.global_batch_size for _, trial in wanted}),
            trials.c.purpose.in_(TRAINED_BY_THE_STUDY),
        )
        found = trials_of_statement(connection, alike)
        there |= {training_key(trial): f"trial {trial.number}" for trial in found}
    for key, trial in wanted:
        if key in there:
            raise Conflict(
                f"{there[key]} trains the same settings at global batch size "
                f"{trial.global_batch_size} with seed "
                f"{trial.seed} in the study {study.name!r}; to repeat settings, use another seed"
            )
        there[key] = "another of the trials to be added"


def _shown(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:5])) + (" ..." if len(ids) > 5 else "")


def _new_row(study_id: int, number: int, trial: NewTrial) -> dict[str, Any]:
    return {
        "study_id": study_id,
        "number": number,
        "state": TrialState.QUEUED,
        "seed": trial.seed,
        "global_batch_size": trial.global_batch_size,
        "purpose": str(trial.purpose),
        "reason": "",
        **settings_columns.to_columns(trial.settings),
    }


def trials_of_statement(
    connection: Connection,
    statement: Select[Any],
    *,
    page: Select[Any] | None = None,
    limit: int | None = None,
) -> list[Trial]:
    """Return the trials of a statement that selects all columns of the table; damaged trials are left out.

    ``page`` selects its first ``limit`` trials, as for :func:`storage.statements.damage.sound`.
    """
    return damage.sound(connection, statement, trials, _made, page=page, limit=limit)


def to_trial(row: Row[Any]) -> Trial:
    """Convert a row of the table to a trial; raise ValueError or a similar error for a damaged row."""
    return _made([row])[0]


def _made(rows: Sequence[Row[Any]]) -> list[Trial]:
    if not rows:
        return []
    damage.check_kinds(trials, rows)
    split = settings_columns.SplitRows(rows[0]._fields).split
    made = [Trial(settings=settings, **other) for settings, other in map(split, rows)]
    for trial in made:
        if fault := figures_fault(END_FIGURES, trial) or fault_of_measures(trial.measures):
            raise ValueError(fault)
    return made
