"""Converts between the service's values and the storage's records."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpo.errors import (
    LaunchError,
    PlanError,
    SpecError,
    StorageUnavailableError,
    StudyNotFoundError,
    TuningError,
)
from hpo.extrapolation.evidence.stored import measured_trials, noise_scales
from hpo.extrapolation.inference.intervals import BestMetric, Interval
from hpo.planning.launchers import launch_script_name
from hpo.planning.launchers.launch import LaunchReport, prepare_folder, write_plan
from hpo.planning.plan import Plan, planned_job, read_plan
from hpo.runs.fits import keep_fit
from hpo.runs.ramp import noise_course
from hpo.runs.results import PlannedRun, StudyForecast, StudyResult
from hpo.study import yaml_text
from hpo.study.jobs import (
    model_sizes_of_job,
    said_train_samples,
    search_path,
    some_settings,
    training_job,
)
from hpo.study.sizes import fault_of_other_model_sizes, full_scale_sizes
from hpo.study.spec import StudySpec, parse_stored_study
from search_spaces.settings import TrainingSettings
from storage import records
from storage.errors import DamagedRow, LeaseLost, NotFound, StoreError
from storage.figures import fault_of_reached
from storage.records import (
    NewForecast,
    NewOutcome,
    NewPlan,
    NewStudy,
    NewThroughput,
    Outcome,
    Study,
    Trial,
    TrialState,
    Trust,
)
from storage.store import Store
from trainers.cost import WorkloadCost
from trainers.job import TrainingJob
from trainers.json_text import json_text

_log = logging.getLogger(__name__)
DEFAULT_STORAGE = "sqlite:///hpo.db"
DEFAULT_FOLDER = Path(".hpo")
"""Default folder for plans, and for checkpoints of running trials."""


@contextmanager
def open_store(storage: str, *, create: bool = True) -> Iterator[Store]:
    """Open the store at a URL, creating a missing one if ``create`` is true; its errors are raised as the service's
    own.
    """
    try:
        with Store.open(storage, create=create) as store:
            yield store
    except NotFound as error:
        raise StudyNotFoundError(str(error)) from error
    except LeaseLost as error:
        raise TuningError(str(error)) from error
    except StoreError as error:
        raise StorageUnavailableError(str(error)) from error


def enter_study(store: Store, spec: StudySpec) -> Study:
    """Return the study with this name, and create it if it is new; an existing study must agree in every key that makes
    trials comparable.

    A new study is not queued for workers, because the caller runs it.
    """
    try:
        study = store.study(spec.name)
    except NotFound:
        spec.check_new()
        study = store.create_study(
            NewStudy(
                name=spec.name,
                workload=spec.workload,
                metric=spec.target.metric,
                threshold=spec.target.threshold,
                higher_is_better=spec.target.higher_is_better,
                spec=spec.text,
                folder=search_path(spec),
                budget_trials=spec.budget.asked_trials,
            )
        )
    before = spec if study.spec == spec.text else compared_spec(study, spec)
    for name, old, new in ((name, _value(before, name), _value(spec, name)) for name in COMPARABLE):
        if old != new:
            raise spec.error(
                f"study {spec.name!r} is in the storage with another {name}, so its trials and "
                f"new ones would not be comparable: {old} there, {new} here; rename this "
                f"study, or the stored one (`hpo rename {spec.name} NAME`)",
                *name.split("."),
            )
    if fault := fault_of_other_model_sizes(before.to_dict(), spec.to_dict()):
        raise spec.error(fault, "ladder")
    return study


def stored_spec(study: Study) -> StudySpec:
    """Return a stored study's specification, with the folder of its modules and data. Raises :class:`SpecError`."""
    return parse_stored_study(study.spec, folder=study.folder or None)


def compared_spec(study: Study, spec: StudySpec) -> StudySpec:
    """Return a stored study's specification to compare with the one that continues it.

    Its sampler, which may change, may be missing here; that of ``spec`` then takes its place.
    """
    try:
        return stored_spec(study)
    except SpecError as error:
        values = yaml_text.read(study.spec).value
        if not isinstance(values, dict) or values.get("sampler", spec.sampler) == spec.sampler:
            raise
        try:
            return parse_stored_study(
                yaml_text.write({**values, "sampler": spec.sampler}),
                folder=study.folder or None,
            )
        except SpecError:
            raise error from None


def stored_job(study: Study, trial: Trial) -> TrainingJob:
    """Return the job of a trial, as a trainer runs it. Raises :class:`SpecError`."""
    settings = TrainingSettings.from_record(trial.settings)
    return training_job(stored_spec(study), settings, trial.global_batch_size, trial.seed)


