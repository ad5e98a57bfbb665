"""Converts a past run to a finished trial of a study: maps names, parses values and decides how the run ended.

A run is imported if it is comparable to the study's trials: it records its batch size and every setting that the study
tunes, and contradicts no setting that the study fixes. If the run has a curve, the curve shows how it ended:

========================================== ====================================================================
the curve                                  the trial
========================================== ====================================================================
reaches the target                         ``reached``, with the epochs of the first evaluation at the target
has a loss or metric that is not finite    ``diverged``, unless it reached the target before that; a value that was
                                           not logged does not count
ends before the target                     ``censored`` if the run's own status is finished or missing; ``pruned`` if
                                           the status is pruned; otherwise left out, unless the caller maps the status
                                           to a state
========================================== ====================================================================

A run without a curve reached the target if it gives ``epochs_to_target``, unless its ``state`` says that it ended
otherwise; a state such as finished says only that it ended.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hpo.errors import EvidenceError
from hpo.past_runs.past_run import PastRun, Reading
from hpo.study.jobs import said_train_samples
from hpo.study.sizes import full_scale_sizes, length_share, sizes_of_settings
from hpo.study.spec import StudySpec
from search_spaces.domains import Categorical, Float, Int
from search_spaces.names import nearest_or_all
from search_spaces.own_settings import OwnSetting
from search_spaces.settings import (
    SettingError,
    TrainingSettings,
    check_value,
    default_of,
    is_whole,
    names,
    range_of,
)
from search_spaces.techniques import own_settings_of
from storage.errors import InvalidRecord
from storage.figures import MOST_SAMPLES, MOST_WHOLE, fault_of_points
from storage.records import ConvergencePoint, NewTrial, TrialPurpose, TrialResult, TrialState
from trainers.job import LENGTH
from trainers.report import BUDGET_TOLERANCE

Axis = Literal["epochs", "epoch-index", "updates", "samples"]
"""The units of a curve's steps: completed epochs, epochs counted from 0, optimizer updates, or samples."""

METRIC = "metric"
BATCH_NAMES = ("global_batch_size", "local_batch_size", "workers", "accumulation")
"""The batch size: the total, or samples per worker times workers times micro batches per worker."""

LOSSES = ("loss", "train_loss")
RESULT_NAMES = (
    METRIC,
    *LOSSES,
    "epochs",
    "epochs_to_target",
    "seed",
    "seconds",
    "state",
)
ENDED = ("finished", "complete", "completed", "")
"""The statuses that say only that a run ended by itself, not whether it reached the target."""
STATES = {
    **dict.fromkeys(ENDED, TrialState.CENSORED),
    "pruned": TrialState.PRUNED,
    **{str(state): state for state in TrialState if state.finished},
}
"""Meaning of a run's own status, used if its curve does not show how it ended.

Runs that ``failed`` are left out, because a crash says nothing about the settings of the run.
"""
SKIP = "skip"
LEAST_STORED, MOST_STORED = -(2**63), 2**63 - 1
"""The whole numbers that a setting may have, and a seed from 0: those of a 64-bit column."""


class SkippedRunError(Exception):
    """Raised with the reason why a run cannot be a trial of the study."""


@dataclass(frozen=True)
class ImportOptions:
    """Options for reading the names and values of a source.

    ``mapping`` maps the source's names to this project's, and goes before a name that is the same in both; ``states``
    maps its statuses, in lower case, to trial states or ``skip``. ``axis`` is the unit of the curves' steps.
    ``train_samples`` is the size of the training set, which converts updates and samples to epochs, and epochs to
    samples.
    """

    mapping: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    axis: Axis = "updates"
    train_samples: int | None = None


@dataclass(frozen=True)
class ImportedTrial:
    """A finished trial, ready to be stored, with its curve."""

    new: NewTrial
    result: TrialResult
    points: tuple[ConvergencePoint, ...] = ()


