"""The calls that every face uses: the command line, the web service, workflows and notebooks.

Typed, re-entrant, without global state. ``storage`` is a database URL or the path of an SQLite file.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hpo import keeping, launching
from hpo.forecasting import fit_posterior, forecast, make_plan, plan_study, with_forecast
from hpo.jobs import search_path
from hpo.keeping import open_store
from hpo.launching import launch_here, submit_plan
from hpo.leases import Holding, take_lease
from hpo.planning.launch import MAX_RESTARTS, choose_backend
from hpo.planning.plan import Plan, folder_name, read_plan
from hpo.progress import Progress
from hpo.results import PlannedRun, StudyForecast, StudyResult
from hpo.running import RunOptions, check_full_scale, check_workload, run_held
from hpo.study import StudySpec, load_study, parse_study
from storage.records import CalibrationRow, Outcome, Study
from trainers.report import TrainingOutcome

__all__ = [
    "Plan", "PlannedRun", "StudyForecast", "StudyResult", "StudySpec", "calibration", "find_plan", "fit_posterior",
    "folder_name", "forecast", "launch", "launch_here", "load_study", "make_plan", "parse_study", "plan_study",
    "read_study", "record", "run_study", "store_plan", "studies", "submit_plan", "with_forecast",
]

DEFAULT_STORAGE = "sqlite:///hpo.db"
DEFAULT_FOLDER = Path(".hpo")
"""Where checkpoints of trials in flight and plans are kept, unless the caller says where."""


def run_study(spec: StudySpec, storage: str = DEFAULT_STORAGE, *, folder: Path | str = DEFAULT_FOLDER,
              progress: Progress | None = None, ray_address: str | None = None,
              storage_patience: float = 300.0) -> StudyResult:
    """Sweep, extrapolate, plan and, where the study asks for it, validate; goes on with a study of this name.

    A call that is interrupted returns a result that is not ``complete``; the same call later goes on from the
    database. The study is held by a lease meanwhile, so that no worker runs it at the same time, and a database that
    is away is waited for, for up to ``storage_patience`` seconds. Raises :class:`SpecError` for a study that cannot be
    run, :class:`TuningError` where Ray fails or another process runs the study, and :class:`LaunchError` where a
    validation run fails.
    """
    from hpo.tuning.tuner import RayOptions, only_runner

    progress, folder = progress or Progress(), Path(folder).absolute()
    check_workload(spec)
    check_full_scale(spec)
    with open_store(storage) as store, contextlib.ExitStack() as stack:
        study = keeping.enter_study(store, spec)
        stack.enter_context(only_runner(folder, study))
        holding = stack.enter_context(Holding(store, take_lease(store, study), told=progress.message))
        holding.store.update_spec(study.id, spec.text, search_path(spec))
        end = run_held(spec, holding, storage, RunOptions(
            folder=folder, storage_patience=storage_patience, ray=RayOptions(ray_address), progress=progress))
        result = keeping.read_result(store, study.name, storage, spec)
        return dataclasses.replace(result, forecast=end.forecast) if end.forecast else with_forecast(result)


def read_study(name: str, storage: str = DEFAULT_STORAGE) -> StudyResult:
    """What the storage holds of a study; :class:`StudyNotFoundError` if it has none of this name."""
    with open_store(storage, create=False) as store:
        return keeping.read_result(store, name, storage)


def store_plan(forecast: StudyForecast, plan: Plan, directory: Path | str) -> Plan:
    """Keep a plan in the forecast's storage and write its folder; the plan that returns carries its id."""
    with open_store(forecast.storage) as store:
        stored = keeping.keep_forecast(store, forecast)
        return keeping.keep_plan(store, stored, plan, Path(directory).absolute(), choose_backend(None, plan.launcher))


def launch(plan: Plan, *, directory: Path | str | None = None, backend: str | None = None, workers: int | None = None,
           seeds: Sequence[int] | None = None, storage: str | None = None, progress: Progress | None = None,
           max_restarts: int = MAX_RESTARTS) -> list[TrainingOutcome]:
    """Run a plan on this machine, once for each seed: the outcomes of :func:`hpo.launching.launch_here`.

    A run that loses a worker goes on from its last checkpoint. Raises :class:`LaunchError` where the processes end
    without an outcome, and :class:`PlanError` where the batch cannot be split over ``workers``.
    """
    runs = launch_here(plan, directory=directory, backend=backend, workers=workers, seeds=seeds, storage=storage,
                       progress=progress, max_restarts=max_restarts)
    return [run.outcome for run in runs]


def record(plan: Plan, outcome: Path | str, storage: str = DEFAULT_STORAGE, *, backend: str | None = None,
           nodes: int | None = None, workers: int | None = None) -> Outcome:
    """Take back the report that a plan's script wrote, on whatever machine it ran: :func:`hpo.launching.record`."""
    return launching.record(plan, outcome, storage, backend=backend, nodes=nodes, workers=workers)


def find_plan(plan: str, storage: str = DEFAULT_STORAGE) -> Plan:
    """A plan by its number in the storage, or by the path of a folder that ``hpo plan`` wrote."""
    if plan.isdigit() and not Path(plan).exists():
        with open_store(storage, create=False) as store:
            return keeping.read_plan_of_storage(store, int(plan))
    return read_plan(Path(plan))


def studies(storage: str = DEFAULT_STORAGE) -> list[Study]:
    """All studies of a storage."""
    with open_store(storage, create=False) as store:
        return store.studies()


def calibration(storage: str = DEFAULT_STORAGE) -> list[CalibrationRow]:
    """Every plan that was launched, its prediction beside what happened."""
    with open_store(storage, create=False) as store:
        return store.calibration()