COMPARABLE = (
    "workload",
    "data",
    "target",
    "search",
    "budget.epochs_per_trial",
    "budget.evaluations_per_epoch",
    "program.train_samples",
)
"""Keys that must not change when a study is continued (the ladder, number of trials, seeds and full_scale may).

Of a program, only the length of an epoch counts: a study whose command was wrong continues with the right one.
"""


def read_result(
    store: Store, name: str, storage: str, spec: StudySpec | None = None
) -> StudyResult:
    """Read all stored data of a study, with its newest forecast and the plans made from it.

    ``spec`` is the parsed study file if the caller has it; if None, the stored text is parsed.
    """
    study = store.study(name)
    spec = spec or stored_spec(study)
    runs = tuple(
        dataclasses.replace(run, sample_images=store.sample_images(run.plan.id or 0))
        if run.outcomes
        else run
        for run in planned_runs(store, study, spec)
    )
    trials = tuple(store.trials(study.id))
    measured = store.convergence(measured_trials(trials))
    return StudyResult(
        spec=spec,
        study=study,
        trials=trials,
        storage=storage,
        runs=runs,
        train_samples=_train_samples(store, trials, spec),
        noise_scales=noise_scales(measured),
        noise_courses=tuple(
            course
            for trial_id in dict.fromkeys(measured.trial_id.tolist())
            if (course := noise_course(measured.of(trial_id))) is not None
        ),
        past=tuple(store.calibration()),
        cost=_cost(store, study),
        throughputs=tuple(store.throughputs()),
    )


def keep_cost(store: Store, study: Study, cost: WorkloadCost) -> None:
    """Store the cost of a sample of the study's workload, which its plans need."""
    if _cost(store, study) != cost:
        store.keep_cost(study.id, records.WorkloadCost(**dataclasses.asdict(cost)))


def measure_cost(store: Store, study: Study, spec: StudySpec) -> str:
    """Measure and store the cost of a sample of the study's workload at full scale, unless it is known; return an error
    message, or "".

    Plans for other machines need the cost but the study itself does not, so an error here does not fail the study. A
    known cost is replaced if the full scale of the model has changed, or the figures that a program's study gives.
    """
    from trainers.cost import workload_cost
    from trainers.workloads import load_workload

    known = _cost(store, study)
    if spec.program and not isinstance(spec.program.cost, Mapping):
        return ""
    if known is not None and not spec.sizes and not spec.program:
        return ""
    try:
        job = training_job(spec, some_settings(spec), spec.ladder[-1], seed=0)
        cost = workload_cost(
            load_workload(job.workload, job.data, job.search_path),
            TrainingSettings(own=job.settings.of_workload),
        )
        if known is None or spec.program or _counts(cost) != _counts(known):
            keep_cost(store, study, cost)
    except StoreError:
        raise
    except Exception as error:  # the workload may be arbitrary code
        return f"the cost of a sample could not be measured, so plans need --cost: {error}"
    return ""


def _counts(cost: WorkloadCost) -> tuple[float, ...]:
    """Return the figures that follow from the model alone; the others differ a little with every measurement."""
    return (
        cost.parameters,
        cost.gradient_tensors,
        cost.flops_per_sample,
        cost.activation_bytes_per_sample,
    )


def _cost(store: Store, study: Study) -> WorkloadCost | None:
    stored = store.cost(study.id)
    return None if stored is None else WorkloadCost(**dataclasses.asdict(stored))


def _train_samples(store: Store, trials: Sequence[Trial], spec: StudySpec) -> int:
    """Return the number of samples per epoch of a trial; for a growing batch, it comes from the trial's evaluations.

    If the trials do not give their updates, as imported ones may not, it is the number that the study's file gives; 0
    if it is unknown.
    """
    trained = [trial for trial in trials if trial.steps and trial.epochs]
    if trials and not trained:
        return said_train_samples(spec) or 0
    for trial in trained:
        if trial.settings["batch_control"] == "constant":
            return round((trial.steps or 0) * trial.global_batch_size / (trial.epochs or 1.0))
    points = store.points(trained[0].id) if trained else []
    return round(points[-1].samples / points[-1].epochs) if points else 0


def planned_runs(store: Store, study: Study, spec: StudySpec) -> list[PlannedRun]:
    """Return all plans of a study with their outcomes, in order of creation, without damaged ones."""
    reasons = {forecast.id: forecast.reason for forecast in store.forecasts(study.id)}
    runs = []
    for stored in store.plans(study.id):
        try:
            runs.append(_planned_run(store, stored, spec, reasons))
        except DamagedRow as error:
            _log.error("left out: %s", error)
    return runs