def check_options(
    spec: StudySpec, runs: Sequence[PastRun], options: ImportOptions
) -> ImportOptions:
    """Return the options with the size of the training set; raise :class:`EvidenceError` for an unknown name."""
    ours = {*_settings_of(spec), *BATCH_NAMES, *RESULT_NAMES, spec.target.metric}
    theirs = {name for run in runs for name in run.names}
    taken: dict[str, str] = {}
    for name, own in options.mapping.items():
        if own not in ours:
            others = ", ".join(sorted(ours - {*_settings_of(spec)}))
            raise EvidenceError(
                f"{name}={own}: {own!r} is neither a setting nor one of {others}{nearest_or_all(own, ours)}"
            )
        if name not in theirs:
            raise EvidenceError(f"{name}={own}: no run has {name!r}{nearest_or_all(name, theirs)}")
        meant = _meant(spec, own)
        if meant in taken:
            raise EvidenceError(
                f"{own} can come from one name, but got {taken[meant]!r} and {name!r}; map only one of them"
            )
        taken[meant] = name
    for status, state in options.states.items():
        if state not in (SKIP, *(str(each) for each in TrialState if each.finished)):
            raise EvidenceError(
                f"{status}={state}: a run's status must map to reached, censored, diverged, "
                f"pruned, failed or skip, but got {state!r}"
            )
    train_samples = options.train_samples or said_train_samples(spec)
    if train_samples is None and any(run.curves for run in runs):
        raise EvidenceError(
            "curves need the number of training samples, to convert between updates, epochs "
            "and samples: give --train-samples"
        )
    return ImportOptions(options.mapping, options.states, options.axis, train_samples)


def trial_of_past_run(
    spec: StudySpec, run: PastRun, options: ImportOptions, next_seed: Callable[[NewTrial], int]
) -> ImportedTrial:
    """Return the run as a trial of the study; raise :class:`SkippedRunError` with the reason if it cannot be one.

    ``next_seed`` returns a seed for a run that does not record its seed.
    """
    said = _by_our_names(spec, run, options.mapping)
    batch = _batch_size(said.values)
    settings = _settings(spec, said.values)
    new = NewTrial(
        global_batch_size=batch,
        seed=0,
        settings=settings.to_dict(),
        purpose=TrialPurpose.IMPORTED,
    )
    seed = _whole(said.values, "seed") if "seed" in said.values else next_seed(new)
    new = dataclasses.replace(new, seed=seed)
    budget = spec.question.epochs
    if budget is not None:
        budget *= length_share(spec, sizes_of_settings(spec, settings.own))
    points = _points(said, batch, options) if METRIC in said.curves else []
    if fault := fault_of_points(points):
        raise SkippedRunError(f"its curve is not a valid training curve: {fault}")
    try:
        result = (
            _end_of_curve(spec, points, said, options, budget)
            if points
            else _end_of_values(spec, said, options, budget)
        )
    except InvalidRecord as error:
        raise SkippedRunError(str(error)) from error
    return ImportedTrial(new, result, tuple(points))


def assumed_settings(spec: StudySpec, runs: Iterable[PastRun], options: ImportOptions) -> list[str]:
    """Return the settings that the study fixes and no run records; the study's values are assumed for them."""
    said = {options.mapping.get(name, name) for run in runs for name in run.values}
    return sorted(set(spec.search.fixed) - said)


@dataclass(frozen=True)
class _Said:
    """A run's values and curves, under this project's names."""

    run: PastRun
    values: Mapping[str, Any]
    curves: Mapping[str, Sequence[Reading]]


def _settings_of(spec: StudySpec) -> tuple[str, ...]:
    """Return the settings that a run may record: the common settings, the study's own, and the sizes of its ladder."""
    return (*names(), *_described(spec), *spec.search.own_names, *dict(full_scale_sizes(spec)))


def _described(spec: StudySpec) -> dict[str, OwnSetting]:
    """Return the settings specific to the study's optimizers and schedules (including plug-ins), by name."""
    return own_settings_of(spec.search.possible)


