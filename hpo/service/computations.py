"""Threads for work that may take seconds: fits, forecasts, plans, figures with laws, checks of submissions.

A request that waits for such work occupies neither a thread that answers reads nor a slot of its owner's share.
Each owner has one computation at a time; further ones wait in that owner's queue and do not delay other owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from hpo.service.auth import TokenHolder
from hpo.service.fair_queue import FairQueue, RequestSlot
from hpo.service.refusal import RefusedError

THREADS = 8
MOST_WAITING = 100
Found = TypeVar("Found")


class ComputationPool:
    """A small pool of a server's threads for computations of one kind.

    ``kind`` names the computations in error messages. A computation that has a slot waits at most ``wait_seconds`` for
    a thread.
    """

    def __init__(
        self, threads: int = THREADS, kind: str = "computations", wait_seconds: float | None = None
    ) -> None:
        self._threads, self._kind, self._wait_seconds = threads, kind, wait_seconds
        self._queue = FairQueue(threads, most=1, queue=MOST_WAITING)
        self._free = asyncio.Semaphore(threads)
        self._limiter: CapacityLimiter | None = None

    async def run(self, who: TokenHolder, slot: RequestSlot, work: Callable[[], Found]) -> Found:
        """Return the result of ``work`` for a request, which gives up its slot in the meantime.

        Raises RefusedError: 429 if too many of the owner's computations are waiting, 503 if no thread is free in time.
        """
        self._limiter = self._limiter or CapacityLimiter(self._threads)  # bound to the running loop
        try:
            async with slot.aside(), self._queue.slot(who.owner), self._thread():
                return await run_sync(work, limiter=self._limiter)
        except asyncio.QueueFull:
            raise RefusedError(
                429,
                f"{who.owner} has more than {MOST_WAITING} {self._kind} waiting",
                way_out="wait for the responses before sending more",
                retry_after=5,
            ) from None

    @asynccontextmanager
    async def _thread(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise RefusedError(
                503,
                f"the server is busy with the {self._kind} of other users",
                way_out="try again",
                retry_after=5,
            ) from None
        try:
            yield
        finally:
            self._free.release()
