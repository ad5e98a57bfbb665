"""The functions of the Python interface, which ``import hpo`` exports and the command line uses.

They are typed and re-entrant, without global state. ``storage`` is a database URL or the path of an SQLite file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpo.ask_and_tell.trial import AskedTrial, AskTell
from hpo.extrapolation.inference.posterior import Posterior
from hpo.planning.launchers.launch import choose_launch_backend, prepare_folder
from hpo.planning.placement.tradeoffs import TradeOff
from hpo.planning.plan import Plan, folder_name, read_plan
from hpo.planning.request import PlanRequest
from hpo.runs import launches, repository
from hpo.runs.ask_tell import ask_tell
from hpo.runs.designs import Design, Designs, designs
from hpo.runs.exports.optuna_study import POINTS, optuna_study
from hpo.runs.importances import Importances, importances
from hpo.runs.launches import launch_here, submit_plan
from hpo.runs.progress import Progress
from hpo.runs.race import race
from hpo.runs.repository import DEFAULT_STORAGE, open_store
from hpo.runs.results import PlannedRun, StudyForecast, StudyResult
from hpo.runs.run import run_study
from hpo.runs.study_changes import delete_study, rename_study
from hpo.runs.study_forecast import fit_posterior, forecast, with_forecast
from hpo.runs.study_plan import make_plan, plan_study, trade_offs
from hpo.study.restart_limits import RUN_RESTARTS
from hpo.study.spec import StudySpec, load_study, parse_study
from storage.records import CalibrationRow, Outcome, Study
from trainers.report import TrainingOutcome

if TYPE_CHECKING:
    import optuna

__all__ = [
    "AskTell",
    "AskedTrial",
    "Design",
    "Designs",
    "Importances",
    "Plan",
    "PlanRequest",
    "PlannedRun",
    "Posterior",
    "Progress",
    "StudyForecast",
    "StudyResult",
    "StudySpec",
    "TradeOff",
    "ask_tell",
    "calibration",
    "delete_study",
    "designs",
    "find_plan",
    "fit_posterior",
    "folder_name",
    "forecast",
    "importances",
    "launch",
    "launch_here",
    "load_study",
    "make_plan",
    "parse_study",
    "plan_study",
    "race",
    "read_study",
    "record",
    "rename_study",
    "run_study",
    "store_plan",
    "studies",
    "submit_plan",
    "to_optuna",
    "trade_offs",
    "with_forecast",
]


def read_study(name: str, storage: str = DEFAULT_STORAGE) -> StudyResult:
    """Return the stored state of a study; raise :class:`StudyNotFoundError` if the storage has no study of this
    name.
    """
    with open_store(storage, create=False) as store:
        return repository.read_result(store, name, storage)


def to_optuna(
    study: StudyResult | str,
    storage: str = DEFAULT_STORAGE,
    *,
    global_batch_size: int | None = None,
    count_missed: bool = False,
    points: int = POINTS,
) -> optuna.Study:
    """Return the study as an in-memory :class:`optuna.Study`, for Optuna's plots, importances and dashboards.

    ``study`` is the result of :func:`read_study` or :func:`run_study`, or the name of a study in ``storage``. The
    Optuna study minimises the epochs to target. Its parameters are the tuned settings and ``global_batch_size``, or
    only the settings if ``global_batch_size`` picks one rung. Intermediate values are the target metric by optimizer
    step, at most ``points`` of them per trial; the seed, epochs, seconds, reason and state of a trial are in
    ``user_attrs``. Only a trial that reached the target is COMPLETE. With ``count_missed``, a trial that ended without
    reaching it is COMPLETE too, with the epochs of the longest trial at its batch size as its value. Raises
    :class:`ExportError` if Optuna is not installed, :class:`StudyNotFoundError` if the storage has no study of this
    name, and :class:`EvidenceError` for a batch size that no trial has.
    """
    result = read_study(study, storage) if isinstance(study, str) else study
    with open_store(result.storage, create=False) as store:
        return optuna_study(
            result.study,
            result.spec,
            result.trials,
            store=store,
            global_batch_size=global_batch_size,
            count_missed=count_missed,
            points=points,
        )


def store_plan(forecast: StudyForecast, plan: Plan, directory: Path | str) -> Plan:
    """Store a plan in the forecast's storage and write its folder; return the plan with its id."""
    with open_store(forecast.storage) as store:
        folder = Path(directory).absolute()
        backend = choose_launch_backend(None, plan.launcher, plan.job.workload)
        prepare_folder(plan, folder, backend)  # before the forecast is stored
        stored = repository.keep_forecast(store, forecast)
        return repository.keep_plan(store, stored, plan, folder, backend)


def launch(
    plan: Plan,
    *,
    directory: Path | str | None = None,
    backend: str | None = None,
    workers: int | None = None,
    seeds: Sequence[int] | None = None,
    storage: str | None = None,
    progress: Progress | None = None,
    max_restarts: int = RUN_RESTARTS,
) -> list[TrainingOutcome]:
    """Run a plan on this machine, once for each seed, and return the outcomes (:func:`hpo.runs.launches.launch_here`).

    A run that loses a worker resumes from its last checkpoint. Raises :class:`LaunchError` if the processes end without
    an outcome, and :class:`PlanError` if the batch cannot be split over ``workers``.
    """
    runs = launch_here(
        plan,
        directory=directory,
        backend=backend,
        workers=workers,
        seeds=seeds,
        storage=storage,
        progress=progress,
        max_restarts=max_restarts,
    )
    return [run.outcome for run in runs]


def record(
    plan: Plan,
    outcome: Path | str,
    storage: str = DEFAULT_STORAGE,
    *,
    backend: str | None = None,
    nodes: int | None = None,
    workers: int | None = None,
) -> Outcome:
    """Store the report that a plan's script wrote, whichever machine it ran on (:func:`hpo.runs.launches.record`)."""
    return launches.record(plan, outcome, storage, backend=backend, nodes=nodes, workers=workers)


def find_plan(plan: str, storage: str = DEFAULT_STORAGE) -> Plan:
    """Return the plan with this number in the storage, or the plan in this folder, which ``hpo plan`` wrote."""
    if plan.isdigit() and not Path(plan).exists():
        with open_store(storage, create=False) as store:
            return repository.planned_run(store, int(plan)).plan
    return read_plan(Path(plan))


def studies(storage: str = DEFAULT_STORAGE) -> list[Study]:
    """Return all studies in a storage."""
    with open_store(storage, create=False) as store:
        return store.studies()


def calibration(storage: str = DEFAULT_STORAGE) -> list[CalibrationRow]:
    """Return every launched plan with its prediction and its outcome."""
    with open_store(storage, create=False) as store:
        return store.calibration()
