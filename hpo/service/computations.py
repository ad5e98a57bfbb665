"""Threads for what may take seconds: fits, forecasts, plans, figures with laws.

Requests that wait for one hold none of the threads that answer reads, and each owner has one at a time: who asks for
many waits in a queue of the own, and the next owner who comes begins at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from hpo.service.auth import Principal
from hpo.service.refusal import RefusedError
from hpo.service.shares import Shares

THREADS = 8
MOST_WAITING = 100
Found = TypeVar("Found")


class Computations:
    """The threads of one server."""

    def __init__(self) -> None:
        self._shares = Shares(THREADS, most=1, queue=MOST_WAITING)
        self._limiter: CapacityLimiter | None = None

    async def run(self, who: Principal, work: Callable[[], Found]) -> Found:
        """The result of ``work``, when it is the owner's turn; RefusedError (429) where too much waits for one."""
        self._limiter = self._limiter or CapacityLimiter(THREADS)  # of the loop that runs
        try:
            async with self._shares.turn(who.owner):
                return await run_sync(work, limiter=self._limiter)
        except asyncio.QueueFull:
            raise RefusedError(
                429,
                f"more than {MOST_WAITING} computations of {who.owner} wait",
                way_out="wait for their answers before asking again",
                retry_after=5,
            ) from None
