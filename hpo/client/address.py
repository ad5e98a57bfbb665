"""The server's URL and the caller's token: from arguments, or from HPO_SERVER and HPO_TOKEN."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from hpo.errors import AuthenticationError, RequestError

API = "/api/v1"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
SILENCE_SECONDS = 60.0
"""Read timeout of an event stream: the server sends a heartbeat every few seconds, so a silent stream is dead."""


@dataclass(frozen=True)
class ServerAddress:
    """A server's URL and a token; its repr hides the token."""

    url: str
    token: str = field(repr=False)

    @property
    def root(self) -> str:
        """The base URL of the API."""
        return f"{self.url}{API}"

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers sent with every request."""
        return {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}


def server_address(url: str | None, token: str | None) -> ServerAddress:
    """Return the address; raise RequestError or AuthenticationError if the URL or the token is missing or invalid."""
    url = (url or os.environ.get("HPO_SERVER", "")).strip()
    token = (token or os.environ.get("HPO_TOKEN", "")).strip()
    if not url:
        raise RequestError(
            "no server given; give its URL, or set HPO_SERVER (`hpo serve` prints it)"
        )
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a bracket or port that is none
        sound = False
    if not sound:
        raise RequestError(f"the URL of a server must look like https://host:8642, but got {url!r}")
    if not token:
        raise AuthenticationError(
            f"no token for {parts.netloc}; give one, or set HPO_TOKEN "
            "(`hpo token create` makes one)"
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise AuthenticationError(
            "a token must contain only visible ASCII characters; this one was copied "
            "incompletely or with extra text"
        )
    return ServerAddress(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", token)