def _by_our_names(spec: StudySpec, run: PastRun, mapping: Mapping[str, str]) -> _Said:
    known = {*_settings_of(spec), *BATCH_NAMES, *RESULT_NAMES, spec.target.metric}
    explicit = {_meant(spec, own) for own in mapping.values()}

    def ours(name: str) -> str | None:
        if name in mapping:
            return _meant(spec, mapping[name])
        own = _meant(spec, name)
        return own if name in known and own not in explicit else None

    return _Said(
        run,
        {own: value for name, value in run.values.items() if (own := ours(name)) and _told(value)},
        {own: curve for name, curve in run.curves.items() if (own := ours(name)) and curve},
    )


def _meant(spec: StudySpec, own: str) -> str:
    """Return a name of this project, which is ``metric`` for the name of the target's metric."""
    return METRIC if own == spec.target.metric else own


def _told(value: Any) -> bool:
    return value is not None and value not in ("", "None", "null")


def _batch_size(values: Mapping[str, Any]) -> int:
    found = _told_batch_size(values)
    if found > MOST_WHOLE:
        raise SkippedRunError(f"its batch must be at most {MOST_WHOLE}, but is {found:g}")
    return found


def _told_batch_size(values: Mapping[str, Any]) -> int:
    if "global_batch_size" in values:
        return _whole(values, "global_batch_size", least=1, most=MOST_WHOLE)
    if "local_batch_size" in values:
        return math.prod(
            _whole(values, name, least=1, most=MOST_WHOLE)
            for name in BATCH_NAMES[1:]
            if name in values
        )
    raise SkippedRunError(
        "it does not give its batch size: map a name to global_batch_size, or to "
        "local_batch_size, workers and "
        "accumulation"
    )


def _settings(spec: StudySpec, values: Mapping[str, Any]) -> TrainingSettings:
    told = {name: _setting(name, values[name]) for name in names() if name in values}
    told |= {
        name: _described_setting(name, setting, values[name])
        for name, setting in _described(spec).items()
        if name in values
    }
    told |= {
        name: _own_setting(spec, name, values[name])
        for name in spec.search.own_names
        if name in values
    }
    sizes = _sizes(spec, values)
    missing = sorted(set(spec.search.domains) - told.keys())
    if missing:
        raise SkippedRunError(f"it does not give {', '.join(missing)}, which the study tunes")
    for name, fixed in spec.search.fixed.items():
        if name in told and not _same(told[name], fixed):
            raise SkippedRunError(
                f"its {name} is {_shown(told[name])}, but the study fixes {_shown(fixed)}"
            )
    base = TrainingSettings.from_record(spec.search.fixed)
    for name, value in told.items():
        if name not in spec.search.domains and not _same(value, base.value(name)):
            raise SkippedRunError(
                f"its {name} is {_shown(value)}, but the study's trials have "
                f"{_shown(base.value(name))}"
            )
    try:
        return TrainingSettings.from_record({**spec.search.fixed, **told, **sizes})
    except SettingError as error:
        raise SkippedRunError(str(error)) from error


def _sizes(spec: StudySpec, values: Mapping[str, Any]) -> dict[str, int]:
    """Return the run's model sizes and length, by the names under which trials store them."""
    sizes = [name for name, _ in full_scale_sizes(spec)]
    missing = [name for name in sizes if name not in values]
    if missing:
        raise SkippedRunError(
            f"it does not give {' and '.join(missing)}, which the study's ladder varies: map a name to each"
            + (f" ({LENGTH} is the length of a run, in samples)" if LENGTH in missing else "")
        )
    return {name: _whole(values, name, least=1, most=MOST_WHOLE) for name in sizes}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == (tuple(other) if isinstance(other, list) else other))


