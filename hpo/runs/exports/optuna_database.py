"""Writes the Optuna study of ``optuna_study.py`` to an actual Optuna database, which optuna-dashboard can open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpo.errors import ExportError, StorageUnavailableError
from hpo.runs.exports.optuna_study import POINTS, optuna_study, optuna_study_name, trials_at
from hpo.study.spec import StudySpec
from storage.errors import StoreError
from storage.maintenance.maintenance import holds_our_tables
from storage.records import Study
from storage.store import Store

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class OptunaExport:
    """The result of an export to Optuna: the study's name in Optuna, and the number of trials in each Optuna state."""

    study: str
    trials: dict[str, int]


def write_optuna(
    store: Store,
    study: Study,
    spec: StudySpec,
    url: str,
    *,
    replace: bool = False,
    global_batch_size: int | None = None,
    points: int = POINTS,
) -> OptunaExport:
    """Write a study, or its trials at one batch size, to the Optuna database at ``url``, which is created if missing.

    ``points`` limits the number of intermediate values per trial, because Optuna executes one statement for each value.
    Raises :class:`ExportError` for a largebatch database, and for an existing Optuna study of that name unless it may
    be replaced; raises :class:`StorageUnavailableError` for a database that cannot be used.
    """
    try:
        import optuna
    except ImportError as error:
        raise ExportError(
            "writing an Optuna database needs Optuna, which is not installed; "
            "pip install 'largebatch[train]'"
        ) from error
    _refuse_own_database(url)
    trials = trials_at(store.trials(study.id), global_batch_size)
    try:
        storage = optuna.storages.RDBStorage(url)
        try:
            _make_room(storage, optuna_study_name(study, global_batch_size), replace=replace)
            made = optuna_study(
                study,
                spec,
                trials,
                store=store,
                storage=storage,
                global_batch_size=global_batch_size,
                points=points,
            )
            states = Counter(trial.state for trial in made.get_trials(deepcopy=False))
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except (optuna.exceptions.StorageInternalError, ValueError, RuntimeError, ImportError) as error:
        raise StorageUnavailableError(
            f"cannot write the Optuna database {url}: {_first_line(error)}; "
            "give a URL such as sqlite:///optuna.db"
        ) from error
    return OptunaExport(
        optuna_study_name(study, global_batch_size),
        {state.name: states[state] for state in optuna.trial.TrialState},
    )


def _refuse_own_database(url: str) -> None:
    if "://" not in url:
        raise ExportError(f"--to must be a database URL, but got {url!r}; write sqlite:///{url}")
    try:
        ours = holds_our_tables(url)
    except StoreError as error:
        raise StorageUnavailableError(str(error)) from error
    if ours:
        raise ExportError(
            "an export must not go into the largebatch database, because Optuna's tables have "
            "the same names; give another database, such as --to sqlite:///optuna.db"
        )


def _make_room(storage: optuna.storages.RDBStorage, name: str, *, replace: bool) -> None:
    there = {each.study_name: each._study_id for each in storage.get_all_studies()}
    if name not in there:
        return
    if not replace:
        raise ExportError(
            f"the Optuna database already has a study {name!r}; give another database, or --replace"
        )
    storage.delete_study(there[name])


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(getattr(cause, "orig", None) or cause).strip().splitlines()[0]