def planned_run(store: Store, plan_id: int) -> PlannedRun:
    """Return the plan with this number, its outcomes, and the reason given for its forecast. Raises
    :class:`DamagedRow`.
    """
    stored = store.plan(plan_id)
    study = store.study_by_id(stored.study_id)
    reasons = {forecast.id: forecast.reason for forecast in store.forecasts(study.id)}
    return _planned_run(store, stored, stored_spec(study), reasons)


def _planned_run(
    store: Store, stored: records.StoredPlan, spec: StudySpec, reasons: Mapping[int, str]
) -> PlannedRun:
    try:
        plan = _plan_of(stored, spec, reasons.get(stored.forecast_id or 0, ""))
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise DamagedRow(f"plan {stored.id}", error) from error
    return PlannedRun(plan, tuple(store.outcomes(stored.id)))


def keep_forecast(store: Store, forecast: StudyForecast) -> StudyForecast:
    """Store a forecast, unless it equals the study's newest one at this batch size."""
    numbers = forecast.numbers
    if forecast.posterior is not None:
        keep_fit(store, forecast.study_id, forecast.posterior)
    new = NewForecast(
        study_id=forecast.study_id,
        global_batch_size=forecast.global_batch_size,
        epochs_median=numbers.epochs_to_target.median,
        epochs_low=numbers.epochs_to_target.low,
        epochs_high=numbers.epochs_to_target.high,
        trust=Trust(numbers.trust),
        reason=numbers.reason,
        settings=tuple(
            records.SettingForecast(name, each.median, each.low, each.high)
            for name, each in numbers.settings.items()
        ),
        laws=tuple(
            records.Law(law, parameter, each.median, each.low, each.high)
            for law, parameters in numbers.laws.items()
            for parameter, each in parameters.items()
        ),
    )
    stored = [
        f
        for f in store.forecasts(forecast.study_id)
        if f.global_batch_size == new.global_batch_size
    ]
    same = (
        stored
        and math.isclose(stored[-1].epochs_median, new.epochs_median)
        and stored[-1].settings == new.settings
    )
    return dataclasses.replace(forecast, id=stored[-1].id if same else store.add_forecast(new).id)


def keep_plan(
    store: Store, forecast: StudyForecast, plan: Plan, directory: Path, backend: str
) -> Plan:
    """Store a plan and write its folder; an existing equivalent plan is returned with its id."""
    study = store.study(forecast.spec.name)
    prepare_folder(plan, directory, backend)
    for run in planned_runs(store, study, forecast.spec):
        if dataclasses.replace(run.plan, id=None) == plan:
            if not is_written(run.plan, directory):
                write_plan(run.plan, directory, backend=backend)
            return run.plan
    values = NewPlan(
        study_id=forecast.study_id,
        forecast_id=forecast.id,
        kind=plan.kind,
        machine=plan.machine,
        nodes=plan.nodes,
        workers=plan.workers,
        global_batch_size=plan.global_batch_size,
        local_batch_size=plan.local_batch_size,
        micro_batch_size=plan.job.micro_batch_size,
        settings=plan.job.settings.to_dict(),
        trust=Trust(plan.trust) if plan.trust else None,
        directory=str(directory),
        launcher=plan.launcher,
        ranks_per_node=plan.ranks_per_node,
        slot_seconds=plan.slot_seconds,
        chance_in_slot=plan.chance_in_slot,
        limited_by=plan.limited_by,
        details=_details(plan, model_sizes_of_job(forecast.spec, plan.job)),
        **_ends("epochs", plan.epochs),
        **_ends("seconds", plan.seconds),
    )
    kept = dataclasses.replace(plan, id=store.add_plan(values).id)
    write_plan(kept, directory, backend=backend)
    return kept


def is_written(plan: Plan, directory: Path) -> bool:
    """Return whether a folder holds the plan with its script, which may have been edited since it was written."""
    try:
        same = read_plan(directory).to_dict() == plan.to_dict()
    except PlanError:
        return False
    return same and (directory / launch_script_name(plan.launcher)).exists()


def holds_plan(plan: Plan, directory: Path) -> bool:
    """Return whether a folder holds the script of a stored plan, even if the study was continued or renamed since.

    Then the plan's seed, name and reason, which follow from the study, differ from those in the folder. A plan that is
    not stored must be the one in the folder.
    """
    if plan.id is None:
        return is_written(plan, directory)
    try:
        same = _launched_run(read_plan(directory)) == _launched_run(plan)
    except PlanError:
        return False
    return same and (directory / launch_script_name(plan.launcher)).exists()


def _launched_run(plan: Plan) -> tuple[object, ...]:
    return plan.id, plan.machine, plan.launcher, plan.nodes, plan.workers, plan.job.digest()