def _setting(name: str, value: Any) -> Any:
    """Return a setting's value from another tool's record, in which it is often a string."""
    default = default_of(name)
    found = value
    if range_of(name) is not None:
        found = _in_a_range(name, value, whole=is_whole(name))
    elif isinstance(value, str):
        text = value.strip()
        if text.lower() in ("true", "false"):
            found = text.lower() == "true"
        elif isinstance(default, tuple):
            try:
                found = tuple(json.loads(text.replace("(", "[").replace(")", "]")))
            except (TypeError, ValueError):
                raise SkippedRunError(
                    f"its {name} must be a list of numbers, but got {value!r}"
                ) from None
        else:
            found = text.lower()
    elif isinstance(value, list):
        found = tuple(value)
    try:
        check_value(name, found)
    except SettingError as error:
        raise SkippedRunError(str(error)) from error
    return found


def _described_setting(name: str, setting: OwnSetting, value: Any) -> Any:
    """Return the value of a setting that is specific to an optimizer or schedule."""
    found = value
    if setting.range is not None:
        found = _in_a_range(name, value, whole=setting.whole)
    elif isinstance(value, str):
        text = value.strip().lower()
        found = text if setting.choices else {"true": True, "false": False}.get(text, text)
    try:
        setting.check(name, found)
    except SettingError as error:
        raise SkippedRunError(str(error)) from error
    return found


def _own_setting(spec: StudySpec, name: str, value: Any) -> Any:
    """Return the value of a setting specific to the study's workload, in the type of its domain or fixed value."""
    domain, fixed = spec.search.domains.get(name), spec.search.fixed.get(name)
    if isinstance(domain, Categorical):
        choices = {str(choice).lower(): choice for choice in domain.values}
        if str(value).lower() not in choices:
            raise SkippedRunError(
                f"its {name} is {value!r}, which is not one of the study's choices"
            )
        return choices[str(value).lower()]
    if isinstance(domain, Int):
        return _whole({name: value}, name, least=LEAST_STORED)
    if isinstance(domain, Float) or _is_number(fixed):
        return _number(name, value)
    return fixed if str(value).lower() == str(fixed).lower() else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: Any) -> float:
    """Return ``float(value)``; infinity for a whole number beyond the largest float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _number(name: str, value: Any) -> float:
    try:
        found = _float(value)
    except (TypeError, ValueError):
        raise SkippedRunError(f"its {name} must be a number, but got {value!r}") from None
    if not math.isfinite(found):
        raise SkippedRunError(f"its {name} must be finite, but got {_cut(value)}")
    return found


def _in_a_range(name: str, value: Any, *, whole: bool) -> float:
    """Return the value of a setting that has a range, as a whole number if the setting takes only those."""
    found = _number(name, value)
    if whole and found == round(found):
        return _whole({name: value}, name, least=LEAST_STORED)
    return found


def _whole(values: Mapping[str, Any], name: str, *, least: int = 0, most: int = MOST_STORED) -> int:
    found = _exactly(name, values[name])
    if found != round(found) or not least <= found <= most:
        raise SkippedRunError(
            f"its {name} must be a whole number from {least} to {most}, but got {_cut(values[name])}"
        )
    return round(found)


def _exactly(name: str, value: Any) -> float:
    """Return a number, which is exact if it is written as a whole number: a float has 53 bits, some seeds have 64."""
    try:
        return int(value) if isinstance(value, str | int) else _number(name, value)
    except ValueError:  # not written as a whole number
        return _number(name, value)


def _cut(value: Any) -> str:
    """Return a value as it stands in the source, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _points(said: _Said, batch: int, options: ImportOptions) -> list[ConvergencePoint]:
    """Return the curve of the metric with the other values logged at the same steps, ordered by epochs."""
    samples, epochs_at = _train_samples(options), _epochs_by_step(said, batch, options)
    others = {name: _by_step(said, name) for name in ("loss", "train_loss", "learning_rate")}
    rate = _number("learning_rate", said.values.get("learning_rate", 0.0))
    points: dict[int, ConvergencePoint] = {}
    for reading in said.curves[METRIC]:
        epochs = epochs_at(reading.step)
        if epochs <= 0 or not math.isfinite(epochs):
            continue  # an evaluation before training started
        trained = epochs * samples
        if not trained <= MOST_SAMPLES:
            raise SkippedRunError(
                f"its curve is not a valid training curve: samples must be at most {MOST_SAMPLES}, but got "
                f"{trained:g} at step {reading.step:g}; does --axis name the unit of its steps?"
            )
        step = max(1, round(trained / batch))
        points[step] = ConvergencePoint(
            step=step,
            samples=round(trained),
            epochs=epochs,
            seconds=max(0.0, float(reading.seconds or 0.0)),
            train_loss=others["train_loss"].get(reading.step, math.nan),
            loss=others["loss"].get(reading.step, math.nan),
            metric=float(reading.value),
            learning_rate=others["learning_rate"].get(reading.step, float(rate)),
            global_batch_size=batch,
        )
    return [points[step] for step in sorted(points)]


