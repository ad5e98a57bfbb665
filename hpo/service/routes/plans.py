"""Plans for a machine, their scripts and outcomes, and the machines that plans can be made for."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Path, Response
from pydantic import BaseModel, ConfigDict, Field, create_model

from hpo.errors import PlanError
from hpo.planning.launchers.launch import choose_launch_backend, prepare_folder, write_plan
from hpo.planning.plan import Plan, folder_name
from hpo.planning.request import PlanRequest
from hpo.planning.timing.costs import MAY_BE_0, workload_cost_names
from hpo.runs import repository
from hpo.runs.results import PlannedRun
from hpo.runs.study_plan import plan_as_asked
from hpo.service.answers import Answer
from hpo.service.auth import TokenHolder
from hpo.service.context import READS, OwnSlot, Reader, ServerContext, Shared, StudyName, Submitter
from hpo.service.refusal import RefusedError
from hpo.service.reply import json_reply
from hpo.service.routes.common import BIGGEST_NUMBER, download_response, error_responses
from hpo.service.submission import built_in_machine, fault_of_submitted_machine, machine_names
from hpo.study.faults import shown_value
from search_spaces.names import did_you_mean
from storage.errors import NotFound
from storage.records import CalibrationRow, Study
from trainers.cost import WorkloadCost
from trainers.json_text import json_bytes

router = APIRouter(tags=["plans"])

PlanId = Annotated[int, Path(ge=1, le=BIGGEST_NUMBER, description="The plan's number.")]


STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
LARGEST_FIGURE = 10**18


def _body_fields(
    kind: type[Any], names: dict[str, Any], rules_of: Callable[[Any], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the fields of a dataclass as fields of a request's body, with the bounds that ``rules_of`` gives for each.

    ``names`` maps the classes in its annotations to the types that represent them in a request.
    """
    hints = get_type_hints(kind, localns=names)
    return {
        each.name: (
            _bounded(hints[each.name], rules_of(each)),
            Field(
                ... if each.default is dataclasses.MISSING else each.default,
                description=each.metadata.get("description"),
            ),
        )
        for each in dataclasses.fields(kind)
    }


def _bounded(hint: Any, rules: Mapping[str, Any]) -> Any:
    """Return the annotation with bounds on its numbers."""
    limits = {name: rules[name] for name in ("ge", "gt", "le", "lt") if name in rules}
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    bounded = tuple(
        Annotated[part, Field(**limits)] if limits and part in (int, float) else part
        for part in parts
    )
    return Union[bounded]  # noqa: UP007


if TYPE_CHECKING:
    CostBody: TypeAlias = BaseModel
    PlanBody: TypeAlias = BaseModel
else:
    CostBody = create_model(
        "WorkloadCost",
        __config__=STRICT,
        __doc__="Cost of one sample of a workload.",
        **_body_fields(
            WorkloadCost,
            {},
            lambda each: {"ge" if each.name in MAY_BE_0 else "gt": 0, "le": LARGEST_FIGURE},
        ),
    )
    PlanBody = create_model(
        "PlanRequest",
        __config__=STRICT,
        __doc__="Constraints of the plan; missing ones come from the study's full_scale "
        "section or are chosen. `machine` must be listed by GET /machines; `cost` is "
        "the name of a published cost or its figures, not a file.",
        **_body_fields(
            PlanRequest, {"Machine": str, "WorkloadCost": CostBody}, lambda each: each.metadata
        ),
        backend=(Literal["horovod", "torch"] | None, None),
    )


class RunAnswer(Answer):
    """A plan and the outcomes of its launches."""

    plan: dict[str, Any] = Field(
        description="The document plan.json: machine, workers, settings, epochs and time."
    )
    observed_epochs_to_target: float | None
    outcomes: list[dict[str, Any]]


class PlansAnswer(Answer):
    """The plans of a study, oldest first."""

    plans: list[RunAnswer]


class CalibrationAnswer(Answer):
    """All launched plans, each with its forecast and its outcome."""

    plans: list[dict[str, Any]]


