"""Reads runs from an Optuna database: every ended trial with its parameters, attributes and reported values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpo.errors import EvidenceError
from hpo.past_runs.past_run import PastRun, Reading

if TYPE_CHECKING:
    import optuna

VALUE, REPORTED = "value", "intermediate_value"
"""The names for a trial's return value and its intermediate values."""


def read_optuna(source: str, name: str | None = None) -> list[PastRun]:
    """Return the trials of one Optuna study; ``source`` is a database URL or the path of an SQLite or journal file.

    ``name`` is the study's name in Optuna, which is required if there are several studies. Raises
    :class:`EvidenceError` if the study cannot be read.
    """
    try:
        import optuna
    except ImportError as error:
        raise EvidenceError(
            "reading an Optuna database needs Optuna, which is not installed; pip install 'largebatch[train]'"
        ) from error
    storage = _storage(source)
    try:
        names = [summary.study_name for summary in optuna.get_all_study_summaries(storage)]
        if not names:
            raise EvidenceError(f"{source} has no Optuna study")
        if name is None and len(names) == 1:
            name = names[0]
        if name not in names:
            asked = "give one with --name" if name is None else f"there is no {name!r}"
            raise EvidenceError(
                f"{source} has {len(names)} Optuna studies, and {asked}: {', '.join(sorted(names))}"
            )
        loaded = optuna.load_study(study_name=name, storage=storage)
        if len(loaded.directions) > 1:
            raise EvidenceError(
                f"the Optuna study {name!r} has {len(loaded.directions)} objectives, and it is "
                f"unclear which of them is the metric; import a table of its trials with hpo import csv"
            )
        return [_run(name or "", trial) for trial in loaded.get_trials(deepcopy=False)]
    except EvidenceError:
        raise
    except Exception as error:  # SQLAlchemy's and Optuna's errors have no common base
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise EvidenceError(f"{source} cannot be read as an Optuna database: {reason}") from error


def _storage(source: str) -> optuna.storages.BaseStorage:
    import optuna

    if "://" not in source:
        path = Path(source)
        if not path.is_file():
            raise EvidenceError(
                f"there is no file {source}; give the path of an Optuna database, or its URL such as "
                "sqlite:///optuna.db"
            )
        with path.open("rb") as file:
            if not file.read(16).startswith(b"SQLite format 3"):
                from optuna.storages.journal import JournalFileBackend

                return optuna.storages.JournalStorage(JournalFileBackend(source))
        source = f"sqlite:///{source}"
    elif source.startswith("sqlite:///") and not Path(source[len("sqlite:///") :]).is_file():
        raise EvidenceError(f"there is no database {source}")  # SQLite would create an empty one
    try:
        return optuna.storages.RDBStorage(source, skip_compatibility_check=True)
    except Exception as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise EvidenceError(f"{source} cannot be read as an Optuna database: {reason}") from error


def _run(study: str, trial: optuna.trial.FrozenTrial) -> PastRun:
    started, ended = trial.datetime_start, trial.datetime_complete
    values = {**trial.user_attrs, **trial.params}
    if trial.values:
        values[VALUE] = trial.values[0]
    reported = [Reading(step, value) for step, value in sorted(trial.intermediate_values.items())]
    return PastRun(
        label=f"optuna {study} trial {trial.number}",
        values=values,
        curves={REPORTED: reported} if reported else {},
        status=trial.state.name.lower(),
        seconds=(ended - started).total_seconds() if started and ended else None,
    )
