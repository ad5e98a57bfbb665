"""What a call asks of whoever carries it: requests and pauses, as data.

A call is a generator that yields steps and is sent what came of each: an :class:`Answer` or :class:`Lost` for a
:class:`Request`, None for a :class:`Pause`. It returns its result. A client of any kind runs it in a few lines, and a
test without a network.
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
class Request:
    """One request. ``repeatable`` says that it may be sent again where nobody knows whether it arrived."""

    method: str
    path: str
    parameters: Parameters = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False


@dataclass(frozen=True)
class Answer:
    """What the server said; names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def document(self) -> Any:
        """The JSON of the answer; None where it holds none."""
        try:
            return json.loads(self.content)
        except ValueError:
            return None


@dataclass(frozen=True)
class Lost:
    """No answer: why, and whether the request surely never reached the server."""

    reason: str
    never_sent: bool = False


@dataclass(frozen=True)
class Pause:
    """Nothing is to be done for some seconds."""

    seconds: float


Step = Request | Pause
Steps = Generator[Step, Answer | Lost | None, T]


def get(*path: str | int, **parameters: Any) -> Request:
    """A request that reads; it may always be repeated. Each of ``path`` is one segment, in any characters."""
    return Request("GET", join(*path), {name: value for name, value in parameters.items() if value is not None},
                   repeatable=True)


def join(*path: str | int) -> str:
    """The path of these segments below the API's root."""
    return "".join(f"/{quote(str(segment), safe='')}" for segment in path)
