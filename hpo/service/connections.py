"""Limits that uvicorn leaves to a proxy: the time that a request head may take, and connections per address.

A head must arrive within a time, counted from the connection or from the first byte of a later request, and one
address may have so many connections open. Bodies have their time in :mod:`hpo.service.middleware`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

TOO_MANY = b"too many connections from this address\n"
TOO_SLOW = b"the head of a request must arrive sooner\n"


def guarded_protocol(
    head_seconds: float, per_address: int, trusted: Collection[str] = ()
) -> type[asyncio.Protocol]:
    """uvicorn's protocol with both limits; ``trusted`` addresses, those of proxies, may open any number."""
    opened: Counter[str] = Counter()

    class Guarded(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """One connection."""

        _address = ""
        _refused = False
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            peer = transport.get_extra_info("peername")
            address = str(peer[0]) if peer else ""
            if address not in trusted and opened[address] >= per_address:
                self._refused = True
                _refuse(transport, 503, TOO_MANY)
                return
            self._address = address
            opened[address] += 1
            super().connection_made(transport)
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            super().data_received(data)
            cycle = getattr(self, "cycle", None)
            if cycle is None or cycle.response_complete:
                self._expect_head()
            else:
                self._head_came()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_came()
            if self._refused:
                return
            opened[self._address] -= 1
            if opened[self._address] <= 0:
                del opened[self._address]
            super().connection_lost(exc)

        def _expect_head(self) -> None:
            if self._late is None:
                loop = asyncio.get_running_loop()
                self._late = loop.call_later(head_seconds, self._give_up)

        def _head_came(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _give_up(self) -> None:
            self._late = None
            cycle = getattr(self, "cycle", None)
            if (cycle is None or cycle.response_complete) and not self.transport.is_closing():
                _refuse(self.transport, 408, TOO_SLOW)

    return Guarded


def _refuse(transport: Any, status: int, words: bytes) -> None:
    reason = {408: b"Request Timeout", 503: b"Service Unavailable"}[status]
    transport.write(
        b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
        % (status, reason, len(words), words)
    )
    transport.close()
