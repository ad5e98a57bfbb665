"""The protocol between the calls and their transport: requests, responses and pauses, as data.

A call is a generator that yields a :class:`ClientRequest` or a :class:`ClientPause` and is sent the outcome: a
:class:`ServerResponse` or :class:`NoResponse` for a request, None for a pause. It returns its result. Thus each call is
written once, for the blocking client, the asynchronous client, and tests without a network.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

T = TypeVar("T")
Parameters = Mapping[str, str | int | float | bool | Sequence[str | int | float] | None]


@dataclass(frozen=True)
class ClientRequest:
    """One request. If ``repeatable``, it may be sent again even if it may already have arrived."""

    method: str
    path: str
    parameters: Parameters = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False


@dataclass(frozen=True)
class ServerResponse:
    """The server's response; the names in ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def document(self) -> Any:
        """The JSON of the response; None if it holds none."""
        try:
            return json.loads(self.content)
        except ValueError:
            return None


@dataclass(frozen=True)
class NoResponse:
    """A missing response: the reason, and whether it is certain that the request never reached the server."""

    reason: str
    never_sent: bool = False


@dataclass(frozen=True)
class ClientPause:
    """A pause of some seconds before the next step."""

    seconds: float


Step = ClientRequest | ClientPause
Steps = Generator[Step, ServerResponse | NoResponse | None, T]


def get_request(*path: str | int, **parameters: Any) -> ClientRequest:
    """Return a GET request, which may always be repeated. Each item of ``path`` is one segment, with any characters."""
    return ClientRequest(
        "GET",
        join_url_path(*path),
        {name: value for name, value in parameters.items() if value is not None},
        repeatable=True,
    )


def join_url_path(*path: str | int) -> str:
    """Join the segments into a path below the API's root."""
    return "".join(f"/{quote(str(segment), safe='')}" for segment in path)
