"""Waiting for a database that is away, or for room on a disk that is full.

What a sweep has found stays in memory while it waits, so that no finished trial is lost. A write whose connection broke
may have been committed all the same: each caller says how to see that, so that nothing is written twice.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from storage.errors import SchemaTooNew, StoreUnavailable

T = TypeVar("T")

PATIENCE_SECONDS = 300.0
"""How long a sweep waits for its database, unless its caller says otherwise."""

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between two attempts: doubled from the first to the longest."""

HOPELESS = (
    "readonly",
    "read-only",
    "not a database",
    "malformed",
    "was closed",
    "password",
    "does not exist",
)
"""Words in the message of a database that waiting does not bring back."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a file that has no room: on the disk, in a quota, within the limit of its process."""


class Patience:
    """Repeats a call for up to ``seconds`` while the database is away, or a file that it writes finds no room.

    ``told`` hears when it goes and when it comes back; ``stopped`` ends the waiting early, by the error itself.
    """

    def __init__(
        self,
        seconds: float = PATIENCE_SECONDS,
        told: Callable[[str], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._told, self._stopped = seconds, told or _tell_nobody, stopped
        self._sleep, self._clock = sleep, clock

    def __call__(
        self, call: Callable[[], T], committed: Callable[[], T | None] = lambda: None
    ) -> T:
        """What ``call`` returns; raises its error where the database stays away, or the disk full.

        ``committed`` is asked before each repetition: where it returns something, the write was done, and that is
        its result.
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
        self._told(
            f"{error}; results are kept in memory, and it is tried again for up to {self._seconds:g} s"
        )
        while True:
            waited = self._clock() - lost_at
            if waited >= self._seconds or self._stopped():
                self._told(
                    f"gave up after {waited:.0f} s; results since then are not stored, and "
                    "their trials run again when the study goes on"
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
            what = (
                "the database is back" if isinstance(error, StoreUnavailable) else "there is room"
            )
            self._told(f"{what} after {self._clock() - lost_at:.1f} s; nothing was lost")
            return result


def _passes(error: Exception) -> bool:
    """Whether waiting may help."""
    if isinstance(error, StoreUnavailable):
        hopeless = any(word in str(error).lower() for word in HOPELESS)
        return not (hopeless or isinstance(error, SchemaTooNew))
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in FULL


def _tell_nobody(text: str) -> None:
    """The default listener: the error at the end says everything."""
