"""Live events: one reader per server passes the events in the database to every open stream.

While any stream is open, a task reads the database every ``POLL_SECONDS``: new events by their number, and the progress
of each study with listeners. Thus events of workers on all machines are seen, and a hundred open pages cost as much as
one. A listener that is too slow is dropped; it reconnects with the number of the last event that it received and misses
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from hpo.service.fair_queue import FairQueue
from hpo.service.logs import LOG
from hpo.service.progress import StudyPosition, StudyProgress, read_study_progress, running_studies
from storage.errors import DamagedRow, NotFound, StoreError
from storage.records import Event, Study
from storage.store import Store
from trainers.json_text import json_bytes

POLL_SECONDS = 0.4
PAGE = 500
QUEUE = 2_000
SLOW_SECONDS, PAUSE = 0.2, 10
"""A study whose progress takes longer than SLOW_SECONDS to read is read again after PAUSE times as long, so that it
does not hold up others.
"""
PAST_THREADS = 2
"""Threads that read what streams missed, besides the server's threads for requests."""
Found = TypeVar("Found")


@dataclass(frozen=True)
class EventMessage:
    """One server-sent event; ``owner`` is the owner of its study, None if it concerns no study."""

    kind: str
    data: bytes
    owner: str | None = None
    study_id: int | None = None
    event_id: int | None = None
    ends: bool = False

    def encoded(self) -> bytes:
        """Return the lines of the event stream; JSON contains no line break."""
        number = b"" if self.event_id is None else b"id: %d\n" % self.event_id
        return b"%sevent: %s\ndata: %s\n\n" % (number, self.kind.encode(), self.data)


@dataclass(eq=False)
class EventListener:
    """One open stream, for one study or for all studies."""

    study: Study | None
    token_id: int
    joined_at: int = 0
    dropped: bool = False
    queue: asyncio.Queue[EventMessage | None] = field(default_factory=lambda: asyncio.Queue(QUEUE))

    def put(self, message: EventMessage | None) -> None:
        """Queue a message; a listener that cannot keep up is dropped."""
        if message is not None and self.study is not None and message.study_id != self.study.id:
            return
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            self.drop()

    def drop(self) -> None:
        """End the stream, even while it waits."""
        while not self.queue.empty():
            self.queue.get_nowait()
        self.dropped = True
        self.queue.put_nowait(None)


