"""Studies: submit, list, show, cancel, resume, rename, delete."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Body, Depends, Header, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from hpo.errors import SpecError, SpecFault
from hpo.runs import repository
from hpo.runs.study_changes import renamed_study_text, retry_message, starts_otherwise
from hpo.service.answers import StudiesAnswer, StudyDetail, plain_record, study_answer_values
from hpo.service.auth import TokenHolder
from hpo.service.checking import CheckedStudy
from hpo.service.context import (
    BIGGEST_ID,
    OwnSlot,
    Reader,
    ServerContext,
    Shared,
    StudyName,
    Submitter,
    not_found,
)
from hpo.service.refusal import RefusedError
from hpo.service.reply import json_reply
from hpo.service.routes.common import After, Limit, Words, error_responses
from hpo.service.study_facts import StudyFacts, study_facts
from hpo.study.sizes import fault_of_other_model_sizes, named_sizes, points
from hpo.study.spec import parse_stored_study
from storage.errors import NotFound
from storage.records import NewStudy, Study, StudyState
from storage.store import Store

router = APIRouter(prefix="/studies", tags=["studies"])

EXAMPLE = """\
name: bowl
workload: noisy_quadratic
data: {modes: 200, noise_scale: 0.5, train_samples: 512}
target: {metric: loss, at_most: 0.05}
ladder: [32, 64, 128]
full_scale: {global_batch_size: 512}
search:
  learning_rate: {log_uniform: [0.002, 2], role: scaled}
  weight_decay: 0
budget: {trials: 36, epochs_per_trial: 80}
"""


class Submission(BaseModel):
    """A study to run."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    spec: str = Field(min_length=1, description="The study file, YAML.", examples=[EXAMPLE])
    priority: int = Field(
        0, ge=-100, le=100, description="Studies with a higher priority run first."
    )
    max_samples: int | None = Field(
        None,
        ge=1,
        le=BIGGEST_ID,
        description="Stops the sweep when its trials have used this many training samples.",
    )
    max_accelerator_hours: float | None = Field(None, gt=0, le=1e9)
    for_agents: bool = Field(
        False,
        description="Clients that ask for trials train them; no worker runs the study.",
    )


class Resumption(BaseModel):
    """How to continue a study: unchanged, or with a file that asks for more."""

    model_config = ConfigDict(extra="forbid", strict=True)

    spec: str | None = Field(
        None,
        min_length=1,
        description="The study file with more trials, seeds or rungs; its workload, data, "
        "target and search space must be unchanged.",
    )
    retry_failed: bool = Field(
        False,
        description="Train failed trials again; also done if the program or command in `spec` "
        "has changed.",
    )


