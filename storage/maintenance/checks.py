"""The checks of ``hpo db check``: file integrity, references, schema, value types, checksums and
contradictory trials.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Boolean, Connection, DateTime, Integer, String, Text, exists, func, select
from sqlalchemy.types import TypeDecorator, TypeEngine

from storage import migrations
from storage.database import Database
from storage.maintenance.archive import broken_references
from storage.records import TRAINED_BY_THE_STUDY, StudyState, Trial, TrialState, training_key
from storage.schema.tables import convergence, metadata, plans, quarantine, studies, trials
from storage.statements import checksums
from storage.statements.trials import trials_of_statement

Level = Literal["ok", "warn", "fail"]
_ENDED_STUDY = (
    StudyState.FINISHED,
    StudyState.FAILED,
    StudyState.CANCELLED,
    StudyState.INTERRUPTED,
)
_HAS_A_CURVE = (TrialState.REACHED, TrialState.CENSORED, TrialState.PRUNED)
_REPAIR = "restore a backup: hpo db restore FILE"


@dataclass(frozen=True)
class CheckFinding:
    """The result of one check: its status, and the remedy if there is a problem."""

    name: str
    level: Level
    message: str
    way_out: str = ""


def check_database(database: Database, folder: Path | None = None) -> list[CheckFinding]:
    """Check the whole database; ``folder`` holds the checkpoints of running trials, if it is on this machine.

    Nothing is changed. If the schema is not the current one, only the file, the references and the schema are checked.
    """
    with database.read() as connection:
        found = [_integrity(connection), _references(connection), *_schema(connection)]
        if all(each.level == "ok" for each in found if each.name == "schema"):
            found += [
                _kinds(connection),
                _sums(connection),
                _numbers(connection),
                _set_aside(connection),
            ]
            found += [_curves(connection), _repetitions(connection), _left_running(connection)]
            found += _folders(connection, folder)
    return found


def _integrity(connection: Connection) -> CheckFinding:
    if connection.dialect.name == "sqlite":
        said = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(10)")]
        if said != ["ok"]:
            return CheckFinding("integrity", "fail", "; ".join(said), _REPAIR)
        return CheckFinding("integrity", "ok", "every page and index of the file is intact")
    for table in metadata.sorted_tables:  # this reads every row; a damaged page raises an error
        connection.exec_driver_sql(
            f"SELECT count(*) FROM (SELECT t.*::text FROM {table.name} t) whole"
        )
    return CheckFinding("integrity", "ok", "every row can be read")


def _references(connection: Connection) -> CheckFinding:
    broken = broken_references(connection)
    if connection.dialect.name == "postgresql":
        names = ", ".join(f"'{table.name}'" for table in metadata.sorted_tables)
        broken = [
            f"{row[1]} of {row[0]} is not enforced"
            for row in connection.exec_driver_sql(
                "SELECT conrelid::regclass, conname FROM pg_constraint "
                f"WHERE NOT convalidated AND conrelid::regclass::text IN ({names})"
            )
        ]
    if broken:
        return CheckFinding("references", "fail", "; ".join(broken), _REPAIR)
    return CheckFinding("references", "ok", "every row refers to existing rows")


def _schema(connection: Connection) -> Iterator[CheckFinding]:
    found = migrations.revision(connection)
    if found != migrations.HEAD:
        way_out = "upgrade largebatch" if found and found > migrations.HEAD else "hpo db upgrade"
        yield CheckFinding(
            "schema",
            "fail",
            f"the schema is {found or 'not there'}, this release needs {migrations.HEAD}",
            way_out,
        )
        return
    differences = migrations.differences(connection)
    if differences:
        yield CheckFinding(
            "schema",
            "fail",
            f"the tables do not match schema {found}: {'; '.join(differences[:5])}",
            _REPAIR,
        )
    else:
        yield CheckFinding("schema", "ok", f"the schema is {found}, the newest")


def _kinds(connection: Connection) -> CheckFinding:
    """Check that every value has its column's type, which PostgreSQL enforces by itself."""
    odd: list[str] = []
    if connection.dialect.name == "sqlite":
        for table in metadata.sorted_tables:
            wrong = [
                f"typeof({column.name}) NOT IN ({', '.join(map(repr, _stored_as(column.type)))})"
                for column in table.c
            ]
            key = ", ".join(column.name for column in table.primary_key)
            statement = f"SELECT {key} FROM {table.name} WHERE {' OR '.join(wrong)}"
            odd += [f"{table.name} {row[0]}" for row in connection.exec_driver_sql(statement)]
    if odd:
        return CheckFinding(
            "kinds",
            "fail",
            f"{len(odd)} rows hold values whose type differs from that of their column: "
            f"{_some(odd, 10)}",
            _REPAIR,
        )
    return CheckFinding("kinds", "ok", "every value has the type of its column")