def _train_samples(options: ImportOptions) -> int:
    if options.train_samples is None:
        raise EvidenceError("curves need the number of training samples: give --train-samples")
    return options.train_samples


def _by_step(said: _Said, name: str) -> dict[float, float]:
    """Return the curve of one name by step; a value that was logged again replaces the earlier one."""
    return {reading.step: float(reading.value) for reading in said.curves.get(name, ())}


def _epochs_by_step(said: _Said, batch: int, options: ImportOptions) -> Callable[[float], float]:
    """Return a function that converts a step of the curves to epochs."""
    samples, told = _train_samples(options), _by_step(said, "epochs")

    def epochs_at(step: float) -> float:
        return told[step] if step in told else _epochs(step, batch, samples, options.axis)

    return epochs_at


def _epochs_to_lost_loss(said: _Said, batch: int, options: ImportOptions) -> float:
    """Return the epochs until the first loss that was logged and is not finite; infinity if there is none."""
    epochs_at = _epochs_by_step(said, batch, options)
    lost = (
        epochs_at(step)
        for name in LOSSES
        for step, value in _by_step(said, name).items()
        if not math.isfinite(value)
    )
    return min((epochs for epochs in lost if epochs > 0), default=math.inf)


def _epochs(step: float, batch: int, samples: int, axis: Axis) -> float:
    return {
        "epochs": step,
        "epoch-index": step + 1,
        "updates": step * batch / samples,
        "samples": step / samples,
    }[axis]


def _end_of_curve(
    spec: StudySpec,
    points: Sequence[ConvergencePoint],
    said: _Said,
    options: ImportOptions,
    budget: float | None,
) -> TrialResult:
    """Return how a run with a curve ended; ``budget`` are the epochs of a fixed budget."""
    better = max if spec.target.higher_is_better else min
    lost = _epochs_to_lost_loss(said, points[0].global_batch_size, options)
    if budget is not None:  # points beyond the budget say nothing about the result within it
        points = [point for point in points if point.epochs <= BUDGET_TOLERANCE * budget] or points[
            :1
        ]
        lost = lost if lost <= BUDGET_TOLERANCE * budget else math.inf
    last = points[-1]
    seconds = last.seconds or said.run.seconds
    made = functools.partial(
        TrialResult,
        epochs=last.epochs,
        steps=last.step,
        seconds=seconds,
        reason=reason_of_past_run(said.run),
        best_metric=better(
            (point.metric for point in points if math.isfinite(point.metric)), default=None
        ),
        final_metric=last.metric,
    )
    for before, point in zip([None, *points], points, strict=False):
        resolution = point.epochs - (before.epochs if before else 0.0)
        if spec.target.reached(point.metric):
            return made(
                state=TrialState.REACHED,
                epochs_to_target=point.epochs,
                resolution_epochs=resolution,
            )
        if not math.isfinite(point.metric) or lost <= point.epochs:
            return made(state=TrialState.DIVERGED, epochs=point.epochs, steps=point.step)
    if math.isfinite(lost):  # after the last evaluation
        return made(state=TrialState.DIVERGED)
    state = _state(said, options)
    if state is TrialState.REACHED:
        raise SkippedRunError("its state is reached, but its curve does not reach the target")
    return made(state=state, resolution_epochs=_resolution(points))


