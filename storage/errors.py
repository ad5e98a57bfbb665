"""The errors of the store.

StoreError
  x StoreUnavailable   cannot be opened, or connection lost: locked, full, no permission, no such server
      + SchemaTooNew   written by a newer release
  x NotFound           no such study, trial, forecast or plan
  x Conflict           contradicts what is stored already
  x LeaseLost          another worker has taken the study over, or the lease was revoked
  x InvalidRecord      a value that the tables do not accept; also a ValueError
  x DamagedRow         a row that was changed outside the store, so that it cannot be read
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class StoreError(Exception):
    """The base class of all errors of the store."""


class StoreUnavailable(StoreError):  # noqa: N818  (reads better where it is caught)
    """The database cannot be reached or used; the message names the database, the cause and the remedy."""

    def __init__(self, url: str, cause: str, way_out: str) -> None:
        self.url = without_password(url)
        super().__init__(f"cannot use the database {self.url}: {cause.rstrip('.')}; {way_out}")


class NoDatabaseFile(StoreUnavailable):
    """An SQLite database file that must exist is missing."""


class SchemaTooNew(StoreUnavailable):
    """The database schema is newer than this release supports."""

    def __init__(self, url: str, revision: str, known: str) -> None:
        super().__init__(
            url,
            f"its schema is {revision!r}, but this release knows schemas up to {known!r}",
            "upgrade largebatch, or give another database",
        )


class NotFound(StoreError):  # noqa: N818
    """Nothing is stored under that name or number."""


class Conflict(StoreError):  # noqa: N818
    """The change contradicts what is already stored, such as finishing a trial twice."""


class LeaseLost(StoreError):  # noqa: N818
    """A worker's lease on a study has ended and another worker may hold it: the worker must stop and write no more."""


class InvalidRecord(StoreError, ValueError):  # noqa: N818
    """A value that the tables do not accept, such as an unknown setting, a wrong type, or a violated column
    constraint.
    """


class DamagedRow(StoreError):  # noqa: N818
    """A stored row that is not a valid record, because it was damaged on disk or edited by hand; bulk reads skip and
    log it.
    """

    def __init__(self, what: str, cause: object) -> None:
        cause = getattr(cause, "cause", cause)
        self.cause = cause
        super().__init__(
            f"{what} is damaged and cannot be read ({cause}); `hpo db check` lists all damage; "
            f"restore a backup with hpo db restore FILE"
        )


def nearest_or_all(name: str, known: Iterable[str], kind: str, most: int | None = None) -> str:
    """Return ``did you mean ...?``, or all known names, as the end of a message about an unknown name.

    At most ``most`` names are listed.
    """
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if not choices:
        return f"there are no {kind} yet"
    left_out = ", ..." if most is not None and len(choices) > most else ""
    return f"the {kind} are {', '.join(choices[:most])}{left_out}"


def without_password(url: str) -> str:
    """Return ``url`` with every password in it replaced by ``***``, even if the URL cannot be parsed."""
    hidden = re.sub(r"(?<=://)([^:/@]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)(password=)[^&]*", r"\1***", hidden)