def _stored_as(kind: TypeEngine[Any]) -> tuple[str, ...]:
    plain = kind.impl_instance if isinstance(kind, TypeDecorator) else kind
    if isinstance(plain, (Boolean, Integer)):
        return "null", "integer"
    return (
        ("null", "text")
        if isinstance(plain, (Text, String, DateTime))
        else ("null", "real", "integer")
    )


def _sums(connection: Connection) -> CheckFinding:
    """Check that every study file and every ended trial is unchanged since it was written."""
    names, changed = {}, []
    for study in checksums.of_studies(connection):
        names[study.id] = study.name
        if study.stored != study.found:
            changed.append(f"the file of study {study.name}")
    unfinished = {str(state) for state in TrialState if not state.finished}
    ids = list(connection.execute(select(trials.c.id).order_by(trials.c.id)).scalars())
    for trial in checksums.of_trials(connection, ids):
        owner = f"trial {trial.name} of study {names.get(trial.study_id, trial.study_id)}"
        if trial.state not in unfinished and trial.stored != trial.found:
            changed.append(owner)
        elif trial.state in unfinished and trial.stored is not None:
            changed.append(f"{owner}, which had ended")
    if changed:
        return CheckFinding(
            "checksums",
            "fail",
            f"{len(changed)} records have changed since they were written: {_some(changed, 10)}",
            _REPAIR,
        )
    return CheckFinding(
        "checksums",
        "ok",
        "every study file and every finished trial is unchanged since it was written",
    )


def _numbers(connection: Connection) -> CheckFinding:
    """Check for missing trials: the trials of each study are numbered from 0 without gaps."""
    counted = (
        select(studies.c.name, func.count(), func.max(trials.c.number))
        .join(trials, trials.c.study_id == studies.c.id)
        .group_by(studies.c.id, studies.c.name)
        .order_by(studies.c.name)
    )
    missing = [
        f"{last + 1 - count} of study {name}"
        for name, count, last in connection.execute(counted).all()
        if isinstance(last, int) and last + 1 != count
    ]
    if missing:
        return CheckFinding("numbers", "fail", f"trials are missing: {_some(missing)}", _REPAIR)
    return CheckFinding("numbers", "ok", "the trials of every study are numbered without a gap")


def _set_aside(connection: Connection) -> CheckFinding:
    rows = connection.execute(select(quarantine).order_by(quarantine.c.id)).all()
    if rows:
        named = (f"{row.source}: {row.content[:60]}... ({row.reason})" for row in rows)
        return CheckFinding(
            "quarantine",
            "warn",
            f"{len(rows)} rows of an earlier release held impossible figures and were set aside: "
            f"{_some(named)}",
            "the table quarantine has the original rows; empty it after reviewing them",
        )
    return CheckFinding("quarantine", "ok", "no row of an earlier release had to be set aside")


def _curves(connection: Connection) -> CheckFinding:
    bare = trials.c.state.in_(_HAS_A_CURVE), ~exists().where(convergence.c.trial_id == trials.c.id)
    of_studies = select(studies.c.name, func.count()).join(
        trials, trials.c.study_id == studies.c.id
    )
    rows = connection.execute(
        of_studies.where(*bare).group_by(studies.c.name).order_by(studies.c.name)
    ).all()
    if rows:
        return CheckFinding(
            "curves",
            "warn",
            f"{sum(row[1] for row in rows)} finished trials have no convergence point, "
            f"in {_some(row[0] for row in rows)}",
            "their results stay usable; their curves are lost",
        )
    return CheckFinding("curves", "ok", "every trial that was trained has its curve")


