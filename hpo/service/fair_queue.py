"""Fair queuing: an equal share of the server's threads for each owner, so that no owner keeps the others waiting.

A few threads answer all requests. One owner who sends expensive requests over many connections could occupy all of
them, even within the limits of :mod:`hpo.service.rate_limit`. So each owner has a share of the threads, and further
requests wait in that owner's queue, first come, first served. This is processor sharing between owners
(Kleinrock, 1967, doi:10.1145/321386.321388), with whole requests as the unit.

With *n* owners who have requests in progress, each may use ``threads // (n + 1)`` threads, but at least one. Thus some
threads stay free for the next owner, who is served at once.

A request that waits for something other than a thread, such as a fit, gives its slot to its owner's next request
in the meantime (:meth:`RequestSlot.aside`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class _Owner:
    in_progress: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class FairQueue:
    """A fair queue of requests, for one event loop: each owner has an equal share of the threads.

    ``threads`` is the maximum number of requests in progress at a time, ``most`` the maximum for one owner even if no
    other owner sends any, ``queue`` the maximum number of one owner's requests that may wait.
    """

    def __init__(self, threads: int, most: int, queue: int) -> None:
        self._threads, self._most, self._queue = threads, most, queue
        self._owners: dict[Hashable, _Owner] = {}

    @property
    def share(self) -> int:
        """Number of requests that one owner may have in progress now."""
        return max(1, min(self._most, self._threads // (len(self._owners) + 1)))

    @asynccontextmanager
    async def slot(self, owner: Hashable) -> AsyncIterator[RequestSlot]:
        """Hold a slot for a request once the owner's share allows it; raise asyncio.QueueFull if too many wait."""
        waiter = self._owners.get(owner)
        if waiter is not None and len(waiter.waiting) >= self._queue:
            raise asyncio.QueueFull
        await self.begin(owner)
        slot = RequestSlot(self, owner)
        try:
            yield slot
        finally:
            slot.end()

    async def begin(self, owner: Hashable, *, first: bool = False) -> None:
        """Count a request as in progress once the share allows it; ``first`` puts it ahead of waiting requests."""
        waiter = self._owners.setdefault(owner, _Owner())
        if waiter.in_progress < self.share and (first or not waiter.waiting):
            waiter.in_progress += 1
            return
        slot = asyncio.get_running_loop().create_future()
        (waiter.waiting.appendleft if first else waiter.waiting.append)(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():  # the slot was granted already: pass it on
                self.end(owner)
            elif slot in waiter.waiting:
                waiter.waiting.remove(slot)
            raise

    def end(self, owner: Hashable) -> None:
        """Count a request as ended, and start the requests that may now run, one owner after the other."""
        ended = self._owners[owner]
        ended.in_progress -= 1
        if not ended.in_progress and not ended.waiting:
            del self._owners[owner]
        share, begun = self.share, True
        while begun:
            begun = False
            for each in self._owners.values():
                if each.waiting and each.in_progress < share:
                    slot, begun = each.waiting.popleft(), True
                    if not slot.cancelled():
                        slot.set_result(None)
                        each.in_progress += 1


class RequestSlot:
    """The slot of one request in progress; it is released once, when the request ends or earlier."""

    def __init__(self, queue: FairQueue, owner: Hashable) -> None:
        self._queue, self._owner, self._ended = queue, owner, False

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """Release the slot within the context, and take it again ahead of the owner's other requests.

        The slot stays released if the context raises, because a refusal needs no thread.
        """
        self.end()
        yield
        await self._queue.begin(self._owner, first=True)
        self._ended = False

    def end(self) -> None:
        """Release the slot."""
        if not self._ended:
            self._ended = True
            self._queue.end(self._owner)
