"""Builds an Optuna study in memory from a study, for Optuna's plots and importances or for an Optuna database.

The Optuna study minimises the epochs to target. Its parameters are the tuned settings and the global batch size, or
only the settings if a single batch size is exported. The states of trials are mapped as follows:

========== ========== =========================================================================================
here       in Optuna  reason
========== ========== =========================================================================================
reached    COMPLETE   its value is its epochs to target
censored   PRUNED     the budget ended before the target was reached: the value is unknown, only a lower bound
pruned     PRUNED     it was stopped early; Ray's own report to Optuna would call it COMPLETE with a cut-off value
diverged   FAIL       Optuna also marks a trial whose value is NaN as failed
failed     FAIL       the failure says nothing about the settings
queued     WAITING
running    RUNNING
========== ========== =========================================================================================

If a study asks for the best metric within a fixed budget, the value is that metric, to be minimised or maximised. A
trial that reached the end of the budget is COMPLETE, and one that was stopped is PRUNED.

Intermediate values are the target metric at each evaluation, by optimizer step. Values for which Optuna has no field
are stored in ``user_attrs``: for a trial, its state in largebatch, number, batch size, seed, epochs, seconds and
reason; for the study, its target, fixed settings and specification. A parameter has the same range in all trials,
widened to include values outside the study's own range, because Optuna's plots and importances leave out a parameter
whose range differs between trials.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hpo.errors import EvidenceError, ExportError
from hpo.study.sizes import full_scale_sizes
from hpo.study.spec import StudySpec
from storage.figures import TRIAL_FIELDS
from storage.records import Convergence, Study, Trial, TrialState
from storage.store import Store
from trainers.job import Question

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

TRIALS_AT_A_TIME = 500
POINTS = 200
"""Default for the maximum number of intermediate values of a trial."""
BATCH_SIZE = "global_batch_size"
ENDED_WITHOUT = (TrialState.CENSORED, TrialState.PRUNED, TrialState.DIVERGED)


def optuna_study(
    study: Study,
    spec: StudySpec,
    trials: Sequence[Trial],
    *,
    store: Store | None = None,
    storage: optuna.storages.BaseStorage | None = None,
    global_batch_size: int | None = None,
    count_missed: bool = False,
    points: int = POINTS,
) -> optuna.Study:
    """Return an Optuna study with the trials, in memory or in the given Optuna ``storage``.

    Curves are read from ``store``, with at most ``points`` values each; without a store, trials have no curves. With
    ``global_batch_size``, the study has only the trials at that batch size, which is then not a parameter. With
    ``count_missed``, a trial that ended without reaching the target is COMPLETE too, with the epochs of the longest
    trial at its batch size as its value (for a fixed budget: with the worst metric of the complete trials). Raises
    :class:`ExportError` if Optuna is not installed, and :class:`EvidenceError` for a batch size that no trial has.
    """
    try:
        import optuna
    except ImportError as error:
        raise ExportError(
            "an Optuna study needs Optuna, which is not installed; pip install 'largebatch[train]'"
        ) from error
    chosen, question = trials_at(trials, global_batch_size), spec.question
    upwards = question.fixed and question.target.higher_is_better
    with quiet_optuna():
        made = optuna.create_study(
            study_name=optuna_study_name(study, global_batch_size),
            storage=storage,
            direction="maximize" if upwards else "minimize",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        made.set_metric_names([question.answer])
    for name, value in _about(study, spec).items():
        made.set_user_attr(name, value)
    space = _space(spec, chosen, with_batch=global_batch_size is None)
    missed = _missed(chosen, question) if count_missed else {}
    for trial, curve in _with_curves(store, chosen):
        made.add_trial(
            _frozen(trial, question, space, curve, points, missed, dict(full_scale_sizes(spec)))
        )
    return made


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna's message about a newly created study."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def optuna_study_name(study: Study, global_batch_size: int | None) -> str:
    """Return a study's name in Optuna: its own, with the batch size appended if only that batch size is exported
    (``digits-512``).
    """
    return study.name if global_batch_size is None else f"{study.name}-{global_batch_size}"


def trials_at(trials: Sequence[Trial], batch: int | None) -> list[Trial]:
    """Return the trials at a batch size, or all if None; raise :class:`EvidenceError` if no trial has that batch
    size.
    """
    found = [trial for trial in trials if batch in (None, trial.global_batch_size)]
    if batch is not None and not found:
        batches = sorted({trial.global_batch_size for trial in trials})
        raise EvidenceError(
            f"global_batch_size must be one of those trained "
            f"({', '.join(map(str, batches)) or 'none yet'}), but got {batch}"
        )
    return found


def _missed(trials: Sequence[Trial], question: Question) -> dict[int, float]:
    """Return, by batch size, the value assigned to trials that missed the target: the longest trial's epochs, or the
    worst metric.
    """
    worst: dict[int, float] = {}
    for trial in trials:
        epochs = max(trial.epochs_to_target or 0.0, trial.epochs or 0.0)
        need = question.need(trial) if question.fixed else epochs
        if need:
            worst[trial.global_batch_size] = max(worst.get(trial.global_batch_size, 0.0), need)
    return {batch: question.told(need) for batch, need in worst.items()}


def _with_curves(
    store: Store | None, trials: Sequence[Trial]
) -> Iterator[tuple[Trial, Convergence | None]]:
    for first in range(0, len(trials), TRIALS_AT_A_TIME):
        part = trials[first : first + TRIALS_AT_A_TIME]
        curves = store.convergence([trial.id for trial in part]) if store else None
        for trial in part:
            yield trial, curves.of(trial.id) if curves else None


def _space(
    spec: StudySpec, trials: Sequence[Trial], *, with_batch: bool
) -> dict[str, BaseDistribution]:
    """Return the distribution of each parameter, which is the same for all trials."""
    from optuna.distributions import IntDistribution

    space: dict[str, BaseDistribution] = {}
    if with_batch:
        batches = [*spec.ladder, *(trial.global_batch_size for trial in trials)]
        space[BATCH_SIZE] = IntDistribution(min(batches), max(batches), log=True)
    for name, size in full_scale_sizes(spec):
        sizes = [size, *(int(trial.settings.get(name, size)) for trial in trials)]
        space[name] = IntDistribution(min(sizes), max(sizes), log=True)
    for name, distribution in spec.search.to_optuna().items():
        space[name] = distribution
        for trial in trials:
            space[name] = wide_enough(space[name], trial.settings.get(name)) or space[name]
    return space


def _frozen(
    trial: Trial,
    question: Question,
    space: Mapping[str, BaseDistribution],
    curve: Convergence | None,
    points: int,
    missed: Mapping[int, float],
    sizes: Mapping[str, int],
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
    answered = question.need(trial) is not None
    value = trial.epochs_to_target
    if question.fixed:
        value = trial.best_metric if answered else None
    if answered:
        state = states.COMPLETE
    elif trial.state in ENDED_WITHOUT and trial.global_batch_size in missed:
        state, value = states.COMPLETE, missed[trial.global_batch_size]
    params = {name: _value(trial, name, sizes) for name in space}
    distributions = {
        name: distribution
        for name, distribution in space.items()
        if wide_enough(distribution, params[name]) == distribution
    }
    started = trial.started_at or trial.finished_at
    return optuna.trial.FrozenTrial(
        number=trial.number,
        trial_id=-1,
        state=state,
        value=value,
        datetime_start=None
        if state == states.WAITING
        else _local(started) or datetime.fromtimestamp(0),
        datetime_complete=_local(trial.finished_at) if state.is_finished() else None,
        params={name: params[name] for name in distributions},
        distributions=distributions,
        user_attrs=_attributes(trial, [name for name in params if name not in distributions]),
        system_attrs={},
        intermediate_values={} if curve is None else _intermediate(curve, points),
    )


def _value(trial: Trial, name: str, sizes: Mapping[str, int]) -> Any:
    """Return the value of a trial's parameter; a size that the trial does not record defaults to full scale."""
    if name == BATCH_SIZE:
        return trial.global_batch_size
    return trial.settings.get(name, sizes.get(name))