class Renaming(BaseModel):
    """The new name of a study."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=1000, examples=["bowl-with-noise"])


async def _submitted(
    who: Submitter, context: Shared, slot: OwnSlot, body: Submission
) -> CheckedStudy:
    return await context.checked(who, slot, body.spec)


async def _resumed(
    who: Submitter,
    context: Shared,
    slot: OwnSlot,
    name: StudyName,
    body: Annotated[Resumption | None, Body()] = None,
) -> CheckedStudy | None:
    if body is None or body.spec is None:
        return None
    await run_sync(_to_change, context, who, name)
    return await context.checked(who, slot, body.spec)


@router.post(
    "",
    status_code=201,
    response_model=StudyDetail,
    summary="Submit a study",
    responses={
        200: {
            "model": StudyDetail,
            "description": "The study was submitted before; this is its current state.",
        },
        **error_responses(409),
    },
)
def submit(
    who: Submitter,
    context: Shared,
    body: Submission,
    spec: Annotated[CheckedStudy, Depends(_submitted)],
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=200,
            pattern=r"^[!-~]+$",
            description="Requests with the same key and the same study create only one study.",
        ),
    ] = None,
) -> Response:
    """Queue a study for the workers. For an invalid study file, the response lists every error with its line."""
    limits, store = context.config.limits, context.open_store()
    if body.priority > limits.priority and not who.allows("admin"):
        raise RefusedError(
            403,
            f"priority must be at most {limits.priority} without the scope admin, but got "
            f"{body.priority}",
        )
    try:
        store.study(spec.name)
    except NotFound:
        spec.check_new()
    _check_queue(context, store, who.owner, spec)
    submitted = store.submit_study(
        NewStudy(
            name=spec.name,
            workload=spec.workload,
            metric=spec.metric,
            threshold=spec.threshold,
            higher_is_better=spec.higher_is_better,
            spec=spec.text,
            budget_trials=spec.trials,
            owner=who.owner,
            priority=body.priority,
            idempotency_key=idempotency_key,
            max_samples=_least(body.max_samples, limits.samples),
            max_accelerator_hours=_least(body.max_accelerator_hours, limits.accelerator_hours),
            for_agents=body.for_agents,
        ),
        event=f"submitted by {who.owner}",
    )
    return json_reply(_detail(store, submitted.study), status=201 if submitted.created else 200)


@router.get("", response_model=StudiesAnswer, summary="List studies", responses=error_responses())
def studies(
    who: Reader,
    context: Shared,
    owner: Words | None = None,
    state: Annotated[StudyState | None, Query()] = None,
    search: Annotated[Words | None, Query(description="Part of the study's name.")] = None,
    after: After = None,
    limit: Limit = 100,
) -> Response:
    """List the studies that the token may read."""
    if not context.config.shared_reading and not who.allows("admin"):
        if owner not in (None, who.owner):
            return json_reply({"studies": [], "next": None})
        owner = who.owner
    page = context.open_store().page_studies(
        owner=owner, state=state, search=search, after=after, limit=limit
    )
    found = [study_answer_values(each, each.samples) for each in page]
    return json_reply({"studies": found, "next": page[-1].study.id if len(page) == limit else None})


@router.get(
    "/{name}", response_model=StudyDetail, summary="Show a study", responses=error_responses(404)
)
def show(who: Reader, context: Shared, name: StudyName) -> Response:
    """Return a study with its file, its rungs and its usage."""
    return json_reply(_detail(context.open_store(), context.read_study(who, name)))


@router.post(
    "/{name}/cancel",
    response_model=StudyDetail,
    summary="Cancel a study",
    responses=error_responses(404, 409),
)
def cancel(who: Submitter, context: Shared, name: StudyName) -> Response:
    """Take a study out of the queue, or stop its running trials within seconds. Its results are kept."""
    store, study = _to_change(context, who, name)
    changed = store.request_cancel(study.id)
    if (changed.state, changed.cancel_requested) != (study.state, study.cancel_requested):
        store.add_event(study.id, "cancel", f"{who.owner} asked to cancel it")
    return json_reply(_detail(store, changed))


@router.post(
    "/{name}/resume",
    response_model=StudyDetail,
    summary="Resume a study",
    responses=error_responses(404, 409),
)
def resume(
    who: Submitter,
    context: Shared,
    name: StudyName,
    spec: Annotated[CheckedStudy | None, Depends(_resumed)],
    body: Annotated[Resumption | None, Body()] = None,
) -> Response:
    """Queue a study again that was interrupted or cancelled, that failed, or that is finished and gets more trials."""
    store, study = _to_change(context, who, name)
    retry = body is not None and body.retry_failed
    if spec is not None:
        _check_comparable(study, spec)
        if study.state in (StudyState.RUNNING, StudyState.QUEUED):
            raise RefusedError(
                409,
                f"study {name!r} is {study.state}: its file can be changed only when it is "
                f"neither queued nor running",
                way_out="cancel it first, or wait until it ends",
            )
        _check_queue(context, store, study.owner, spec)
        retry = retry or starts_otherwise(parse_stored_study(study.spec).to_dict(), spec.plain)
    elif study.state is not StudyState.QUEUED:
        _check_queue(context, store, study.owner, study)
    again = store.retry_failed(study.id) if retry else []
    if again:
        store.add_event(study.id, "retried", retry_message(again))
    if spec is not None:
        store.update_spec(study.id, spec.text, budget_trials=spec.trials)
    changed = store.requeue_study(study.id)
    if study.state is not StudyState.QUEUED:
        store.add_event(study.id, "resumed", f"queued again by {who.owner}")
    return json_reply(_detail(store, changed))


@router.post(
    "/{name}/rename",
    response_model=StudyDetail,
    summary="Rename a study",
    responses=error_responses(404, 409),
)
def rename(who: Submitter, context: Shared, name: StudyName, body: Renaming) -> Response:
    """Rename a study, also in its file. It must not be running, and the name must be free."""
    store, study = _to_change(context, who, name)
    changed = store.rename_study(study.id, body.name, renamed_study_text(study, body.name))
    store.add_event(study.id, "renamed", f"{who.owner} renamed it from {name!r}")
    return json_reply(_detail(store, changed))


@router.delete(
    "/{name}", status_code=204, summary="Delete a study", responses=error_responses(404, 409)
)
def delete(who: Submitter, context: Shared, name: StudyName) -> Response:
    """Remove a study with its trials, forecasts, plans and outcomes. It must not be running."""
    store, study = _to_change(context, who, name)
    if study.state is StudyState.RUNNING:
        raise RefusedError(409, f"study {name!r} is running", way_out="cancel it first")
    store.delete_study(study.id)
    if context.config.shared_reading:  # everybody may read events of the service
        store.add_event(None, "deleted", f"{who.owner} deleted the study {name!r}")
    return Response(status_code=204)


def _to_change(context: ServerContext, who: TokenHolder, name: str) -> tuple[Store, Study]:
    return context.open_store(), context.check_changeable(who, context.read_study(who, name))


def _check_queue(
    context: ServerContext, store: Store, owner: str, study: CheckedStudy | Study
) -> None:
    """Refuse a study if its owner has too many in the queue or stores too much; accept a repeated submission."""
    limits = context.config.limits
    queued = store.queued_of(owner, besides=study.name)
    if queued >= limits.queued_studies:
        raise RefusedError(
            429,
            f"{owner} has {queued} studies in the queue, but this server allows "
            f"{limits.queued_studies}",
            way_out="wait until a worker has started one, or cancel one",
            retry_after=60,
        )
    context.check_stored(owner, len(study.text) if isinstance(study, CheckedStudy) else 0)


def _check_comparable(study: Study, spec: CheckedStudy) -> None:
    if spec.name != study.name:
        message = f"the file must be for study {study.name!r}, but its name is {spec.name!r}"
        raise SpecError(SpecFault(message, key="name"))
    before, now = parse_stored_study(study.spec).to_dict(), spec.plain
    for name in repository.COMPARABLE:
        section, _, key = name.partition(".")
        if before.get(section) != now.get(section) and (
            not key or before[section].get(key) != now[section].get(key)
        ):
            message = (
                f"{name} must not change when a study continues, because its trials would not "
                f"be comparable; submit it under another name"
            )
            raise SpecError(SpecFault(message, key=name))
    if fault := fault_of_other_model_sizes(before, now):
        raise SpecError(SpecFault(fault, key="ladder"))


def _least(*values: float | int | None) -> Any:
    return min((value for value in values if value is not None), default=None)


def _detail(store: Store, study: Study) -> dict[str, Any]:
    rungs, usage = store.counts(study.id), store.usage(study.id)
    summary = store.page_studies(after=study.id + 1, limit=1)[0]  # newest first: this study
    if summary.study.id != study.id:  # it was deleted meanwhile
        raise not_found(study.name)
    facts = study_facts(study.spec)
    by_sizes = _by_sizes(store, study, facts)
    return {
        **study_answer_values(summary, usage.samples),
        "budget_trials": study.budget_trials or facts.budget_trials,
        "spec": study.spec,
        "ladder": facts.ladder or sorted(rungs),
        "sizes": facts.sizes,
        "full_scale": facts.full_scale,
        "usage": plain_record(usage),
        "rungs": [
            {
                "global_batch_size": batch,
                "trials": {str(state): count for state, count in counted.items()},
                "by_sizes": by_sizes.get(batch, []),
            }
            for batch, counted in sorted(rungs.items())
        ],
    }


def _by_sizes(store: Store, study: Study, facts: StudyFacts) -> dict[int, list[dict[str, Any]]]:
    """Return the trials per state for each combination of sizes, by batch; empty if only the batch grows."""
    if not facts.full_point:
        return {}
    spec = parse_stored_study(study.spec)
    ordered = {tuple(named_sizes(point).items()): at for at, point in enumerate(points(spec))}
    counted: dict[int, dict[tuple[tuple[str, int], ...], Counter[str]]] = {}
    for batch, state, own in store.own_settings(study.id):
        sizes = tuple(facts.sizes_of(own).items())
        counted.setdefault(batch, {}).setdefault(sizes, Counter())[str(state)] += 1
    return {
        batch: [
            {"sizes": dict(sizes), "trials": dict(states)}
            for sizes, states in sorted(
                found.items(), key=lambda each: (ordered.get(each[0], len(ordered)), each[0])
            )
        ]
        for batch, found in counted.items()
    }
