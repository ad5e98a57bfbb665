"""End a process together with its launcher, however the launcher ends.

A launcher sets ``HPO_LAUNCHER`` to its ``host:pid``. On that host, a process whose parent is the launcher asks Linux
for a signal when its parent dies (``PR_SET_PDEATHSIG``, prctl(2)). It and every other process of the run also check
twice a second whether the launcher still exists.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAUNCHER = "HPO_LAUNCHER"
LOOK_SECONDS = 0.5
LOST = 137
"""The exit status of a process whose launcher is gone, which is the same as for a killed process."""
_PR_SET_PDEATHSIG = 1
_PRCTL: Any = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def name_of_this_process() -> str:
    """Return ``host:pid``, the value of ``HPO_LAUNCHER`` in the environment of launched processes."""
    return f"{socket.gethostname()}:{os.getpid()}"


def end_with_launcher(end: Callable[[], None] | None = None) -> None:
    """Call ``end`` (or exit at once, if None) once the launcher named in the environment is gone.

    Does nothing if no launcher is named, or if it is on another host. ``end`` is called from a separate thread.
    """
    host, _, number = os.environ.get(LAUNCHER, "").rpartition(":")
    if host != socket.gethostname() or not number.isdigit():
        return
    launcher, leave = int(number), end or _leave
    if os.getppid() == launcher:
        ask_for_signal(signal.SIGTERM if end else signal.SIGKILL)
    born = _start_time(launcher)
    if not _lives(launcher, born):
        leave()
        return
    threading.Thread(
        target=_watch, args=(launcher, born, leave), name="lifeline", daemon=True
    ).start()


def ask_for_signal(number: int) -> None:
    """Ask Linux to signal this process when the thread that started it ends; on other systems do nothing."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _watch(launcher: int, born: str, leave: Callable[[], None]) -> None:
    while _lives(launcher, born):
        time.sleep(LOOK_SECONDS)
    leave()


def _lives(pid: int, born: str) -> bool:
    """Return whether the process still exists and its process ID has not been reused."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _start_time(pid) == born != "dead"


def _start_time(pid: int) -> str:
    """Return when a process started, in system ticks; "dead" if the process has ended, "" if the time is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except FileNotFoundError:
        return "" if not Path("/proc/self/stat").exists() else "dead"
    except (OSError, UnicodeError):
        return ""
    return "dead" if fields[0] in "ZX" else fields[19]


def _leave() -> None:
    sys.stderr.write("the launcher of this run is gone, so this process exits\n")
    sys.stderr.flush()
    os._exit(LOST)
