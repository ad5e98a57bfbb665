"""An equal share of the server's threads for each owner, so that nobody's requests keep another's waiting.

Requests are worked on by a few threads. Whoever asks for what is dear over many connections would have all of them,
with the limits of :mod:`hpo.service.rate_limit` kept. So each owner has a share of the threads, and what an owner asks
for beyond it waits in a queue of the owner's own, first come, first served: processor sharing between owners
(Kleinrock, 1967, doi:10.1145/321386.321388), in whole requests.

With *n* owners who have requests in progress, each may have ``threads // (n + 1)`` of them, at least one: a part of the
threads stays free for whoever comes next, and is served at once.

A request that waits for something else than a thread, such as a fit, steps aside meanwhile (:meth:`Turn.aside`) and
lets another of its owner begin.
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


class Shares:
    """Lets requests begin as the shares allow; of one event loop.

    ``threads`` is how many requests can be worked on at one time, ``most`` how many of one owner even where nobody
    else asks, ``queue`` how many of one owner may wait.
    """

    def __init__(self, threads: int, most: int, queue: int) -> None:
        self._threads, self._most, self._queue = threads, most, queue
        self._owners: dict[Hashable, _Owner] = {}

    @property
    def share(self) -> int:
        """Requests that one owner may have in progress now."""
        return max(1, min(self._most, self._threads // (len(self._owners) + 1)))

    @asynccontextmanager
    async def turn(self, owner: Hashable) -> AsyncIterator[Turn]:
        """A request's turn, which begins when the owner's share allows; asyncio.QueueFull where too many wait."""
        found = self._owners.get(owner)
        if found is not None and len(found.waiting) >= self._queue:
            raise asyncio.QueueFull
        await self.begin(owner)
        turn = Turn(self, owner)
        try:
            yield turn
        finally:
            turn.end()

    async def begin(self, owner: Hashable, *, first: bool = False) -> None:
        """Count a request as in progress when the share allows; ``first`` is before the owner's others that wait."""
        found = self._owners.setdefault(owner, _Owner())
        if found.in_progress < self.share and (first or not found.waiting):
            found.in_progress += 1
            return
        turn = asyncio.get_running_loop().create_future()
        (found.waiting.appendleft if first else found.waiting.append)(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had been given, and is handed on
                self.end(owner)
            elif turn in found.waiting:
                found.waiting.remove(turn)
            raise

    def end(self, owner: Hashable) -> None:
        """Count a request as ended, and let those begin that may now: one of each owner after the other."""
        ended = self._owners[owner]
        ended.in_progress -= 1
        if not ended.in_progress and not ended.waiting:
            del self._owners[owner]
        share, begun = self.share, True
        while begun:
            begun = False
            for each in self._owners.values():
                if each.waiting and each.in_progress < share:
                    turn, begun = each.waiting.popleft(), True
                    if not turn.cancelled():
                        turn.set_result(None)
                        each.in_progress += 1


class Turn:
    """One request in progress; it ends once, with the request or before."""

    def __init__(self, shares: Shares, owner: Hashable) -> None:
        self._shares, self._owner, self._ended = shares, owner, False

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """Give it back for as long as the context lasts, and have it again before the owner's other requests.

        It stays given back where the context fails: a refusal needs no thread.
        """
        self.end()
        yield
        await self._shares.begin(self._owner, first=True)
        self._ended = False

    def end(self) -> None:
        """Give it back."""
        if not self._ended:
            self._ended = True
            self._shares.end(self._owner)
