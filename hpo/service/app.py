"""create_app: builds the web service, an ASGI application, from a configuration."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import current_default_thread_limiter, run_sync
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse

from hpo.service import errors, reference
from hpo.service.config import ServerConfig
from hpo.service.context import ServerContext
from hpo.service.middleware import RequestMiddleware
from hpo.service.routes import (
    ask_tell,
    events,
    forecasts,
    login,
    operations,
    plans,
    studies,
    tokens,
    trials,
)
from storage.errors import StoreError

PREFIX = "/api/v1"
SETTLE_SECONDS = 5.0
"""Seconds between two checks for cancelled studies whose workers stopped responding."""
TAGS = [
    {
        "name": "studies",
        "description": "Sweeps, each with a study file, an owner and a position in the queue.",
    },
    {
        "name": "trials",
        "description": "Training runs of a study, and their convergence in columns for plots.",
    },
    {
        "name": "forecasts",
        "description": "Settings and epochs to target at batch sizes that were never swept.",
    },
    {
        "name": "plans",
        "description": "Plans for a machine, with launch scripts and outcomes.",
    },
    {"name": "events", "description": "Live and past events."},
    {"name": "tokens", "description": "Access tokens and their scopes."},
    {"name": "operations", "description": "Endpoints for the operator of the server."},
]
DESCRIPTION = (
    "Sweep large-batch training settings at small scale; forecast, plan and launch the full-machine run. "
    "Every request under /api needs a token, as Authorization: Bearer lb_..., with a scope: "
    "read, submit (includes read) or admin (includes all). Every error is one JSON document: "
    "error.kind, error.message and, if there is one, error.way_out; every response has an "
    "X-Request-ID, which is also in the server's log."
)


def create_app(
    config: ServerConfig,
    extra_routers: Sequence[APIRouter] = (),
    on_start: Callable[[ServerContext], None] | None = None,
) -> FastAPI:
    """Return the application; ``extra_routers`` add pages such as a dashboard, whose ``/`` replaces the default page.

    ``on_start`` is called with the server's context when it has started. The store opens with the first request that
    needs it; while the database is unavailable, requests are answered with 503.
    """
    context = ServerContext(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = config.threads
        if on_start is not None:
            on_start(context)
        settling = asyncio.create_task(_settle(context))
        yield
        settling.cancel()
        with suppress(asyncio.CancelledError):
            await settling
        context.live.close()
        context.close()

    app = FastAPI(
        title="largebatch",
        version=importlib.metadata.version("largebatch"),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        openapi_url=None,
        separate_input_output_schemas=False,
    )
    app.state.context = context
    errors.install(app)
    for router in extra_routers:
        app.include_router(router)
    for router in (
        studies.router,
        trials.router,
        ask_tell.router,
        forecasts.router,
        plans.router,
        events.router,
        tokens.router,
        operations.api_router,
    ):
        app.include_router(router, prefix=PREFIX)
    app.include_router(operations.router)
    app.include_router(login.router)
    _add_documents(app)
    app.add_middleware(RequestMiddleware, context=context)
    return app


async def _settle(context: ServerContext) -> None:
    """Cancel studies that are marked for cancellation and whose worker stopped responding, as no worker may be left.

    Also make sure that the disk has enough space to delete studies.
    """

    def settle() -> None:
        store = context.open_store()
        store.keep_spare()
        for study in store.settle_studies():
            store.add_event(study.id, str(study.state), study.message)

    limiter = CapacityLimiter(1)  # so that this task never waits for a thread of a busy server
    while True:
        await asyncio.sleep(SETTLE_SECONDS)
        with suppress(StoreError):  # if the database is unavailable, try again later
            await run_sync(settle, limiter=limiter)


def _add_documents(app: FastAPI) -> None:
    """Add /openapi.json for programs and /docs for readers; neither contains secrets or needs a token."""
    policy = {
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    }
    shown: dict[str, Any] = {}

    async def document(_: Request) -> Response:
        return JSONResponse(app.openapi())

    async def docs(_: Request) -> Response:
        if "page" not in shown:
            shown["page"] = reference.page(app.openapi())
        return HTMLResponse(shown["page"], headers=policy)

    async def home(_: Request) -> Response:
        return RedirectResponse("docs", 307)

    app.add_route("/openapi.json", document, include_in_schema=False)
    app.add_route("/docs", docs, include_in_schema=False)
    app.add_route("/", home, include_in_schema=False)