def _repetitions(connection: Connection) -> CheckFinding:
    """Find repeated trials (same settings, batch size and seed), which are refused now but which races used
    to store.
    """
    one = (studies.c.name, trials.c.study_id, trials.c.global_batch_size, trials.c.seed)
    alike = (
        select(*one)
        .join(studies, studies.c.id == trials.c.study_id)
        .where(trials.c.purpose.in_(TRAINED_BY_THE_STUDY))
        .group_by(*one)
        .having(func.count() > 1)
        .order_by(*one)
    )
    named = []
    for name, study_id, batch, seed in connection.execute(alike).all():
        same = select(trials).where(
            trials.c.study_id == study_id,
            trials.c.global_batch_size == batch,
            trials.c.seed == seed,
        )
        groups: dict[Any, list[Trial]] = defaultdict(list)
        for trial in trials_of_statement(connection, same.order_by(trials.c.number)):
            groups[training_key(trial)].append(trial)
        groups.pop(None, None)
        named += [
            f"{name}: trials {_some((str(trial.number) for trial in group), 5)} "
            f"({group[-1].purpose} at {batch}, seed {seed})"
            for group in groups.values()
            if len(group) > 1
        ]
    if named:
        return CheckFinding(
            "repetitions",
            "warn",
            f"the same settings were trained more than once at the same batch size with the "
            f"same seed, {_some(named)}",
            "they count once: `hpo forecast STUDY --at BATCH --race` races the configurations that are missing",
        )
    return CheckFinding(
        "repetitions", "ok", "no study has trained the same settings twice with the same seed"
    )


def _left_running(connection: Connection) -> CheckFinding:
    statement = (
        select(studies.c.name)
        .join(trials, trials.c.study_id == studies.c.id)
        .where(trials.c.state == TrialState.RUNNING, studies.c.state.in_(_ENDED_STUDY))
        .distinct()
        .order_by(studies.c.name)
    )
    names = list(connection.execute(statement).scalars())
    if names:
        return CheckFinding(
            "trials",
            "warn",
            f"trials are marked as running in studies that are not running: {_some(names)}",
            "run or resume the study: running trials restart from their checkpoints",
        )
    return CheckFinding(
        "trials", "ok", "no trial is marked as running in a study that is not running"
    )


def _folders(connection: Connection, folder: Path | None) -> Iterator[CheckFinding]:
    gone = [
        f"plan {row.id}: {row.directory}"
        for row in connection.execute(
            select(plans.c.id, plans.c.directory)
            .where(plans.c.directory != "")
            .order_by(plans.c.id)
        )
        if isinstance(row.directory, str)
        and Path(row.directory).is_absolute()
        and not Path(row.directory).is_dir()
    ]
    if gone:
        yield CheckFinding(
            "plans",
            "warn",
            f"the folders of {len(gone)} plans are not on this machine: {_some(gone)}",
            "`hpo plan STUDY --output DIR` writes a plan's folder again",
        )
    else:
        yield CheckFinding("plans", "ok", "every plan has its folder")
    orphans = [] if folder is None else orphan_checkpoints(connection, folder)
    if orphans:
        yield CheckFinding(
            "checkpoints",
            "warn",
            f"{len(orphans)} checkpoints belong to no unfinished trial: {_some(map(str, orphans))}",
            "hpo db prune removes them",
        )
    elif folder is not None:
        yield CheckFinding(
            "checkpoints",
            "ok",
            f"every checkpoint in {folder} belongs to a trial that is not finished",
        )


def orphan_checkpoints(connection: Connection, folder: Path) -> list[Path]:
    """Return files under ``folder/checkpoints/STUDY/`` whose study no longer exists or whose trial has ended."""
    files = [
        path
        for path in sorted(folder.glob("checkpoints/*/*"))
        if path.is_file() and path.parent.name.isdigit()
    ]
    unfinished = {
        (row[0], row[1])
        for row in connection.execute(
            select(trials.c.study_id, trials.c.number).where(
                trials.c.state.in_([TrialState.QUEUED, TrialState.RUNNING])
            )
        )
    }
    named = [(path, path.name.split(".")[0]) for path in files]  # the trial's number, as in `7.pt`
    return [
        path
        for path, name in named
        if name.isdigit() and (int(path.parent.name), int(name)) not in unfinished
    ]


def _some(names: Any, most: int = 3) -> str:
    names = list(names)
    return ", ".join(map(str, names[:most])) + (
        f" and {len(names) - most} more" if len(names) > most else ""
    )
