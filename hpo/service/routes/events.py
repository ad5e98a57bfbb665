"""Events of studies: streamed as server-sent events as they happen, and available as logs afterwards."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Annotated, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Query, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from hpo.service.answers import EventsAnswer
from hpo.service.auth import SESSION_PREFIX, TokenHolder
from hpo.service.context import BIGGEST_ID, Reader, ServerContext, Shared, StudyName, look_up_token
from hpo.service.live import EventListener, EventMessage, event_message, event_values
from hpo.service.logs import LOG
from hpo.service.refusal import RefusedError
from hpo.service.reply import json_reply
from hpo.service.routes.common import After, Limit, download_response, error_responses
from storage.errors import StoreError
from storage.records import Event, Study

router = APIRouter(tags=["events"])

HEARTBEAT_SECONDS = 15.0
PAGE = 500
LastEvent = Annotated[
    str | None,
    Header(
        pattern=r"^[0-9]{1,18}$",
        description="Number of the last event received; later events are sent first. Browsers "
        "set it automatically.",
    ),
]
Stream = download_response(
    "text/event-stream",
    "`event: log` with the number of a stored event as its id, `event: progress` "
    "with a study's state and counts. Comments keep the connection open.",
)


@router.get(
    "/events",
    summary="Follow all studies",
    response_class=Response,
    responses={**Stream, **error_responses()},
)
async def all_events(
    request: Request,
    who: Reader,
    context: Shared,
    last_event_id: LastEvent = None,
    after: After = None,
) -> Response:
    """Stream the events of every study that the token may read, as server-sent events."""
    return _stream(request, who, context, None, _start(last_event_id, after), until_end=False)


@router.get(
    "/studies/{name}/events",
    summary="Follow a study",
    response_class=Response,
    responses={**Stream, **error_responses(404)},
)
async def study_events(
    request: Request,
    who: Reader,
    context: Shared,
    name: StudyName,
    last_event_id: LastEvent = None,
    after: After = None,
    until_end: Annotated[
        bool, Query(description="End the stream when the study is neither queued nor running.")
    ] = False,
) -> Response:
    """Stream server-sent events of one study: reports of its workers, and the progress of its trials and curves."""
    study = await run_sync(context.read_study, who, name)
    return _stream(request, who, context, study, _start(last_event_id, after), until_end=until_end)


@router.get(
    "/studies/{name}/logs",
    response_model=EventsAnswer,
    summary="Read the log",
    responses={
        **download_response("text/plain", "Events, one line each, with format=text."),
        **error_responses(404),
    },
)
def logs(
    who: Reader,
    context: Shared,
    name: StudyName,
    after: After = None,
    limit: Limit = 500,
    format: Annotated[
        Literal["json", "text"], Query(description="text: one line for each event.")
    ] = "json",
) -> Response:
    """Return the stored events of a study, oldest first."""
    study = context.read_study(who, name)
    found = context.open_store().events(after=after or 0, study_id=study.id, limit=limit)
    if format == "text":
        return Response("".join(map(_line, found)), media_type="text/plain; charset=utf-8")
    return json_reply(
        {
            "events": [event_values(event) for event in found],
            "next": found[-1].id if len(found) == limit else None,
        }
    )


def _line(event: Event) -> str:
    at: datetime = event.at
    message = event.message.replace("\n", "\n    ")
    return f"{at:%Y-%m-%dT%H:%M:%SZ} {event.kind}: {message}\n"


def _start(last_event_id: str | None, after: int | None) -> int | None:
    return after if last_event_id is None else min(int(last_event_id), BIGGEST_ID)


def _stream(
    request: Request,
    who: TokenHolder,
    context: ServerContext,
    study: Study | None,
    start: int | None,
    *,
    until_end: bool,
) -> Response:
    limits = context.config.limits
    if context.live.streams >= limits.streams:
        raise RefusedError(
            503,
            f"this server has {limits.streams} event streams open, which is its limit",
            retry_after=10,
        )
    if context.live.streams_of(who.token_id) >= limits.streams_per_token:
        raise RefusedError(
            429,
            f"this token has {limits.streams_per_token} event streams open, which is its limit",
            way_out="close one",
            retry_after=10,
        )
    context.live.opened(who.token_id)
    return _EventStream(
        _messages(request, who, context, study, start, until_end),
        lambda: context.live.ended(who.token_id),
    )


class _EventStream(StreamingResponse):
    """Server-sent events; ``ended`` is called once, however the stream ends."""

    def __init__(self, messages: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(
            messages,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _messages(
    request: Request,
    who: TokenHolder,
    context: ServerContext,
    study: Study | None,
    start: int | None,
    until_end: bool,
) -> AsyncIterator[bytes]:
    """Yield the stream; it ends if the database fails, and the client then reconnects with its last event number."""
    yield b"retry: 1000\n\n"
    sees_all = context.config.shared_reading or who.allows("admin")
    try:
        async with context.live.listen(study, who.token_id) as listener:
            with context.metrics.streams.track_inprogress():
                async for message in _story(request, who, context, listener, start, until_end):
                    if message is None:
                        yield b": still here\n\n"
                    elif sees_all or message.study_id is None or message.owner == who.owner:
                        yield message.encoded()
    except StoreError as error:
        LOG.warning("an event stream ended: %s", error)


async def _story(
    request: Request,
    who: TokenHolder,
    context: ServerContext,
    listener: EventListener,
    start: int | None,
    until_end: bool,
) -> AsyncIterator[EventMessage | None]:
    """Yield missed events, the current state, then new events until either side ends; yield None when idle."""
    study, sent = listener.study, set[int]()
    standing = await context.live.past(who.owner, lambda: context.live.standing(study))
    if start is not None:
        async for message in _missed(context, who, study, start, sent):
            yield message
    for message in standing:
        yield message
    over = until_end and any(message.ends for message in standing)
    while not over:
        news = await _next(listener)
        if news is None:
            if context.live.closed or listener.dropped or not await _still_known(request, who):
                return
            yield None
        elif news.event_id not in sent:
            if news.event_id is not None:
                sent.add(news.event_id)
            yield news
            over = until_end and news.ends
    last = max(sent, default=listener.joined_at)
    async for message in _missed(context, who, study, last, sent):
        yield message
    yield EventMessage("end", b"{}")


async def _next(listener: EventListener) -> EventMessage | None:
    try:
        async with asyncio.timeout(HEARTBEAT_SECONDS):
            return await listener.queue.get()
    except TimeoutError:
        return None


async def _missed(
    context: ServerContext, who: TokenHolder, study: Study | None, start: int, sent: set[int]
) -> AsyncIterator[EventMessage]:
    """Yield the stored events after ``start``; their numbers are added to ``sent``."""
    study_id = None if study is None else study.id
    while True:
        page = await context.live.past(
            who.owner, functools.partial(_page, context, start, study_id)
        )
        for message in page:
            start = message.event_id or start
            if start not in sent:
                sent.add(start)
                yield message
        if len(page) < PAGE:
            return


def _page(context: ServerContext, start: int, study_id: int | None) -> list[EventMessage]:
    page = context.open_store().events(after=start, study_id=study_id, limit=PAGE)
    owners = context.live.owners(page)
    return [event_message(event, owners.get(event.study_id)) for event in page]


async def _still_known(request: Request, who: TokenHolder) -> bool:
    """Return whether the token that opened the stream is still valid."""
    secret = request.state.secret
    session = secret.startswith(SESSION_PREFIX)
    try:
        return (await look_up_token(request, secret, session=session)).token_id == who.token_id
    except RefusedError:
        return False
