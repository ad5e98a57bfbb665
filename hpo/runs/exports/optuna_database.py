"""A study as a real Optuna database, for optuna-dashboard and Optuna's own plots.

One Optuna study, which minimises the epochs to target; its parameters are the tuned settings and the global batch
size. What a training ended as becomes:

========== ========== =========================================================================================
here       in Optuna  why
========== ========== =========================================================================================
reached    COMPLETE   its value is its epochs to target
censored   PRUNED     the budget ended before the target was reached: there is no value, only that it is larger
pruned     PRUNED     it was stopped early; Ray's own report to Optuna would call it COMPLETE with a cut-off value
diverged   FAIL       what Optuna makes of a training whose value is no number
failed     FAIL       it says nothing about its settings
queued     WAITING
running    RUNNING
========== ========== =========================================================================================

Intermediate values are the target's metric at each evaluation, by optimizer step. What Optuna has no place for is in
``user_attrs``: of the trial the state here, the seed, epochs, seconds and reason; of the study its target, the fixed
settings and the specification.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hpo.errors import ExportError, StorageUnavailableError
from hpo.study.spec import StudySpec
from storage.errors import StoreError
from storage.figures import TRIAL_FIELDS
from storage.maintenance.maintenance import is_ours
from storage.records import Convergence, Study, Trial, TrialState
from storage.store import Store

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

TRIALS_AT_A_TIME = 500
BATCH_SIZE = "global_batch_size"


@dataclass(frozen=True)
class OptunaExport:
    """What an export to Optuna wrote: the name of its study there, and the trials by Optuna's state."""

    study: str
    trials: dict[str, int]


def write_optuna(
    store: Store,
    study: Study,
    spec: StudySpec,
    url: str,
    *,
    replace: bool = False,
    points: int = 200,
) -> OptunaExport:
    """Write a study into the Optuna database at ``url``, which is made where it is not there.

    Optuna writes one row a statement; ``points`` bounds the intermediate values of a trial. Raises
    :class:`ExportError` for our own database, and for an Optuna study of that name unless it may be replaced;
    :class:`StorageUnavailableError` for a database that cannot be used.
    """
    try:
        import optuna
    except ImportError as error:
        raise ExportError(
            "writing an Optuna database needs Optuna, which is not installed; "
            "pip install 'largebatch[train]'"
        ) from error
    _refuse_own_database(url)
    try:
        storage = optuna.storages.RDBStorage(url)
        try:
            _make_room(storage, study.name, replace=replace)
            made = _new_study(storage, study, spec)
            written = dict.fromkeys((state.name for state in optuna.trial.TrialState), 0)
            for frozen in _frozen_trials(store, store.trials(study.id), spec, points):
                made.add_trial(frozen)
                written[frozen.state.name] += 1
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except (optuna.exceptions.StorageInternalError, ValueError, RuntimeError, ImportError) as error:
        raise StorageUnavailableError(
            f"cannot write the Optuna database {url}: {_first_line(error)}; "
            "give a URL such as sqlite:///optuna.db"
        ) from error
    return OptunaExport(study.name, written)


def _refuse_own_database(url: str) -> None:
    if "://" not in url:
        raise ExportError(f"--to must be a database URL, but got {url!r}; write sqlite:///{url}")
    try:
        ours = is_ours(url)
    except StoreError as error:
        raise StorageUnavailableError(str(error)) from error
    if ours:
        raise ExportError(
            "an export must not go into the database of largebatch: Optuna's tables have the same "
            "names; give another, such as --to sqlite:///optuna.db"
        )


def _make_room(storage: optuna.storages.RDBStorage, name: str, *, replace: bool) -> None:
    there = {each.study_name: each._study_id for each in storage.get_all_studies()}
    if name not in there:
        return
    if not replace:
        raise ExportError(
            f"the Optuna database has a study {name!r} already; give another database, or --replace"
        )
    storage.delete_study(there[name])


