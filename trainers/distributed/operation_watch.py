"""End a worker whose collective operations on a GPU never complete, and name the lost worker.

Waiting for an NCCL operation only makes the GPU wait. The host continues, and blocks when it next reads a number from
the GPU, in a call that no exception can interrupt. Therefore a thread checks whether the awaited operations complete.
If one does not complete within the timeout, the thread finds the lost worker
(:class:`~trainers.distributed.monitor.HeartbeatMonitor`), reports it on standard error as :mod:`trainers.command`
would, and ends the process. NCCL's own watchdog, which does not name the worker, gets a longer timeout.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn, Protocol

from trainers.errors import CommunicationError

LOST_STATUS = 2
"""The exit status of a worker that lost another, as in :func:`trainers.command.trainer_exit_status`."""


class WaitedFor(Protocol):
    """A torch.distributed operation that the worker is waiting for."""

    def is_completed(self) -> bool:
        """Return whether the operation has ended, successfully or not."""

    def wait(self) -> object:
        """Wait for the operation; raise RuntimeError if it failed."""


class OperationWatch:
    """Checks the oldest operation every ``look_seconds``; it counts as lost if it takes more than ``timeout_seconds``.

    ``find`` creates the error that names the lost worker, ``check`` raises if a survivor has already found it, and
    the watching thread calls ``end`` with the error.
    """

    def __init__(
        self,
        timeout_seconds: float,
        look_seconds: float,
        *,
        find: Callable[[BaseException], CommunicationError],
        check: Callable[[], None],
        end: Callable[[CommunicationError], object] | None = None,
    ) -> None:
        self._timeout_seconds, self._look_seconds = timeout_seconds, look_seconds
        self._find, self._check, self._end = find, check, end or end_process
        self._pending: deque[tuple[float, WaitedFor]] = deque()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="operation watch", daemon=True)
        self._thread.start()

    def add(self, operation: WaitedFor) -> None:
        """Watch one more operation, which has just started."""
        with self._lock:
            self._pending.append((time.monotonic(), operation))

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _watch(self) -> None:
        while not self._stop.wait(self._look_seconds):
            try:
                self._look()
            except RuntimeError as error:
                self._end(self._find(error))
                return
            except CommunicationError as error:
                self._end(error)
                return

    def _look(self) -> None:
        with self._lock:
            while self._pending and self._pending[0][1].is_completed():
                self._pending.popleft()[1].wait()
            began = self._pending[0][0] if self._pending else None
        if began is None:
            return
        self._check()
        if time.monotonic() - began > self._timeout_seconds:
            raise RuntimeError(f"an operation has not ended for {self._timeout_seconds:.3g} s")


def end_process(error: CommunicationError) -> NoReturn:
    """Report the error and end the process, even if the main thread is blocked."""
    sys.stderr.write(f"error: {error}\n")
    sys.stderr.flush()
    os._exit(LOST_STATUS)
