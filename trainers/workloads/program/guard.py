"""Run one command, and end it and all its descendants when its owner is gone.

    python -I -S guard.py START.json STATUS_FD

The guard is detached from the process that started it, its owner, except for its standard input. When the standard
input is closed, which also happens when the owner is killed, the guard ends the command. The command is first asked to
stop by a file that appears, if it supports this, and then gets SIGTERM and finally SIGKILL. On Linux, the signals also
go to all of the command's descendants, in any session, which become children of the guard when their parents die; on
other systems, they go to the command's process group. If the guard itself is killed, Linux kills the command.

The command's output goes to a log of bounded size; a line that matches a pattern becomes a report. A pattern may
backtrack for years, and a match cannot be interrupted within its process. The lines are therefore matched in a separate
process, which the kernel ends if one line takes longer than ``MATCH_SECONDS``. The command's exit status is written to
``STATUS_FD`` as one line of JSON. The guard uses only the standard library, so it starts in about 30 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOG_BYTES = 8 << 20
"""The size at which a log is moved aside, replacing the previous log, so that at most twice this size is kept."""
ORPHAN_SECONDS = 2.0
"""How many seconds a command's remaining processes may continue to run after the command has ended."""
LAST_OUTPUT_SECONDS = 1.0
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)
MATCH_SECONDS = 1.0
"""The CPU time in seconds that a pattern may take for one line of the output."""
LAST_MATCHES_SECONDS = 10.0
"""The maximum time in seconds for matching the last lines after a command has ended."""
MOST_LINE_BYTES = 1 << 13
"""The number of bytes matched at the end of a line; a pattern may take time quadratic in this number."""
_TOO_SLOW = (
    f"report.pattern took more than {MATCH_SECONDS:g} s of CPU time on one line of output, as "
    f"can happen with nested repetitions, such as (a+)+, or with several .*; start each "
    f"part of it with literal text"
)


class CommandLog:
    """Writes the command's output to a file; if the disk is full, only the log is lost, and the run continues."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, path.stat().st_size if path.exists() else 0

    def write(self, output: bytes) -> None:
        """Append output, and start a new file when the current file is full."""
        with contextlib.suppress(OSError):
            if self._size > LOG_BYTES:
                self._path.replace(self._path.with_suffix(".old.txt"))
                self._size = 0
            with self._path.open("ab") as file:
                file.write(output)
            self._size += len(output)


class LineReader:
    """Turns lines of the output that match a pattern with named groups into reports."""

    def __init__(self, pattern: str, report: Path) -> None:
        self._pattern, self._report, self._rest = re.compile(pattern), report, b""

    def take(self, output: bytes) -> None:
        """Match the complete lines; a carriage return also ends a line, as in progress bars."""
        *lines, self._rest = re.split(rb"[\r\n]", self._rest[-MOST_LINE_BYTES:] + output)
        for line in lines:
            self._look(line)

    def end(self) -> None:
        """Match the last line."""
        self._look(self._rest)

    def _look(self, line: bytes) -> None:
        text = line[-MOST_LINE_BYTES:].decode("utf-8", "replace")
        signal.setitimer(signal.ITIMER_PROF, MATCH_SECONDS)
        found = self._pattern.search(text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if found is None:
            return
        said = {name: text for name, text in found.groupdict().items() if text is not None}
        with contextlib.suppress(OSError), self._report.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**said, "time": time.time()}) + "\n")


class LineMatcher:
    """A :class:`LineReader` in a separate process, which SIGPROF ends if a line takes too much CPU time.

    A Python signal handler would wait for the end of the match; the kernel's default action does not. The process is
    started before anything else is opened.
    """

    def __init__(self, pattern: str, report: Path, closes: int) -> None:
        """Start the process, which closes the descriptor ``closes`` because only the guard may hold it."""
        self._ours, theirs = socket.socketpair()
        self._waiting, self.ended, self.failed, self._last = b"", False, False, False
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self._ours.close()
                os.close(closes)
                os.dup2(
                    theirs.fileno(), 0
                )  # this process must not receive the guard's stop requests
                _read_lines(theirs, LineReader(pattern, report))
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        self._ours.setblocking(False)

    @property
    def busy(self) -> bool:
        """Whether there is output that the process has not yet accepted; if so, the command waits."""
        return bool(self._waiting)

    def give(self, output: bytes) -> None:
        """Queue output to be matched."""
        self._waiting += output
        self.work()

    def work(self) -> None:
        """Pass on as much output as the process accepts, and check whether it has ended."""
        if self.ended:
            return
        try:
            while self._waiting:
                self._waiting = self._waiting[self._ours.send(self._waiting) :]
            if self._last:
                self._ours.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._waiting = b""
        try:
            told = self._ours.recv(1)
        except BlockingIOError:
            return
        except OSError:
            told = b""
        self.ended, self.failed, self._waiting = True, not told, b""

    def fileno(self) -> int:
        """Return the descriptor, which is ready when the process has ended or accepts more output."""
        return self._ours.fileno()

    def finish(self) -> None:
        """Let the process match the last lines, and end it after at most ``LAST_MATCHES_SECONDS``."""
        self._last = True
        deadline = time.monotonic() + LAST_MATCHES_SECONDS
        while not self.ended and time.monotonic() < deadline:
            self.work()
            if not self.ended:
                select.select([self], [self] if self._waiting else [], [], 0.5)
        self.kill()

    def kill(self) -> None:
        """End the process; later calls have no effect."""
        if self.pid:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = 0


def _read_lines(output: socket.socket, reader: LineReader) -> None:
    prctl(_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    while chunk := output.recv(1 << 16):
        reader.take(chunk)
    reader.end()
    output.send(b".")


def main() -> None:
    """Detach from the caller, run the command, and report how it ended."""
    start, status = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), int(sys.argv[2])
    if os.fork():
        os._exit(0)
    os.setsid()
    prctl(_SUBREAPER, 1)
    ended = run(start, status)
    with contextlib.suppress(OSError):  # the owner may be gone
        os.write(status, json.dumps(ended).encode() + b"\n")


def prctl(option: int, value: int) -> None:
    """Set an option of this process on Linux; do nothing on other systems."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def run(start: dict[str, Any], status: int) -> dict[str, Any]:
    """Run the command to its end; return ``{"exit": status}``, negative for a signal, or ``{"error": reason}``."""
    pattern = start["pattern"]
    matcher = LineMatcher(pattern, Path(start["report"]), status) if pattern else None
    try:
        return _run(start, matcher)
    finally:
        if matcher is not None:
            matcher.kill()