class EventReader:
    """The reader of one server and its listeners."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._listeners: set[EventListener] = set()
        self._open: Counter[int] = Counter()  # streams by token, from the moment they were granted
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limiter: CapacityLimiter | None = None
        self._joining = asyncio.Lock()
        self._past = FairQueue(PAST_THREADS, most=1, queue=sys.maxsize)
        self._past_limiter: CapacityLimiter | None = None
        self._last = 0  # the newest event sent to listeners
        self._positions: dict[int, StudyPosition] = {}
        self._due: dict[int, float] = {}  # when the progress of slow studies is read next
        self._ended: set[int] = set()  # tokens of listeners that were revoked or have expired
        self.closed = False

    @property
    def streams(self) -> int:
        """Number of streams that are open, or granted and about to open."""
        return self._open.total()

    def streams_of(self, token_id: int) -> int:
        """Return the number of a token's streams that are open, or granted and about to open."""
        return self._open[token_id]

    def opened(self, token_id: int) -> None:
        """Count a stream, as soon as it is granted: a client may request many before the first has opened."""
        self._open[token_id] += 1

    def ended(self, token_id: int) -> None:
        """Stop counting a stream."""
        self._open[token_id] -= 1
        if self._open[token_id] <= 0:
            del self._open[token_id]

    @contextlib.asynccontextmanager
    async def listen(self, study: Study | None, token_id: int) -> AsyncIterator[EventListener]:
        """Add a listener, before it reads the stored events, so that no event is missed; may raise StoreUnavailable."""
        self._loop = asyncio.get_running_loop()
        async with self._joining:
            if not self._listeners:  # no listener before: the reader starts at the newest event
                self._last, self._positions = (
                    await run_sync(lambda: self._open_store().last_event_id()),
                    {},
                )
            listener = EventListener(study, token_id, self._last)
            self._listeners.add(listener)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._read())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def past(self, owner: str, read: Callable[[], Found]) -> Found:
        """Return the result of ``read`` for a stream of this owner, in a thread of its own.

        An open stream has no slot among the requests. So an owner's streams read one after the other, in turn with
        those of other owners: many that ask for all past events delay neither requests nor the streams of others.
        """
        self._past_limiter = self._past_limiter or CapacityLimiter(PAST_THREADS)
        async with self._past.slot(owner):
            return await run_sync(read, limiter=self._past_limiter)

    def standing(self, study: Study | None) -> list[EventMessage]:
        """Return the current state of the study, or of every running study: the first messages of a new stream."""
        store = self._open_store()
        names = running_studies(store).values() if study is None else [study.name]
        found = (read_study_progress(store, name, None) for name in names)
        return [progress_message(progress) for progress in found if progress is not None]

    def owners(self, events: Collection[Event]) -> dict[int | None, str | None]:
        """Return the owner of each event's study, by study id."""
        return _owners(self._open_store(), events)

    def close(self) -> None:
        """End every stream when the server stops; safe in any thread and in signal handlers."""
        self.closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        for listener in list(self._listeners):
            listener.put(None)

    async def _read(self) -> None:
        # a separate limiter, so that the reader never waits for a thread of a busy server
        self._limiter = self._limiter or CapacityLimiter(1)
        failed = False
        while self._listeners and not self.closed:
            began = time.monotonic()
            studies = {
                each.study.id: each.study for each in self._listeners if each.study is not None
            }
            everything = any(each.study is None for each in self._listeners)
            try:
                messages = await run_sync(
                    self._poll, list(studies.values()), everything, limiter=self._limiter
                )
                failed = False
            except StoreError as error:  # while the database restarts, clients stay connected
                if not failed:
                    LOG.warning("events are late: %s", error)
                messages, failed = [], True
            for listener in [each for each in self._listeners if each.token_id in self._ended]:
                listener.drop()
            for message in messages:
                for listener in list(self._listeners):
                    listener.put(message)
            await asyncio.sleep(max(0.05, POLL_SECONDS - (time.monotonic() - began)))

    def _poll(self, studies: Collection[Study], everything: bool) -> list[EventMessage]:
        """Return what is new. If the database fails, nothing counts as sent, and the next call returns all of it."""
        store, positions = self._open_store(), dict(self._positions)
        tokens = {each.token_id for each in list(self._listeners)}
        self._ended = tokens - store.valid_tokens(tokens)
        events = store.events(after=self._last, limit=PAGE)
        owners = _owners(store, events)
        messages = [event_message(event, owners[event.study_id]) for event in events]
        watched = {study.id: study.name for study in studies}
        if everything:
            watched.update(running_studies(store))
            watched.update(
                {
                    study_id: position.name
                    for study_id, position in positions.items()
                    if not position.at_rest
                }
            )
        self._due = {each: at for each, at in self._due.items() if each in watched}
        for study_id, name in watched.items():
            began = time.monotonic()
            if began < self._due.get(study_id, began):
                continue
            progress = read_study_progress(store, name, positions.get(study_id))
            if (took := time.monotonic() - began) > SLOW_SECONDS:
                self._due[study_id] = began + PAUSE * took
            if progress is None or progress.study_id != study_id:  # deleted
                positions.pop(study_id, None)
            elif progress.position != positions.get(study_id):
                positions[study_id] = progress.position
                messages.append(progress_message(progress))
        self._positions = positions
        if events:  # a listener that joined meanwhile may have started at a newer event
            self._last = max(self._last, events[-1].id)
        return messages


def _owners(store: Store, events: Collection[Event]) -> dict[int | None, str | None]:
    """Return the owner of each event's study, by study id; always read, as SQLite reuses the ids of deleted studies."""
    return {
        study_id: _owner(store, event)
        for study_id, event in {each.study_id: each for each in events}.items()
    }


def _owner(store: Store, event: Event) -> str | None:
    if event.study_id is None:
        return None
    try:
        return store.study(event.study_name).owner
    except (NotFound, DamagedRow):
        return ""


def event_message(event: Event, owner: str | None) -> EventMessage:
    """Return a stored event as a message."""
    return EventMessage("log", json_bytes(event_values(event)), owner, event.study_id, event.id)


def event_values(event: Event) -> dict[str, Any]:
    """Return a stored event as plain values."""
    return {
        "id": event.id,
        "study": event.study_name or None,
        "at": event.at,
        "kind": event.kind,
        "message": event.message,
        "data": event.data,
    }


def progress_message(progress: StudyProgress) -> EventMessage:
    """Return the progress of a study as a message."""
    position = progress.position
    return EventMessage(
        "progress",
        json_bytes(progress.to_dict()),
        position.owner,
        progress.study_id,
        ends=position.at_rest,
    )
