"""Retries database calls while the database is unavailable or the disk is full.

Results stay in memory between attempts, so that no finished trial is lost. A write whose connection broke may have been
committed nevertheless, so each caller provides a check for that, and nothing is written twice.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from storage.errors import SchemaTooNew, StoreUnavailable

T = TypeVar("T")

RETRY_SECONDS = 300.0
"""How long a sweep retries database calls by default, in seconds."""

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""The first and the longest pause between two attempts, in seconds; the pause doubles each time."""

HOPELESS = (
    "readonly",
    "read-only",
    "not a database",
    "malformed",
    "was closed",
    "password",
    "does not exist",
)
"""Words in the messages of database errors that do not go away by waiting."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error codes of a write that finds no space: on the disk, within the quota, or within the process's
file-size limit.
"""


class StorageRetry:
    """Retries a call for up to ``seconds`` while the database is unavailable or the disk is full.

    ``log`` receives a message when the database becomes unavailable and when it is back. Once ``stopped`` returns true,
    the error is raised immediately.
    """

    def __init__(
        self,
        seconds: float = RETRY_SECONDS,
        log: Callable[[str], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._log, self._stopped = seconds, log or _log_nothing, stopped
        self._sleep, self._clock = sleep, clock

    def __call__(
        self, call: Callable[[], T], committed: Callable[[], T | None] = lambda: None
    ) -> T:
        """Return what ``call`` returns; raise its error if the database stays unavailable or the disk stays full.

        ``committed`` is called before each retry. If it returns a value, the write has already succeeded, and that
        value is the result.
        """
        try:
            return call()
        except Exception as error:
            if not _passes(error):
                raise
            first = error
        return self._wait(call, committed, first)

    def _wait(
        self, call: Callable[[], T], committed: Callable[[], T | None], error: Exception
    ) -> T:
        lost_at, pause = self._clock(), FIRST_PAUSE
        self._log(f"{error}; results are kept in memory, retrying for up to {self._seconds:g} s")
        while True:
            waited = self._clock() - lost_at
            if waited >= self._seconds or self._stopped():
                self._log(
                    f"gave up after {waited:.0f} s; results since then are not stored, and "
                    f"their trials run again when the study continues"
                )
                raise error
            self._sleep(min(pause, max(self._seconds - waited, 0.0)))
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                done = committed()
                result = call() if done is None else done
            except Exception as still:
                if not _passes(still):
                    raise
                error = still
                continue
            back = (
                "the database is available again"
                if isinstance(error, StoreUnavailable)
                else "there is room"
            )
            self._log(f"{back} after {self._clock() - lost_at:.1f} s; nothing was lost")
            return result


def _passes(error: Exception) -> bool:
    """Return whether retrying after this error may help."""
    if isinstance(error, StoreUnavailable):
        hopeless = any(word in str(error).lower() for word in HOPELESS)
        return not (hopeless or isinstance(error, SchemaTooNew))
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in FULL


def _log_nothing(text: str) -> None:
    """Log nothing, which is the default: the error raised at the end contains all the information."""