class MachinesAnswer(Answer):
    """Machines that plans can be made for."""

    machines: list[dict[str, Any]]


@router.post(
    "/studies/{name}/plans",
    status_code=201,
    response_model=RunAnswer,
    summary="Make a plan",
    responses=error_responses(404, 409),
)
async def make(
    who: Submitter,
    context: Shared,
    slot: OwnSlot,
    name: StudyName,
    body: Annotated[PlanBody | None, Body()] = None,
) -> Response:
    """Forecast at the batch size, split the batch over the machine, and store the plan with its launch script."""
    study = await run_sync(context.read_study, who, name)
    context.check_changeable(who, study)
    context.check_computation(who)
    await run_sync(context.check_stored, study.owner)
    asked = {} if body is None else dict(body)
    backend = asked.pop("backend", None)
    request = _request_of(asked)
    run = await context.computations.run(who, slot, lambda: _make(context, study, backend, request))
    return json_reply(_run_values(run), status=201)


@router.get(
    "/studies/{name}/plans",
    response_model=PlansAnswer,
    summary="List a study's plans",
    responses=error_responses(404),
)
def plans(who: Reader, context: Shared, name: StudyName) -> Response:
    """List the plans of a study with their outcomes."""
    study = context.read_study(who, name)
    runs = repository.planned_runs(context.open_store(), study, repository.stored_spec(study))
    return json_reply({"plans": [_run_values(run) for run in runs]})


@router.get(
    "/plans/{number}",
    response_model=RunAnswer,
    summary="Show a plan",
    responses=error_responses(404),
)
def plan(who: Reader, context: Shared, number: PlanId) -> Response:
    """Return one plan with its outcomes."""
    return json_reply(_run_values(_run(context, who, number)))


@router.get(
    "/plans/{number}/script",
    summary="Download the launch script",
    response_class=Response,
    responses={
        **download_response("text/x-shellscript", "The script that launches the run."),
        **error_responses(404),
    },
)
def script(who: Reader, context: Shared, number: PlanId) -> Response:
    """Return the script that launches the run on its machine; it reads `job.json` from its own folder."""
    run = _run(context, who, number)
    with tempfile.TemporaryDirectory() as folder:
        _write(run.plan, FilePath(folder))
        found = next(
            path for path in sorted(FilePath(folder).iterdir()) if path.name.startswith("launch.")
        )
        return _attached(found.read_bytes(), found.name, "text/x-shellscript; charset=utf-8")


@router.get(
    "/plans/{number}/job",
    summary="Download the job",
    response_class=Response,
    responses={
        **download_response("application/json", "job.json, the input of the trainer."),
        **error_responses(404),
    },
)
def job(who: Reader, context: Shared, number: PlanId) -> Response:
    """Return `job.json`, which holds everything that the trainer needs for the run."""
    return _attached(
        json_bytes(_run(context, who, number).plan.job.to_dict()), "job.json", "application/json"
    )


@router.get(
    "/plans/{number}/settings",
    summary="Download the settings",
    response_class=Response,
    responses={
        **download_response("application/json", "Every setting by its name."),
        **error_responses(404),
    },
)
def settings(who: Reader, context: Shared, number: PlanId) -> Response:
    """Return the complete settings of the run."""
    found = _run(context, who, number).plan.job.settings.to_dict()
    return _attached(json_bytes(found), "settings.json", "application/json")


@router.get(
    "/calibration",
    response_model=CalibrationAnswer,
    summary="Compare forecasts with outcomes",
    responses=error_responses(),
)
def calibration(who: Reader, context: Shared) -> Response:
    """List every launched plan with its forecast, its outcome, and whether the outcome was inside the interval."""
    return json_reply(
        {"plans": [dataclasses.asdict(row) for row in visible_calibration(context, who)]}
    )