def _new_study(storage: optuna.storages.RDBStorage, study: Study, spec: StudySpec) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made = optuna.create_study(study_name=study.name, storage=storage, direction="minimize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        made.set_metric_names(["epochs to target"])
    for name, value in _about(study, spec).items():
        made.set_user_attr(name, value)
    return made


def _frozen_trials(
    store: Store, trials: Sequence[Trial], spec: StudySpec, points: int
) -> Iterator[optuna.trial.FrozenTrial]:
    space = _space(spec, trials)
    for first in range(0, len(trials), TRIALS_AT_A_TIME):
        part = trials[first : first + TRIALS_AT_A_TIME]
        curves = store.convergence([trial.id for trial in part])
        for trial in part:
            yield _frozen(trial, space, curves.of(trial.id), points)


def _space(spec: StudySpec, trials: Sequence[Trial]) -> dict[str, BaseDistribution]:
    from optuna.distributions import IntDistribution

    batches = [*spec.ladder, *(trial.global_batch_size for trial in trials)]
    return {
        BATCH_SIZE: IntDistribution(min(batches), max(batches), log=True),
        **spec.search.to_optuna(),
    }


def _frozen(
    trial: Trial, space: Mapping[str, BaseDistribution], curve: Convergence, points: int
) -> optuna.trial.FrozenTrial:
    import optuna

    states = optuna.trial.TrialState
    state = {
        TrialState.REACHED: states.COMPLETE,
        TrialState.CENSORED: states.PRUNED,
        TrialState.PRUNED: states.PRUNED,
        TrialState.DIVERGED: states.FAIL,
        TrialState.FAILED: states.FAIL,
        TrialState.QUEUED: states.WAITING,
        TrialState.RUNNING: states.RUNNING,
    }[trial.state]
    params = {
        name: trial.global_batch_size if name == BATCH_SIZE else trial.settings[name]
        for name in space
    }
    used = {name: wide_enough(space[name], value) for name, value in params.items()}
    distributions = {
        name: distribution for name, distribution in used.items() if distribution is not None
    }
    started = trial.started_at or trial.finished_at
    return optuna.trial.FrozenTrial(
        number=trial.number,
        trial_id=-1,
        state=state,
        value=trial.epochs_to_target,
        datetime_start=None
        if state == states.WAITING
        else _local(started) or datetime.fromtimestamp(0),
        datetime_complete=_local(trial.finished_at) if state.is_finished() else None,
        params={name: params[name] for name in distributions},
        distributions=distributions,
        user_attrs=_attributes(trial, [name for name in params if name not in distributions]),
        system_attrs={},
        intermediate_values=_intermediate(curve, points),
    )


def wide_enough(distribution: BaseDistribution, value: Any) -> BaseDistribution | None:
    """The distribution, its range widened to ``value`` where it lies outside; None where it is no choice of it.

    Optuna lets the range of a parameter differ between trials, but not its choices.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return distribution if value in distribution.choices else None
    if isinstance(distribution, FloatDistribution | IntDistribution):
        if distribution.low <= value <= distribution.high:
            return distribution
        if distribution.log and value <= 0:
            return None
        return type(distribution)(
            min(distribution.low, value), max(distribution.high, value), log=distribution.log
        )
    return None


def _intermediate(curve: Convergence, points: int) -> dict[int, float]:
    """The measured metric by step: at most ``points`` evaluations, spread evenly, the first and the last included."""
    measured = [
        (step, metric)
        for step, metric in zip(curve.step.tolist(), curve.metric.tolist(), strict=True)
        if not math.isnan(metric)
    ]
    if len(measured) > points:
        places = {
            round(place * (len(measured) - 1) / max(points - 1, 1)) for place in range(points)
        }
        measured = [measured[place] for place in sorted(places | {len(measured) - 1})[-points:]]
    return dict(measured)


def _attributes(trial: Trial, outside: Sequence[str]) -> dict[str, Any]:
    told = {
        "state": str(trial.state),
        "seed": trial.seed,
        "purpose": trial.purpose,
        "reason": trial.reason,
        **{each.name: getattr(trial, each.name) for each in TRIAL_FIELDS},
        **{name: trial.settings[name] for name in outside},
    }
    return {name: value for name, value in told.items() if value not in (None, "")}


def _about(study: Study, spec: StudySpec) -> dict[str, Any]:
    relation = ">=" if study.higher_is_better else "<="
    return {
        "target": f"{study.metric} {relation} {study.threshold:g}",
        "workload": study.workload,
        "value": "epochs to target",
        "intermediate_values": f"{study.metric} by optimizer step",
        "fixed_settings": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in spec.search.fixed.items()
        },
        "spec": study.spec,
    }


def _local(time: datetime | None) -> datetime | None:
    """Optuna's times are local ones without a zone."""
    return None if time is None else time.astimezone().replace(tzinfo=None)


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(getattr(cause, "orig", None) or cause).strip().splitlines()[0]
