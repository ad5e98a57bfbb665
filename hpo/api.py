"""The calls that every face uses: the command line, the web service, workflows and notebooks.

Typed, re-entrant, without global state. ``storage`` is a database URL or the path of an SQLite file.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hpo import keeping
from hpo.errors import EvidenceError, HpoError, PlanError
from hpo.forecasting import baseline_plans, fit_posterior, forecast, make_plan, with_forecast
from hpo.jobs import search_path, workload_data
from hpo.keeping import open_store
from hpo.planning.launch import Launched, choose_backend, read_launched, run_plan
from hpo.planning.machines import load_machine
from hpo.planning.plan import Plan, check_workers, folder_name, most_workers, planned_job, read_plan
from hpo.progress import Progress
from hpo.results import PlannedRun, StudyForecast, StudyResult, best_settings
from hpo.study import StudySpec, check_target, load_study, parse_study
from hpo.words import KIND_NAMES
from search_spaces.settings import TrainingSettings
from storage.records import CalibrationRow, Outcome, Study, StudyState, TrialState
from storage.store import Store
from trainers.errors import TrainerError
from trainers.report import TrainingOutcome

__all__ = [
    "Plan", "PlannedRun", "StudyForecast", "StudyResult", "StudySpec", "calibration", "find_plan", "fit_posterior",
    "folder_name", "forecast", "launch", "load_study", "make_plan", "parse_study", "read_study", "record", "run_study",
    "store_plan", "studies", "with_forecast",
]

DEFAULT_STORAGE = "sqlite:///hpo.db"
DEFAULT_FOLDER = Path(".hpo")
"""Where checkpoints of trials in flight and plans are kept, unless the caller says where."""


def run_study(spec: StudySpec, storage: str = DEFAULT_STORAGE, *, folder: Path | str = DEFAULT_FOLDER,
              progress: Progress | None = None, ray_address: str | None = None) -> StudyResult:
    """Sweep, extrapolate, plan and, where the study asks for it, validate; goes on with a study of this name.

    A call that is interrupted returns a result that is not ``complete``; the same call later goes on from the
    database. Raises :class:`SpecError` for a study that cannot be run, :class:`TuningError` where Ray fails and
    :class:`LaunchError` where a validation run does.
    """
    from hpo.tuning.tuner import only_runner, run_sweep

    progress, folder = progress or Progress(), Path(folder).absolute()
    check_workload(spec)
    check_full_scale(spec)
    with open_store(storage) as store, contextlib.ExitStack() as stack:
        study = keeping.enter_study(store, spec)
        stack.enter_context(only_runner(folder, study))
        store.set_study_state(study.id, StudyState.RUNNING)
        try:
            swept = run_sweep(spec, study, store, folder=folder, ray_address=ray_address,
                              progress=lambda trials, running: progress.sweep(spec, trials, running))
            made, message = _conclude(store, study, storage, folder, progress) if swept else (None, "")
        except KeyboardInterrupt:
            swept, made = False, None
        except (HpoError, TrainerError) as error:
            store.set_study_state(study.id, StudyState.FAILED, str(error))
            raise
        if swept:
            store.set_study_state(study.id, StudyState.FINISHED, message)
        else:
            store.set_study_state(study.id, StudyState.INTERRUPTED, "run it again to go on")
        result = keeping.read_result(store, study.name, storage)
        return dataclasses.replace(result, forecast=made) if made else with_forecast(result)


def read_study(name: str, storage: str = DEFAULT_STORAGE) -> StudyResult:
    """What the storage holds of a study; :class:`StudyNotFoundError` if it has none of this name."""
    with open_store(storage) as store:
        return keeping.read_result(store, name, storage)


def store_plan(forecast: StudyForecast, plan: Plan, directory: Path | str) -> Plan:
    """Keep a plan in the forecast's storage and write its folder; the plan that returns carries its id."""
    with open_store(forecast.storage) as store:
        stored = keeping.keep_forecast(store, forecast)
        return keeping.keep_plan(store, stored, plan, Path(directory).absolute(), choose_backend(None))


def launch(plan: Plan, *, directory: Path | str | None = None, backend: str | None = None, workers: int | None = None,
           seeds: Sequence[int] | None = None, storage: str | None = None,
           progress: Progress | None = None) -> list[TrainingOutcome]:
    """Run a plan on this machine, once for each seed, and keep the outcomes if it came from ``storage``.

    ``seeds`` is the plan's own seed if not given. Raises :class:`LaunchError` where the processes end without
    an outcome, and :class:`PlanError` where the batch cannot be split over ``workers``.
    """
    progress, backend = progress or Progress(), choose_backend(backend)
    if workers is not None:
        check_workers(plan.job, workers, load_machine("local"), 1)
        plan = dataclasses.replace(plan, workers=workers)
    folder = Path(directory or DEFAULT_FOLDER / "plans" / folder_name(plan)).absolute()
    outcomes = []
    for seed in seeds or (plan.job.seed,):
        launched = _run_once(plan, folder, backend, seed, progress)
        outcomes.append(launched.outcome)
        if storage is not None and plan.id is not None:
            with open_store(storage) as store:
                keeping.keep_outcome(store, plan.id, seed, backend, plan.workers, launched)
    return outcomes