def visible_calibration(context: ServerContext, who: TokenHolder) -> list[CalibrationRow]:
    """Return the launched plans of the studies that the caller may read."""
    store = context.open_store()
    rows = store.calibration()
    if context.config.shared_reading or who.allows("admin"):
        return rows
    own = {each.study.name for each in store.page_studies(owner=who.owner, limit=BIGGEST_NUMBER)}
    return [row for row in rows if row.study in own]


@router.get(
    "/machines",
    response_model=MachinesAnswer,
    summary="List machines",
    dependencies=[READS],
    responses=error_responses(),
)
def machines() -> Response:
    """List the built-in machines in brief."""
    return json_reply(
        {"machines": [{**_machine(name), "sources": None} for name in machine_names()]}
    )


@router.get(
    "/machines/{name}",
    response_model=dict[str, Any],
    summary="Show a machine",
    dependencies=[READS],
    responses=error_responses(404),
)
def machine(name: Annotated[str, Path(max_length=100)]) -> Response:
    """Return one machine with its links, its storage, and the source of every figure."""
    if name not in machine_names():
        raise RefusedError(
            404, f"there is no machine {name!r}", way_out="GET /api/v1/machines lists them"
        )
    return json_reply(_machine(name))


@functools.lru_cache(maxsize=64)
def _machine(name: str) -> dict[str, Any]:
    return {**dataclasses.asdict(built_in_machine(name)), "name": name}


def _request_of(asked: Mapping[str, Any]) -> PlanRequest:
    """Return the plan request in a body; raise :class:`PlanError` if it names a file, which is not allowed."""
    cost = asked.get("cost")
    if isinstance(cost, BaseModel):
        asked = {**asked, "cost": WorkloadCost(**dict(cost))}
    elif cost is not None and cost not in workload_cost_names():
        raise PlanError(
            f"cost must be one of {', '.join(workload_cost_names())}, or its figures, but got {shown_value(cost)}"
            f"{did_you_mean(cost, workload_cost_names())}"
        )
    return PlanRequest.of(**asked)


def _make(
    context: ServerContext, study: Study, backend: str | None, asked: PlanRequest
) -> PlannedRun:
    """Make and store a plan for the study; raise PlanError or EvidenceError if that is impossible."""
    store = context.open_store()
    result = context.forecasts.fitted(store, study).result
    full = result.spec.full_scale
    fault = fault_of_submitted_machine(
        (full.machine if full else "local") if asked.machine is None else str(asked.machine)
    )
    if fault:
        raise RefusedError(422, fault, kind="plan")
    forecast, made = plan_as_asked(result, asked)
    chosen = choose_launch_backend(backend, made.launcher, made.job.workload)
    folder = context.config.folder.absolute() / "plans" / folder_name(made)
    prepare_folder(
        made, folder, chosen
    )  # before anything is stored: a refused request leaves nothing behind
    stored = repository.keep_forecast(store, forecast)
    kept = repository.keep_plan(store, stored, made, folder, chosen)
    store.add_event(
        study.id,
        "plan",
        f"plan {kept.id} at {kept.global_batch_size} on {kept.workers} workers of {kept.machine}",
        {"plan": kept.id},
    )
    return PlannedRun(kept, ())


def _run(context: ServerContext, who: TokenHolder, number: int) -> PlannedRun:
    """Return the plan of this number if the caller may read its study."""
    store = context.open_store()
    try:
        stored = store.plan(number)
    except NotFound:
        if context.config.shared_reading:
            raise
        raise RefusedError(404, f"there is no plan {number}") from None  # names no other plans
    study = store.study_by_id(stored.study_id)
    if not (context.config.shared_reading or who.owns(study)):
        raise RefusedError(404, f"there is no plan {number}")
    return repository.planned_run(store, number)


def _write(plan: Plan, folder: FilePath) -> None:
    write_plan(plan, folder, backend=choose_launch_backend(None, workload=plan.job.workload))


def _run_values(run: PlannedRun) -> dict[str, Any]:
    return run.to_dict()


def _attached(content: bytes, name: str, kind: str) -> Response:
    return Response(
        content, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )
