"""Routes for the operator of the server: health, readiness, metrics, workers."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field

from hpo.service.answers import Answer, plain_record
from hpo.service.context import READS, Reader, Shared
from hpo.service.logs import LOG
from hpo.service.reply import json_reply
from hpo.service.routes.common import download_response, error_responses
from storage.errors import StoreError

router = APIRouter(tags=["operations"])
api_router = APIRouter(tags=["operations"])


class HealthAnswer(Answer):
    """The health of the server."""

    status: str


class WorkerAnswer(Answer):
    """A worker that sent a heartbeat within the last minute."""

    model_config = ConfigDict(extra="allow")

    name: str
    host: str
    pid: int
    version: str
    study_id: int | None
    study: str | None = Field(description="The name of the study that it runs.")
    cores: int
    accelerators: int
    seen_at: datetime


class WorkersAnswer(Answer):
    """The workers of this database."""

    workers: list[WorkerAnswer]


@router.get("/health", response_model=HealthAnswer, summary="Liveness")
async def health() -> Response:
    """Report that the process responds; does not use the database, and needs no token."""
    return json_reply({"status": "ok"})


@router.get(
    "/ready",
    response_model=HealthAnswer,
    summary="Readiness",
    responses={503: {"model": HealthAnswer, "description": "The database does not respond."}},
)
def ready(request: Request, context: Shared) -> Response:
    """Report whether requests can be processed, that is, whether the database is reachable. Needs no token."""
    try:
        context.open_store().last_event_id()
    except StoreError as error:
        request.state.failure = str(error)
        LOG.warning("not ready: %s", error)
        return json_reply(
            {"status": "the database does not answer"}, status=503, headers={"Retry-After": "2"}
        )
    return json_reply({"status": "ready"})


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    dependencies=[READS],
    responses={**download_response("text/plain", "Prometheus' text format."), **error_responses()},
)
def metrics(context: Shared) -> Response:
    """Return counts and times of requests, studies and trials by state, workers, queue age and convergence points."""
    return Response(
        context.metrics.text(context.open_store()),
        media_type="text/plain; version=0.0.4; charset=utf-8",
    )


@api_router.get(
    "/workers", response_model=WorkersAnswer, summary="List workers", responses=error_responses()
)
def workers(who: Reader, context: Shared) -> Response:
    """List the workers that sent a heartbeat within the last minute, and what they run."""
    store = context.open_store()
    found, names = store.workers(), dict[int, str]()
    if any(worker.study_id is not None for worker in found):
        names = {
            study.id: study.name
            for study in store.studies()
            if context.config.shared_reading or who.owns(study)
        }
    return json_reply(
        {
            "workers": [
                {**plain_record(worker), "study": names.get(worker.study_id or 0)}
                for worker in found
            ]
        }
    )
