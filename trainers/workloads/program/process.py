"""Run a program as a process: start it, follow it, ask it to stop, and end it with everything that it has started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainers.errors import WorkloadError
from trainers.private_files import lock_file
from trainers.workloads.program import guard
from trainers.workloads.program.files import ProgramFiles


class ProgramProcess:
    """A program started under its guard (:mod:`trainers.workloads.program.guard`)."""

    def __init__(
        self,
        command: Sequence[str],
        files: ProgramFiles,
        *,
        folder: Path,
        environment: Mapping[str, str],
        pattern: str | None,
        listens: bool,
        ask_seconds: float,
        term_seconds: float,
    ) -> None:
        """Start ``command`` in ``folder``; ``listens`` is true if it checks for the file that asks it to stop."""
        for stale in (files.stop, files.stop.with_suffix(".listens")):
            stale.unlink(missing_ok=True)
        start = files.own / "start.json"
        start.write_text(
            json.dumps(
                {
                    "command": list(command),
                    "folder": str(folder),
                    "log": str(files.log),
                    "report": str(files.report),
                    "pattern": pattern,
                    "stop": str(files.stop),
                    "lock": str(files.lock),
                    "listens": listens,
                    "ask_seconds": ask_seconds,
                    "term_seconds": term_seconds,
                }
            ),
            encoding="utf-8",
        )
        control, self._control = os.pipe()
        self._status, status = os.pipe()
        self._said = b""
        self.ended: dict[str, object] | None = None
        try:
            starter = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(start), str(status)],
                stdin=control,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(status,),
                env=dict(environment),
            )
            starter.wait()
        finally:
            os.close(control)
            os.close(status)

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the program to end; return whether it has ended."""
        while self.ended is None:
            if not select.select([self._status], [], [], seconds)[0]:
                return False
            said = os.read(self._status, 1 << 12)
            self._said += said
            if not said:  # the guard is gone
                told = self._said.partition(b"\n")[0]
                self.ended = json.loads(told) if told else {"error": "its guard was killed"}
                os.close(self._status)
        return True

    @property
    def failure(self) -> str:
        """The reason why the ended program failed; "" if it succeeded or was asked to end."""
        ended = self.ended or {}
        if "error" in ended:
            return str(ended["error"])
        status = int(str(ended.get("exit", 0)))
        if status == 0 or self._control < 0:
            return ""
        return (
            f"it was ended by signal {-status}"
            if status < 0
            else f"it ended with exit code {status}"
        )

    @property
    def exit_code(self) -> int | None:
        """The exit code of a program that ended by itself, 128 + N if signal N ended it; otherwise None."""
        ended = self.ended or {}
        if "exit" not in ended or self._control < 0:
            return None
        status = int(str(ended["exit"]))
        return status if status >= 0 else 128 - status

    def ask_to_stop(self) -> None:
        """Start to end the program: it is first asked to stop, then gets SIGTERM, and finally SIGKILL."""
        if self._control >= 0:
            with contextlib.suppress(OSError):
                os.close(self._control)
            self._control = -1

    def end(self) -> None:
        """End the program, and wait until it and everything that it has started are gone."""
        self.ask_to_stop()
        while not self.wait(60.0):
            pass


def free_port() -> int:
    """Return a port of this machine on which nothing is listening."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def wait_for_earlier_start(files: ProgramFiles, seconds: float) -> None:
    """Wait until an earlier start whose owner was killed has ended; raises :class:`WorkloadError` if it does not."""
    with files.lock.open("a") as lock:
        try:
            lock_file(lock, seconds)
        except OSError as error:
            raise WorkloadError(
                f"another instance of this program is still running in {files.folder}; stop it "
                f"first"
            ) from error
