"""Interrupts work in this process that cannot check for itself whether to stop: generating data, a simulation, a fit.

A thread checks a few times a second whether to stop. If so, and if the work has not ended by itself after a short grace
period, it raises :class:`WorkInterrupted` in the working thread. In the main thread this happens by a signal, which
also ends a blocking system call; in other threads, between two Python instructions (``PyThreadState_SetAsyncExc``).
Only code inside :meth:`Interrupter.region` is interrupted.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from hpo.tuning.periodic import PeriodicThread

LOOK_SECONDS = 0.25
GRACE_SECONDS = 1.0
NUMBER = signal.SIGUSR2


class WorkInterrupted(BaseException):
    """Raised inside a region to stop its work."""


class Interrupter(PeriodicThread):
    """Context manager that watches the regions of the thread that created it; another thread calls ``stop``."""

    def __init__(self, stop: Callable[[], bool], grace_seconds: float = GRACE_SECONDS) -> None:
        super().__init__("interrupter", LOOK_SECONDS)
        self._stop, self._grace = stop, grace_seconds
        self._asked_at: float | None = None
        self._worker = threading.get_ident()
        self._main = threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._lock = threading.Lock()
        self._inside = self._raised = False

    def __enter__(self) -> Self:
        if self._main:
            self._before = signal.signal(NUMBER, self._handle)
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._main:
            signal.signal(NUMBER, self._before)

    @contextmanager
    def region(self) -> Iterator[None]:
        """Run work that may be interrupted; a partial result must not leave an invalid state."""
        with self._lock:
            self._inside = True
        try:
            yield
        finally:
            with self._lock:
                self._inside, pending = False, self._raised
                self._raised = False
            if pending:
                self._await()

    def _await(self) -> None:
        """Catch a pending exception before it can be raised outside the region."""
        try:
            for _ in range(100):
                time.sleep(0.001)
        except WorkInterrupted:
            pass

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle the signal in the main thread: check whether the thread is still inside a region."""
        if self._inside:
            raise WorkInterrupted

    def tick(self) -> None:
        """Check whether to stop, and interrupt the work once the grace period is over."""
        if not self._stop():
            self._asked_at = None
            return
        self._asked_at = time.monotonic() if self._asked_at is None else self._asked_at
        if time.monotonic() - self._asked_at < self._grace:
            return
        if self._main:
            if self._inside:
                signal.pthread_kill(self._worker, NUMBER)
            return
        with self._lock:
            if self._inside and not self._raised:
                self._raised = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._worker), ctypes.py_object(WorkInterrupted)
                )