def keep_outcome(
    store: Store, plan_id: int, seed: int, backend: str, workers: int, launched: LaunchReport
) -> Outcome:
    """Store the outcome of a plan's launch: its result, its throughput, and sample images from its model."""
    outcome = launched.outcome
    if fault := fault_of_reached(outcome.epochs_to_target, outcome.epochs):
        raise LaunchError(f"the outcome of plan {plan_id}: {fault}")
    kept = store.add_outcome(
        NewOutcome(
            plan_id=plan_id,
            seed=seed,
            backend=backend,
            workers=workers,
            state=TrialState(outcome.state),
            epochs_to_target=outcome.epochs_to_target,
            epochs=outcome.epochs,
            seconds=outcome.seconds,
            best_metric=outcome.best_metric,
            reason=outcome.reason,
            restarts=launched.restarts,
            nodes=launched.nodes or None,
            samples_per_second=launched.samples_per_second,
        )
    )
    if launched.sample_images is not None:
        store.add_sample_images(kept.id, launched.sample_images)
    if launched.samples_per_second:
        store.add_throughputs(
            [_throughput(store, kept, launched.samples_per_second, launched.machine)]
        )
    return kept


def _throughput(
    store: Store, outcome: Outcome, samples_per_second: float, machine: str
) -> NewThroughput:
    plan = store.plan(outcome.plan_id)
    study = store.study_by_id(plan.study_id)
    return NewThroughput(
        machine=machine or plan.machine,
        workload=study.workload,
        nodes=outcome.nodes or plan.nodes,
        accelerators=outcome.workers,
        global_batch_size=plan.global_batch_size,
        precision=str(plan.settings["precision"]),
        samples_per_second=samples_per_second,
        source=f"outcome {outcome.id} of plan {plan.id}, {study.name}",
    )


def _value(spec: StudySpec, name: str) -> object:
    if name == "search":
        return spec.search.to_plain()
    section, _, key = name.partition(".")
    found = getattr(spec, section)
    return getattr(found, key) if key and found is not None else found


def _plan_of(stored: records.StoredPlan, spec: StudySpec, reason: str) -> Plan:
    settings = TrainingSettings.from_record(stored.settings)
    epochs = _interval(stored.epochs_median, stored.epochs_low, stored.epochs_high)
    seconds = _interval(stored.seconds_median, stored.seconds_low, stored.seconds_high)
    details = json.loads(stored.details) if stored.details else {}
    sizes = {**settings.own, **details.get("sizes", {})}  # its own, not today's full scale
    grown = {name: sizes[name] for name, _ in full_scale_sizes(spec) if name in sizes}
    job = planned_job(spec, settings, stored.global_batch_size, epochs, grown)
    return Plan(
        study=spec.name,
        kind=stored.kind,
        machine=stored.machine,
        nodes=stored.nodes,
        workers=stored.workers,
        job=dataclasses.replace(job, micro_batch_size=stored.micro_batch_size),
        epochs=epochs,
        seconds=seconds,
        trust=str(stored.trust or ""),
        reason=reason if epochs else "",
        id=stored.id,
        ranks_per_node=stored.ranks_per_node,
        launcher=stored.launcher,
        slot_seconds=stored.slot_seconds,
        chance_in_slot=stored.chance_in_slot,
        limited_by=stored.limited_by,
        accelerator_hours=Interval(**details["accelerator_hours"])
        if details.get("accelerator_hours")
        else None,
        energy_kwh=Interval(**details["energy_kwh"]) if details.get("energy_kwh") else None,
        details=details.get("details"),
        best=BestMetric.from_dict(details["best"]) if details.get("best") else None,
    )


def _details(plan: Plan, sizes: Mapping[str, int]) -> str | None:
    """Return the parts of a plan that have no column of their own, as JSON; None if there are none.

    ``sizes`` are those of its model that grow in its study, which may change its full scale later.
    """
    details = {
        "accelerator_hours": plan.accelerator_hours and plan.accelerator_hours.to_dict(),
        "energy_kwh": plan.energy_kwh and plan.energy_kwh.to_dict(),
        "details": plan.details,
        **({"best": plan.best.to_dict()} if plan.best else {}),
        **({"sizes": dict(sizes)} if sizes else {}),
    }
    return json_text(details) if any(details.values()) else None


def _interval(median: float | None, low: float | None, high: float | None) -> Interval | None:
    return None if median is None or low is None or high is None else Interval(median, low, high)


def _ends(name: str, interval: Interval | None) -> dict[str, Any]:
    ends = dataclasses.astuple(interval) if interval else (None, None, None)
    return {
        f"{name}_{end}": value for end, value in zip(("median", "low", "high"), ends, strict=True)
    }
