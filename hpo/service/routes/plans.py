"""Plans for a machine, their scripts, what became of them, and the machines that plans can be made for."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from hpo import api, keeping
from hpo.planning.launch import choose_backend, write_plan
from hpo.planning.plan import Plan
from hpo.results import PlannedRun
from hpo.service.answers import Answer
from hpo.service.auth import Principal
from hpo.service.context import READS, Context, Reader, Shared, StudyName, Submitter
from hpo.service.refusal import RefusedError
from hpo.service.reply import json_bytes, reply
from hpo.service.routes.common import BIGGEST_NUMBER, download, refusals
from hpo.service.submission import fault_of_machine, known_machine, machine_names
from storage.records import CalibrationRow, Study

router = APIRouter(tags=["plans"])

LARGEST_PLANNED = 10**8
"""Samples: hundreds of times what was ever trained with. Larger ones have very many ways to be split."""
PlanId = Annotated[int, Path(ge=1, le=BIGGEST_NUMBER, description="The plan's number.")]


class PlanRequest(BaseModel):
    """What to plan for; what is not given comes from the study's full_scale section, or is chosen."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    machine: str | None = Field(None, min_length=1, max_length=100, description="A name that GET /machines lists.",
                                examples=["local"])
    nodes: int | None = Field(None, ge=1, le=10**6)
    workers: int | None = Field(None, ge=1, le=10**6, description="Processes over all nodes.")
    ranks_per_node: int | None = Field(None, ge=1, le=10**4)
    global_batch_size: Annotated[int, Field(ge=1, le=LARGEST_PLANNED)] | Literal["best"] | None = Field(
        None, description="Samples per update, or best: that which serves the objective most.")
    minimise: Literal["time", "accelerator_hours", "energy"] | None = None
    slot_hours: float | None = Field(None, gt=0, le=1e5, description="Tell the chance of reaching the target within.")
    deadline_hours: float | None = Field(None, gt=0, le=1e6)
    chance: float = Field(0.9, gt=0, lt=1, description="With which the deadline is to be met.")
    launcher: Literal["local", "slurm", "lsf", "pbs", "ray"] | None = Field(
        None, description="The machine's own scheduler, if not given.")
    backend: Literal["horovod", "torch"] | None = None


class RunAnswer(Answer):
    """A plan, and what its launches did."""

    plan: dict[str, Any] = Field(description="As in plan.json: machine, workers, settings, epochs and time.")
    observed_epochs_to_target: float | None
    outcomes: list[dict[str, Any]]


class PlansAnswer(Answer):
    """The plans of a study, oldest first."""

    plans: list[RunAnswer]


class CalibrationAnswer(Answer):
    """Every launched plan, its forecast beside what happened."""

    plans: list[dict[str, Any]]


class MachinesAnswer(Answer):
    """Machines that plans can be made for."""

    machines: list[dict[str, Any]]


@router.post("/studies/{name}/plans", status_code=201, response_model=RunAnswer, summary="Make a plan",
             responses=refusals(404, 409))
async def make(who: Submitter, context: Shared, name: StudyName,
               body: Annotated[PlanRequest | None, Body()] = None) -> Response:
    """Forecast the batch, split it over the machine, and keep the plan with its launch script."""
    study = await run_sync(context.read_study, who, name)
    context.check_changeable(who, study)
    run = await run_sync(_make, context, study, body or PlanRequest.model_validate({}),
                         limiter=context.forecasts.limiter)
    return reply(_run_values(run), status=201)


@router.get("/studies/{name}/plans", response_model=PlansAnswer, summary="List a study's plans",
            responses=refusals(404))
def plans(who: Reader, context: Shared, name: StudyName) -> Response:
    """The plans of a study with their outcomes."""
    study = context.read_study(who, name)
    runs = keeping.planned_runs(context.open_store(), study, keeping.stored_spec(study))
    return reply({"plans": [_run_values(run) for run in runs]})


@router.get("/plans/{number}", response_model=RunAnswer, summary="Show a plan", responses=refusals(404))
def plan(who: Reader, context: Shared, number: PlanId) -> Response:
    """One plan with its outcomes."""
    return reply(_run_values(_run(context, who, number)))


@router.get("/plans/{number}/script", summary="Download the launch script", response_class=Response,
            responses={**download("text/x-shellscript", "The script that launches the run."), **refusals(404)})
