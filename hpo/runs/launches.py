"""Launches a plan, here or through its machine's scheduler, and records the outcome."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpo.errors import LaunchError, PlanError
from hpo.planning.launchers.job_setup import JobSetup
from hpo.planning.launchers.launch import (
    LaunchReport,
    choose_launch_backend,
    launch_backend_of_plan,
    read_launched,
    run_plan_locally,
    write_plan,
)
from hpo.planning.launchers.submit import SubmittedJob, submit
from hpo.planning.machines import load_machine
from hpo.planning.plan import Plan, check_plan_workers, folder_name
from hpo.runs import repository
from hpo.runs.notebook import notebook_progress
from hpo.runs.plan_run import held_plan_run
from hpo.runs.progress import Progress
from hpo.runs.repository import open_store
from hpo.study.restart_limits import RUN_RESTARTS
from storage.records import Outcome
from trainers.report import ConvergencePoint, TrainingOutcome

DEFAULT_FOLDER = Path(".hpo/plans")
"""Default folder for the files of launches."""


def launch_here(
    plan: Plan,
    *,
    directory: Path | str | None = None,
    backend: str | None = None,
    workers: int | None = None,
    seeds: Sequence[int] | None = None,
    storage: str | None = None,
    progress: Progress | None = None,
    max_restarts: int = RUN_RESTARTS,
    checkpoint_minutes: float = 0.0,
) -> list[LaunchReport]:
    """Run a plan on this machine, once for each seed, and store the outcomes if it came from ``storage``.

    ``directory`` defaults to the folder that a plan in ``storage`` was written to, as long as it holds that plan, and
    ``seeds`` to the plan's own seed. A run that loses a worker resumes from its last checkpoint, at most
    ``max_restarts`` times. A checkpoint is saved at every evaluation, or at the first one after ``checkpoint_minutes``.
    Raises :class:`LaunchError` if the processes end without an outcome, or if the plan has modules, a container or a
    prefix, which only its script applies. Raises :class:`PlanError` if the batch cannot be split over ``workers``.
    """
    if workers is None and plan.launcher != "local":
        raise PlanError(
            f"plan {plan.id} is for {plan.machine} and its {plan.launcher}: submit_plan (`hpo "
            f"launch`) submits it there; with workers (--workers N) it runs on this machine"
        )
    progress, backend = (
        progress or notebook_progress(),
        choose_launch_backend(backend, workload=plan.job.workload),
    )
    if plan.launcher == "local" and JobSetup.of_plan(plan) != JobSetup():
        raise LaunchError(
            f"only the script applies the modules, container or prefix of plan {plan.id}; run `bash launch.sh` in the "
            f"plan's folder, then `hpo record {plan.id} outcome.jsonl`"
        )
    written = written_folder(plan, storage) if storage and directory is None else None
    if workers is not None:
        check_plan_workers(plan.job, workers, load_machine("local"), 1)
        plan = dataclasses.replace(plan, workers=workers)
    folder = _folder(plan, directory or written)
    runs = []
    for seed in seeds or (plan.job.seed,):

        def on_point(point: ConvergencePoint, seed: int = seed) -> None:
            progress.run(plan, seed, point)

        with _held(storage, plan, seed):
            runs.append(
                run_plan_locally(
                    plan,
                    folder,
                    backend=backend,
                    seed=seed,
                    max_restarts=max_restarts,
                    checkpoint_minutes=checkpoint_minutes,
                    on_restart=progress.message,
                    on_point=on_point,
                )
            )
        if storage is not None and plan.id is not None:
            with open_store(storage) as store:
                repository.keep_outcome(store, plan.id, seed, backend, plan.workers, runs[-1])
    return runs


@contextlib.contextmanager
def _held(storage: str | None, plan: Plan, seed: int) -> Iterator[None]:
    """Hold a stored plan's run with this seed, so that no other process runs it."""
    if storage is None or plan.id is None:
        yield
        return
    with open_store(storage) as store, held_plan_run(store, plan.id, seed):
        yield


def written_folder(plan: Plan, storage: str) -> Path | None:
    """Return the folder to which `hpo plan` wrote a stored plan; None if that folder no longer holds it."""
    if plan.id is None:
        return None
    with open_store(storage, create=False) as store:
        folder = Path(store.plan(plan.id).directory)
    return folder if repository.holds_plan(plan, folder) else None


def _folder(plan: Plan, directory: Path | str | None) -> Path:
    """Return the absolute path of ``directory``, or of the default folder of this plan alone."""
    number = "" if plan.id is None else f"-{plan.id}"
    return Path(directory or DEFAULT_FOLDER / f"{folder_name(plan)}{number}").absolute()


def submit_plan(
    plan: Plan,
    directory: Path | str | None = None,
    *,
    backend: str | None = None,
    account: str | None = None,
    partition: str | None = None,
) -> SubmittedJob:
    """Submit a plan to its machine's scheduler, from a folder that the machine's nodes can read.

    The plan's script in this folder is used as it is, with any manual changes, unless ``backend`` asks for a different
    one. If the folder holds another plan, this one is written to it. Raises :class:`LaunchError`, which explains how to
    submit it by hand, if the scheduler's command is not available here.
    """
    folder = _folder(plan, directory)
    if backend is not None or not repository.holds_plan(plan, folder):
        write_plan(plan, folder, backend=backend)
    return submit(plan.launcher, folder, account=account, partition=partition)


def record(
    plan: Plan,
    outcome: Path | str,
    storage: str,
    *,
    backend: str | None = None,
    nodes: int | None = None,
    workers: int | None = None,
) -> Outcome:
    """Store the report that a plan's script wrote, whichever machine it ran on.

    The report must be of the plan's job, as far as it says so, and must not be stored yet; its seed is stored with it.
    ``nodes`` and ``workers`` default to the values that the report gives for its last start, or else to the plan's.
    """
    if plan.id is None:
        raise PlanError("this plan is not stored; `hpo plan STUDY --output DIR` stores one")
    report = read_launched(Path(outcome))
    if report.job and report.job != plan.job.digest():
        raise LaunchError(
            f"{outcome} must report the job of plan {plan.id}, but it reports another workload, target, batch size, "
            "budget or settings; give the number or the folder of the plan that was launched"
        )
    seed = plan.job.seed if report.seed is None else report.seed
    launched = dataclasses.replace(report, nodes=nodes or report.nodes or plan.nodes)
    with open_store(storage, create=False) as store:
        for stored in store.outcomes(plan.id):
            if _result(stored) == _result(report.outcome) and stored.seed == seed:
                raise LaunchError(
                    f"a run counts once, but {outcome} is already stored as outcome {stored.id} of plan {plan.id}; "
                    "record the report of another run"
                )
        return repository.keep_outcome(
            store,
            plan.id,
            seed,
            launch_backend_of_plan(plan, backend),
            workers or report.workers or plan.workers,
            launched,
        )


def _result(
    ended: Outcome | TrainingOutcome,
) -> tuple[str, float | None, float | None, float | None]:
    return str(ended.state), ended.epochs_to_target, ended.epochs, ended.seconds
