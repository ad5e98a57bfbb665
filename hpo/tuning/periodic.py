"""A thread that calls a function periodically while a context is active."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self


class PeriodicThread:
    """Daemon thread that calls :meth:`tick` every ``seconds`` while the context is active.

    The first call comes after ``seconds``, or immediately with ``at_once``. A subclass implements :meth:`tick`, which
    may check ``ended`` to cut a long call short, or set it to stop further calls. An exception in :meth:`tick` ends the
    thread.
    """

    def __init__(self, name: str, seconds: float, *, at_once: bool = False) -> None:
        self.ended = threading.Event()
        self._seconds, self._at_once = seconds, at_once
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stop the calls; return once a call in progress has returned."""
        self.ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def tick(self) -> None:
        """Do the periodic work once, in the thread."""
        raise NotImplementedError

    def _repeat(self) -> None:
        if not self._at_once and self.ended.wait(self._seconds):
            return
        while not self.ended.is_set():
            self.tick()
            self.ended.wait(self._seconds)