def _run(start: dict[str, Any], matcher: LineMatcher | None) -> dict[str, Any]:
    lock = os.open(start["lock"], os.O_RDWR | os.O_CREAT, 0o600)  # held until this process ends
    fcntl.flock(lock, fcntl.LOCK_EX)
    wakeup = _child_signals()
    try:
        process = subprocess.Popen(
            start["command"],
            cwd=start["folder"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: prctl(_DEATH_SIGNAL, signal.SIGKILL),  # noqa: PLW1509 - one thread
        )
    except OSError as error:
        return {"error": f"{start['command'][0]!r} cannot be started: {error.strerror or error}"}
    assert process.stdout is not None
    output = process.stdout.fileno()
    os.set_blocking(output, False)
    os.set_blocking(0, False)
    try:
        _watch(process, output, wakeup, start, matcher)
    finally:
        _signal(_others(matcher), signal.SIGKILL)
    if matcher is not None and matcher.failed:
        return {"error": _TOO_SLOW}
    return {"exit": process.returncode}


def _others(matcher: LineMatcher | None) -> list[int]:
    """Return the command's processes: all descendants of this process except its own matcher."""
    return [each for each in descendants() if matcher is None or each != matcher.pid]


def _watch(
    process: subprocess.Popen[bytes],
    output: int,
    wakeup: int,
    start: dict[str, Any],
    matcher: LineMatcher | None,
) -> None:
    log = CommandLog(Path(start["log"]))
    ending = _ending(process, start, matcher)
    stopping, open_output, next_at = False, True, 0.0
    died_at: float | None = None
    while True:
        matching = matcher is not None and not matcher.ended
        busy = matcher is not None and matcher.busy
        watched: list[Any] = [wakeup, *([] if stopping else [0])]
        watched += [output] if open_output and not busy else []
        watched += [matcher] if matching else []
        wait = max(0.0, next_at - time.monotonic()) if stopping else None
        if died_at is not None:
            wait = min(0.05, wait) if wait is not None else 0.05
        written: list[Any] = [matcher] if busy else []
        ready, _, _ = select.select(watched, written, [], wait)
        if wakeup in ready:
            _drain(wakeup)
        if output in ready:
            open_output = _take(output, log, matcher)
        if matcher is not None and matching:
            matcher.work()
            stopping = stopping or matcher.failed
        stopping = stopping or (0 in ready and not _drain(0))
        if died_at is None and process.poll() is not None:
            died_at = time.monotonic()
        _reap(process)
        if died_at is not None:
            others, since = _others(matcher), time.monotonic() - died_at
            longest = LAST_MATCHES_SECONDS if busy else LAST_OUTPUT_SECONDS
            if not others and (not open_output or since > longest):
                break
            if others and since > ORPHAN_SECONDS:
                _signal(others, signal.SIGKILL)
            elif others and stopping:
                _signal(others, signal.SIGTERM)
        if stopping and died_at is None and time.monotonic() >= next_at:
            next_at = time.monotonic() + next(ending)
    if matcher is not None:
        matcher.finish()


def _ending(
    process: subprocess.Popen[bytes], start: dict[str, Any], matcher: LineMatcher | None
) -> Iterator[float]:
    """Take the steps that end a command, one at a time, and yield the seconds to wait before the next step."""
    stop = Path(start["stop"])
    listens = start["listens"] or stop.with_suffix(".listens").exists()
    with contextlib.suppress(OSError):
        stop.touch()
    if listens:
        yield start["ask_seconds"]
    _signal(_others(matcher) or [process.pid], signal.SIGTERM)
    yield start["term_seconds"]
    while True:
        _signal(_others(matcher) or [process.pid], signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        yield 0.5


def descendants() -> list[int]:
    """Return the running descendants of this process, from /proc; without /proc, the list is empty."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in ("Z", "X"):
                parents[int(entry.name)] = int(parent)
    found, level = [], {os.getpid()}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


def _signal(processes: list[int], number: signal.Signals) -> None:
    for each in processes:
        with contextlib.suppress(OSError):
            os.kill(each, number)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Reap descendants that became children of this process."""
    if process.returncode is None:
        return  # waiting for any child would consume the command's own status
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _take(output: int, log: CommandLog, matcher: LineMatcher | None) -> bool:
    """Read the available output; return False at the end of the output."""
    try:
        chunk = os.read(output, 1 << 16)
    except BlockingIOError:
        return True
    if chunk:
        log.write(chunk)
        if matcher is not None:
            matcher.give(chunk)
    return bool(chunk)


def _drain(pipe: int) -> bool:
    """Read the content of a pipe; return False if the pipe is closed or the content is a request to stop."""
    try:
        return bool(os.read(pipe, 1 << 10))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _child_signals() -> int:
    """Return a pipe that gets a byte whenever a child ends."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


if __name__ == "__main__":
    main()