def _resolution(points: Sequence[ConvergencePoint]) -> float:
    return points[-1].epochs - (points[-2].epochs if len(points) > 1 else 0.0)


def _end_of_values(
    spec: StudySpec, said: _Said, options: ImportOptions, budget: float | None
) -> TrialResult:
    """Return how a run without a curve ended, judged only by its recorded values; ``budget`` are the epochs of a fixed
    budget.
    """
    values = said.values
    epochs = _number("epochs", values["epochs"]) if "epochs" in values else None
    seconds = _number("seconds", values["seconds"]) if "seconds" in values else said.run.seconds
    final = _metric(values)
    made = functools.partial(
        TrialResult,
        seconds=seconds,
        reason=reason_of_past_run(said.run),
        best_metric=final,
        final_metric=final,
    )
    if "epochs_to_target" in values:
        reached = _number("epochs_to_target", values["epochs_to_target"])
        state = _state(said, options, default=TrialState.REACHED)
        if reached <= 0:
            raise SkippedRunError(f"its epochs_to_target must be above 0, but got {reached:g}")
        if state is TrialState.REACHED or (
            state is TrialState.CENSORED and not _says_censored(values, options)
        ):
            return made(
                state=TrialState.REACHED, epochs_to_target=reached, epochs=epochs or reached
            )
        return made(state=state, epochs=reached)
    state = _state(said, options)
    if final is not None and not math.isfinite(final):
        state = TrialState.DIVERGED
    elif state is TrialState.REACHED or (final is not None and spec.target.reached(final)):
        raise SkippedRunError(
            "it reached the target, but the number of epochs is missing: give its curve, or "
            "map a name to "
            "epochs_to_target"
        )
    elif any(_is_lost(values.get(name)) for name in LOSSES):
        state = TrialState.DIVERGED
    if state is not TrialState.DIVERGED and (epochs is None or final is None):
        raise SkippedRunError(
            f"it has no curve of {spec.target.metric}, and does not give both its epochs and "
            f"its last {spec.target.metric}: map names to them"
        )
    if budget is not None and epochs is not None and epochs > BUDGET_TOLERANCE * budget:
        raise SkippedRunError(
            f"it trained for {epochs:g} epochs, but the study's budget is {budget:g}, and no curve "
            f"shows its metric at that point"
        )
    if epochs is not None and epochs <= 0:
        raise SkippedRunError(f"its epochs must be above 0, but got {epochs:g}")
    return made(state=state, epochs=epochs)


def _metric(values: Mapping[str, Any]) -> float | None:
    if METRIC not in values:
        return None
    try:
        return _float(values[METRIC])  # a diverged run ends with NaN
    except (TypeError, ValueError):
        raise SkippedRunError(f"its metric must be a number, but got {values[METRIC]!r}") from None


def _is_lost(value: Any) -> bool:
    """Return whether a final loss is a number that is not finite; a name, such as that of a loss function, is not."""
    try:
        return not math.isfinite(_float(value))
    except (TypeError, ValueError):
        return False


def _state(said: _Said, options: ImportOptions, default: TrialState | None = None) -> TrialState:
    status = _status(said.values.get("state", said.run.status))
    told = options.states.get(status)
    state = (
        TrialState(told)
        if told not in (None, SKIP)
        else default
        if default is not None and not status
        else STATES.get(status)
    )
    if told == SKIP or state is None or (told is None and state is TrialState.FAILED):
        raise SkippedRunError(
            f"it ended as {status!r}"
            + ("" if told == SKIP else f"; --state {status}=censored uses its curve up to then")
        )
    return state


def _says_censored(values: Mapping[str, Any], options: ImportOptions) -> bool:
    """Return whether a censored run's own ``state`` denies that it reached the target, by its word or the caller's."""
    state = _status(values.get("state", ""))
    return state not in ENDED or state in options.states


def _status(text: Any) -> str:
    return str(text).strip().lower()


def reason_of_past_run(run: PastRun) -> str:
    """Return the reason of the run's trial, which holds the run's label."""
    return f"imported: {run.label}"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