def wide_enough(distribution: BaseDistribution, value: Any) -> BaseDistribution | None:
    """Return the distribution, widened if ``value`` is outside its range; None if that is impossible.

    A categorical distribution is never widened, as Optuna does not allow adding a choice.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return distribution if value in distribution.choices else None
    if isinstance(distribution, FloatDistribution | IntDistribution) and value is not None:
        if distribution.low <= value <= distribution.high:
            return distribution
        if distribution.log and value <= 0:
            return None
        return type(distribution)(
            min(distribution.low, value), max(distribution.high, value), log=distribution.log
        )
    return None


def _intermediate(curve: Convergence, points: int) -> dict[int, float]:
    """Return the metric by step, from at most ``points`` evenly spaced evaluations, including the first and last."""
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
        "number": trial.number,
        "global_batch_size": trial.global_batch_size,
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
        "target": str(spec.question)
        if spec.question.fixed
        else f"{study.metric} {relation} {study.threshold:g}",
        "workload": study.workload,
        "value": spec.question.answer,
        "intermediate_values": f"{study.metric} by optimizer step",
        "fixed_settings": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in spec.search.fixed.items()
        },
        "spec": study.spec,
    }


def _local(time: datetime | None) -> datetime | None:
    """Convert a time to the form that Optuna uses: local time without a time zone."""
    return None if time is None else time.astimezone().replace(tzinfo=None)