def script(who: Reader, context: Shared, number: PlanId) -> Response:
    """The script that launches the run on its machine; it reads `job.json` beside it."""
    run = _run(context, who, number)
    with tempfile.TemporaryDirectory() as folder:
        _write(run.plan, FilePath(folder))
        found = next(path for path in sorted(FilePath(folder).iterdir()) if path.name.startswith("launch."))
        return _attached(found.read_bytes(), found.name, "text/x-shellscript; charset=utf-8")


@router.get("/plans/{number}/job", summary="Download the job", response_class=Response,
            responses={**download("application/json", "job.json: what the trainer reads."), **refusals(404)})
def job(who: Reader, context: Shared, number: PlanId) -> Response:
    """`job.json`: everything that the trainer needs to know of the run."""
    return _attached(json_bytes(_run(context, who, number).plan.job.to_dict()), "job.json", "application/json")


@router.get("/plans/{number}/settings", summary="Download the settings", response_class=Response,
            responses={**download("application/json", "Every setting by its name."), **refusals(404)})
def settings(who: Reader, context: Shared, number: PlanId) -> Response:
    """The complete settings of the run."""
    found = _run(context, who, number).plan.job.settings.to_dict()
    return _attached(json_bytes(found), "settings.json", "application/json")


@router.get("/calibration", response_model=CalibrationAnswer, summary="Forecasts beside outcomes",
            responses=refusals())
def calibration(who: Reader, context: Shared) -> Response:
    """Every plan that was launched: what was forecast, what happened, and whether it lay inside."""
    return reply({"plans": [dataclasses.asdict(row) for row in visible_calibration(context, who)]})


def visible_calibration(context: Context, who: Principal) -> list[CalibrationRow]:
    """The launched plans of the studies that may be read."""
    store = context.open_store()
    rows = store.calibration()
    if context.config.shared_reading or who.allows("admin"):
        return rows
    own = {each.study.name for each in store.page_studies(owner=who.owner, limit=BIGGEST_NUMBER)}
    return [row for row in rows if row.study in own]


@router.get("/machines", response_model=MachinesAnswer, summary="List machines", dependencies=[READS],
            responses=refusals())
def machines() -> Response:
    """The machines that come with the service, in short."""
    return reply({"machines": [{**_machine(name), "sources": None} for name in machine_names()]})


@router.get("/machines/{name}", response_model=dict[str, Any], summary="Show a machine", dependencies=[READS],
            responses=refusals(404))
def machine(name: Annotated[str, Path(max_length=100)]) -> Response:
    """One machine with its links, its storage, and the source of every figure."""
    if name not in machine_names():
        raise RefusedError(404, f"there is no machine {name!r}", way_out="GET /api/v1/machines lists them")
    return reply(_machine(name))


@functools.lru_cache(maxsize=64)
def _machine(name: str) -> dict[str, Any]:
    return {**dataclasses.asdict(known_machine(name)), "name": name}


def _make(context: Context, study: Study, asked: PlanRequest) -> PlannedRun:
    """A plan for the study, kept; PlanError or EvidenceError where it cannot be."""
    store = context.open_store()
    result = context.forecasts.fitted(store, study).result
    full = result.spec.full_scale
    fault = fault_of_machine(asked.machine or (full.machine if full else "local"))
    if fault:
        raise RefusedError(422, fault, kind="plan")
    wish = asked.model_dump(exclude={"machine", "nodes", "workers", "backend"}, exclude_none=True)
    forecast, made = api.plan_study(result, asked.machine, asked.nodes, asked.workers, **wish)
    stored = keeping.keep_forecast(store, forecast)
    folder = context.config.folder.absolute() / "plans" / api.folder_name(made)
    kept = keeping.keep_plan(store, stored, made, folder, choose_backend(asked.backend))
    store.add_event(study.id, "plan", f"plan {kept.id} at {kept.global_batch_size} on {kept.workers} workers of "
                    f"{kept.machine}", {"plan": kept.id})
    return PlannedRun(kept, ())


def _run(context: Context, who: Principal, number: int) -> PlannedRun:
    """The plan of this number, if its study may be read."""
    store = context.open_store()
    stored = store.plan(number)
    study = store.study_by_id(stored.study_id)
    if not (context.config.shared_reading or who.owns(study)):
        raise RefusedError(404, f"there is no plan {number}")
    runs = keeping.planned_runs(store, study, keeping.stored_spec(study))
    return next(run for run in runs if run.plan.id == number)


def _write(plan: Plan, folder: FilePath) -> None:
    write_plan(plan, folder, backend=choose_backend(None))


def _run_values(run: PlannedRun) -> dict[str, Any]:
    return run.to_dict()


def _attached(content: bytes, name: str, kind: str) -> Response:
    return Response(content, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
