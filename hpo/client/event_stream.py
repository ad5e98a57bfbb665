"""Server-sent events (WHATWG HTML, 9.2): parsing lines into events, and resuming after a broken connection.

A stream may span any number of connections. Each connection names the last event that was received
(``Last-Event-ID``), so that no event is missed or repeated.
"""

from __future__ import annotations

import json
import re

from hpo.client.protocol import ClientRequest, NoResponse, ServerResponse
from hpo.client.records import RemoteEvent
from hpo.client.retries import (
    RetryPolicy,
    error_of_request,
    may_repeat_request,
    retry_after_seconds,
)
from hpo.errors import ServiceError

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a CR at the end of the bytes may be half of a CR LF


class EventStream:
    """The events of one study, or of all if ``study`` is None: send :attr:`request`, pass its bytes to :meth:`take`.

    ``progress`` adds the newest points of running trials, as events without an id.
    :attr:`ended` becomes true when the study has ended.
    """

    def __init__(
        self, path: str, retries: RetryPolicy, *, after: int = 0, progress: bool = False
    ) -> None:
        self._path, self._retries, self._progress = path, retries, progress
        self._last_id = str(after)
        self._kind, self._data, self._id = "", "", ""
        self._rest = b""
        self._failures = 0
        self.ended = False

    @property
    def request(self) -> ClientRequest:
        """The request that opens the next connection."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": self._last_id}
        return ClientRequest(
            "GET", self._path, {"until_end": "true"}, headers=headers, repeatable=True
        )

    def check(self, reply: ServerResponse) -> None:
        """Raise :class:`ServiceError` if the response is not an event stream."""
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            raise ServiceError(
                f"{self._path} must stream events, but the server sent "
                f"{reply.headers.get('content-type', 'nothing')}; is this the address of `hpo serve`?"
            )

    def take(self, content: bytes) -> list[RemoteEvent]:
        """Return the requested events that are complete after these bytes of the stream.

        Lines end only with CR, LF or both, and not with U+2028, at which ``str.splitlines`` would split JSON.
        """
        self._failures = 0
        *lines, self._rest = _LINE_END.split(self._rest + content)
        return [
            event
            for line in lines
            if (event := self._line(line.decode("utf-8", "replace"))) is not None
        ]

    def _line(self, line: str) -> RemoteEvent | None:
        if not line:
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data += value + "\n"
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def broken(self, reply: ServerResponse | NoResponse) -> float:
        """Return the seconds to wait before reconnecting after the stream broke; raise if retrying is pointless."""
        self._kind, self._data, self._id, self._rest = "", "", "", b""
        self._failures += 1
        answered = isinstance(reply, ServerResponse)
        if self._failures >= self._retries.attempts or (
            answered and not may_repeat_request(self.request, reply)
        ):
            raise error_of_request(self.request, reply, self._failures)
        least = retry_after_seconds(reply.headers) if isinstance(reply, ServerResponse) else 0.0
        return self._retries.pause(self._failures, least)

    def _complete(self) -> RemoteEvent | None:
        kind, data, event_id = self._kind, self._data.removesuffix("\n"), self._id
        self._kind, self._data, self._id = "", "", ""
        if event_id:
            self._last_id = event_id
        if kind == "end":
            self.ended = True
        if kind not in ("log", "progress") or (kind == "progress" and not self._progress):
            return None
        try:
            document = json.loads(data)
        except ValueError as error:
            raise ServiceError(
                f"an event must be JSON, but the server sent {data[:100]!r}"
            ) from error
        if kind == "progress":
            return RemoteEvent(
                id=None, kind=kind, message="", study=document.get("study"), at=None, data=document
            )
        return RemoteEvent.of(document)