def record(plan: Plan, outcome: Path | str, storage: str = DEFAULT_STORAGE, *, backend: str = "torch") -> Outcome:
    """Take back the report that a plan's script wrote, on whatever machine it ran."""
    if plan.id is None:
        raise PlanError("this plan is in no storage; `hpo plan STUDY --output DIR` keeps one")
    with open_store(storage) as store:
        return keeping.keep_outcome(store, plan.id, plan.job.seed, backend, plan.workers, read_launched(Path(outcome)))


def find_plan(plan: str, storage: str = DEFAULT_STORAGE) -> Plan:
    """A plan by its number in the storage, or by the path of a folder that ``hpo plan`` wrote."""
    if plan.isdigit() and not Path(plan).exists():
        with open_store(storage) as store:
            return keeping.read_plan_of_storage(store, int(plan))
    return read_plan(Path(plan))


def studies(storage: str = DEFAULT_STORAGE) -> list[Study]:
    """All studies of a storage."""
    with open_store(storage) as store:
        return store.studies()


def calibration(storage: str = DEFAULT_STORAGE) -> list[CalibrationRow]:
    """Every plan that was launched, its prediction beside what happened."""
    with open_store(storage) as store:
        return store.calibration()


def check_workload(spec: StudySpec) -> None:
    """Raise :class:`SpecError` where the workload, its data or its metric is not there."""
    from trainers.workloads import load_workload, metrics_of

    try:
        metrics = metrics_of(spec.workload, search_path(spec))
    except TrainerError as error:
        raise spec.error(str(error), "workload") from error
    check_target(spec, metrics)
    try:
        load_workload(spec.workload, workload_data(spec), search_path(spec))
    except TrainerError as error:
        raise spec.error(str(error), "data") from error


def check_full_scale(spec: StudySpec) -> None:
    """Raise :class:`SpecError` where the full-scale run could not be planned, before anything is trained for it."""
    full = spec.full_scale
    if full is None:
        return
    try:
        machine = load_machine(full.machine)
        fixed = {name: value for name, value in spec.search.fixed.items() if name == "normalization_batch_size"}
        job = planned_job(spec, TrainingSettings.from_dict(fixed), full.global_batch_size, None)
        nodes = machine.nodes if full.nodes is None else full.nodes
        check_workers(job, full.workers or most_workers(job, nodes * machine.accelerators_per_node), machine, nodes)
    except PlanError as error:
        raise spec.error(str(error), "full_scale") from error
    if full.validate_plan and full.machine != "local":
        raise spec.error(f"validate runs the plan on this machine, but full_scale.machine is {full.machine!r}; "
                         "leave validate out, and `hpo record` takes the outcome back", "full_scale", "validate")


def _conclude(store: Store, study: Study, storage: str, folder: Path,
              progress: Progress) -> tuple[StudyForecast | None, str]:
    """Forecast, plan and validation at the full-scale batch; returns the forecast, and what is to be said."""
    result = keeping.read_result(store, study.name, storage)
    failed = [trial for trial in result.trials if trial.state is TrialState.FAILED]
    if failed and len(failed) == len(result.trials):
        raise EvidenceError(f"all {len(failed)} trials failed; the first: {failed[0].reason}")
    full = result.spec.full_scale
    if full is None:
        return None, ""
    if best_settings(result.trials) is None:
        return None, "no trial reached the target: no forecast; raise budget.epochs_per_trial or widen the ranges"
    progress.message(f"fitting the laws to {len(result.trials)} trials")
    made = keeping.keep_forecast(store, forecast(result, full.global_batch_size))
    plan = make_plan(made, full.machine, full.nodes, full.workers)
    plans = [plan, *(baseline_plans(result, plan) if full.validate_plan else [])]
    for plan in plans:
        directory = folder / "plans" / folder_name(plan)
        kept = keeping.keep_plan(store, made, plan, directory, choose_backend(None))
        if full.validate_plan:
            _validate(store, kept, result.spec, directory, progress)
    return made, ""


def _validate(store: Store, plan: Plan, spec: StudySpec, directory: Path, progress: Progress) -> None:
    """Launch a plan with as many seeds as the sweep's, new ones, except for those that were run already."""
    if plan.id is None:
        raise PlanError("a plan must be stored before it is validated")
    backend = choose_backend(None)
    done = {outcome.seed for outcome in store.outcomes(plan.id)}
    for seed in range(spec.seeds, 2 * spec.seeds):
        if seed not in done:
            progress.message(f"running {KIND_NAMES[plan.kind]} at {plan.global_batch_size} on {plan.workers} workers, "
                             f"seed {seed}")
            launched = _run_once(plan, directory, backend, seed, progress)
            keeping.keep_outcome(store, plan.id, seed, backend, plan.workers, launched)


def _run_once(plan: Plan, directory: Path, backend: str, seed: int, progress: Progress) -> Launched:
    return run_plan(plan, directory, backend=backend, seed=seed, on_point=lambda point: progress.run(plan, seed, point))
