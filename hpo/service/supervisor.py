"""The worker of a server: `hpo worker` as a child process, restarted when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from hpo.service.logs import LOG
from trainers.lifeline import ask_for_signal

STEADY_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 60.0
GRACE_SECONDS = 30.0


class WorkerProcess:
    """Keeps one worker running until :meth:`stop`. If it keeps dying immediately, the delay before restarts grows."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        self.command, self._variables = tuple(command), dict(variables or {})
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="worker supervisor", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process id of the running worker."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()

    def stop(self, seconds: float = GRACE_SECONDS) -> None:
        """Ask the worker to put its study back into the queue and stop; kill it after ``seconds``."""
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            _signal(process, signal.SIGTERM)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                LOG.warning("the worker did not stop within %g s and is killed", seconds)
                _signal(process, signal.SIGKILL)
                process.wait()
        if self._thread.ident is not None:  # it was started
            self._thread.join(5)

    def _keep(self) -> None:
        wait = 1.0
        while not self._stopping.is_set():
            began = time.monotonic()
            # a separate session: Ctrl-C reaches only the server, which then stops its worker cleanly
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                start_new_session=True,
                # stops the worker if the server is killed; a single system call is safe here despite PLW1509
                preexec_fn=lambda: ask_for_signal(signal.SIGTERM),  # noqa: PLW1509
            )
            self.starts += 1
            code = self._process.wait()
            if self._stopping.is_set():
                return
            wait = (
                1.0
                if time.monotonic() - began > STEADY_SECONDS
                else min(2 * wait, LONGEST_WAIT_SECONDS)
            )
            LOG.warning(
                "the worker ended with exit code %s; it is started again in %g s", code, wait
            )
            self._stopping.wait(wait)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)  # including trials that it left running
        else:
            process.send_signal(number)
    except ProcessLookupError:
        pass
