"""Limits that uvicorn leaves to a proxy: on request heads, on clients that do not read, and on connections.

The head of a request is limited in size and in time, counted from the connection or from the first byte of a later
request. A client must read some of its response within a timeout. The timeout is shorter when many connections from one
address read nothing, because each of them holds a slot of its owner. The number of pipelined requests and the number
of open connections per address are limited. :mod:`hpo.service.middleware` limits bodies.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from hpo.service.config import ServiceLimits

TOO_MANY = b"too many connections from this address\n"
TOO_SLOW = b"the head of the request took too long to arrive\n"
TOO_LONG = b"the head of the request is too long\n"
TOO_FAR_AHEAD = b"too many requests were sent before their responses were read\n"
PIPELINED = 32
"""Maximum number of pipelined requests waiting on one connection; browsers and libraries do not pipeline."""

IDLE_CONNECTIONS = 4
"""Connections of one address that may leave their responses unread for the whole configured timeout."""

CROWDED_SECONDS = 1.0
"""Timeout in seconds for the connections beyond IDLE_CONNECTIONS."""

FRAMING = 4
"""Maximum number of bytes on the wire per byte of the largest body: no client sends chunks of one byte."""


def guarded_protocol(
    limits: ServiceLimits, trusted: Collection[str] = ()
) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with these limits; ``trusted`` proxies may open any number of connections."""
    opened: Counter[str] = Counter()
    stuck: Counter[str] = Counter()

    class Guarded(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """One connection with these limits."""

        _address = ""
        _refused = False
        _late: asyncio.TimerHandle | None = None
        _stuck: asyncio.TimerHandle | None = None
        # state of a response that the client does not read: bytes left, and since when nothing was read
        _left = 0
        _since = 0.0
        # state of the message being received: its number on this connection, its bytes after the first read
        _message = _received = _head = 0
        _in_head = _ended = False

        def connection_made(self, transport: Any) -> None:
            peer = transport.get_extra_info("peername")
            address = str(peer[0]) if peer else ""
            if address not in trusted and opened[address] >= limits.connections_per_address:
                self._refused = True
                _refuse(transport, 503, TOO_MANY)
                return
            self._address = address
            opened[address] += 1
            super().connection_made(transport)
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            if self._refused or self._ended:
                return
            message = self._message
            super().data_received(data)
            if message == self._message:
                self._count(len(data))
            cycle = getattr(self, "cycle", None)
            if cycle is None or cycle.response_complete:
                self._expect_head()
            else:
                self._head_came()

        def on_message_begin(self) -> None:
            self._message, self._received, self._in_head = self._message + 1, 0, True
            self._head = 0
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            self._count_head(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._in_head:
                # trailers after a chunked body (RFC 9112, section 7.1.2) are not part of the head
                self._count_head(len(name) + len(value) + len(": \r\n"))
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_head = False
            if len(self.pipeline) >= PIPELINED:
                self._end(503, TOO_FAR_AHEAD)
            if not self._ended:  # else drop the rest of the data
                super().on_headers_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if (
                self.pipeline
            ):  # uvicorn resumes reading after every response, however many requests are waiting
                self.flow.pause_reading()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch()

        def resume_writing(self) -> None:
            self._taken()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_came()
            self._taken()
            if self._refused:
                return
            opened[self._address] -= 1
            if opened[self._address] <= 0:
                del opened[self._address]
            super().connection_lost(exc)

        def _count(self, received: int) -> None:
            """Refuse a message whose head, or head and body together, exceed the limit."""
            self._received += received
            most = limits.head_bytes + (0 if self._in_head else FRAMING * limits.body_bytes)
            if self._received > most:
                self._end(431, TOO_LONG)

        def _count_head(self, received: int) -> None:
            """Count the bytes of a head that arrived in a single read, perhaps together with other heads."""
            self._head += received
            if self._head > limits.head_bytes:
                self._end(431, TOO_LONG)

        def _end(self, status: int, words: bytes) -> None:
            """Send the reason and close; close at once if earlier responses are unread."""
            if self._ended or self.transport.is_closing():
                return
            self._ended = True
            _refuse(self.transport, status, words)
            self._watch()

        def _expect_head(self) -> None:
            if self._late is None:
                loop = asyncio.get_running_loop()
                self._late = loop.call_later(limits.head_seconds, self._give_up)

        def _head_came(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _watch(self) -> None:
            """End the connection if the client reads nothing for too long."""
            if self._stuck is None:
                stuck[self._address] += 1
                self._left, self._since = 0, asyncio.get_running_loop().time()
                self._look()

        def _look(self) -> None:
            loop = asyncio.get_running_loop()
            left, now = self.transport.get_write_buffer_size(), loop.time()
            if left < self._left:
                self._since = now
            self._left = left
            crowded = self._address not in trusted and stuck[self._address] > IDLE_CONNECTIONS
            short = min(CROWDED_SECONDS, limits.send_seconds)
            if now - self._since >= (short if crowded else limits.send_seconds):
                self.transport.abort()
            self._stuck = loop.call_later(short / 2, self._look)

        def _taken(self) -> None:
            if self._stuck is not None:
                self._stuck.cancel()
                self._stuck = None
                stuck[self._address] -= 1
                if stuck[self._address] <= 0:
                    del stuck[self._address]

        def _give_up(self) -> None:
            self._late = None
            cycle = getattr(self, "cycle", None)
            if (cycle is None or cycle.response_complete) and not self.transport.is_closing():
                _refuse(self.transport, 408, TOO_SLOW)

    return Guarded


_REASONS = {
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}


def _refuse(transport: Any, status: int, words: bytes) -> None:
    reason = _REASONS[status]
    transport.write(
        b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
        % (status, reason, len(words), words)
    )
    transport.close()
