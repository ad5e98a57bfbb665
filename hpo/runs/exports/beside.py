"""Runs trackers alongside a study, each in a separate process that reads the database and never blocks the run.

The process has a low priority and reads its instructions from standard input. The end of that input means that the run
has ended, so the process also ends if the run is killed. It then reads the database once more, and has
``GRACE_SECONDS`` to write the remaining data. A tracker that hangs, fails, or loses its network connection causes a
single warning in the run; a later run or ``hpo export trackers`` writes what it missed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpo.errors import HpoError
from hpo.runs.exports.tracking import TrackerWarning, make_tracker, track_study
from hpo.runs.repository import open_store, stored_spec
from hpo.study.trackers import TrackerChoice
from storage.errors import StoreError
from storage.records import Study
from trainers.json_text import json_bytes

GRACE_SECONDS = 30.0
"""Seconds for which a tracker may continue to write after its run has ended."""

NICE = 10
"""Niceness of a tracker: on a CPU core that a trial also needs, Linux gives it a tenth of the time (weights of 110 and
1,024).
"""


@contextlib.contextmanager
def trackers_beside(
    chosen: Sequence[TrackerChoice],
    study: Study,
    storage: str,
    folder: Path,
    warn: Callable[[str], None],
    grace_seconds: float | None = None,
) -> Iterator[None]:
    """Write a study to its trackers while the block runs; their files go below ``folder``.

    After the block they have ``grace_seconds`` to finish (default: ``GRACE_SECONDS``).
    """
    beside = [_Beside(each, study, storage, folder, warn) for each in chosen]
    try:
        yield
    finally:
        for each in beside:
            each.tell_end()
        grace = GRACE_SECONDS if grace_seconds is None else grace_seconds
        until = time.monotonic() + grace
        for each in beside:
            each.end(until, grace)


class _Beside:
    """One tracker and its process."""

    def __init__(
        self,
        choice: TrackerChoice,
        study: Study,
        storage: str,
        folder: Path,
        warn: Callable[[str], None],
    ) -> None:
        self._name, self._study, self._warn = choice.name, study, warn
        self._warned = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / f"{study.id}-{choice.name}.log"
        order = {
            "storage": storage,
            "study": study.id,
            "name": choice.name,
            "settings": dict(choice.settings),
            "folder": str(folder),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "hpo.runs.exports.beside"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    process_group=0,  # not a new session: Linux divides CPU time among sessions first
                )
            assert self._process.stdin is not None
            self._process.stdin.write(json_bytes(order) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self._tell(str(error))
        self._listener = threading.Thread(
            target=self._listen, name=f"tracker {self._name}", daemon=True
        )
        self._listener.start()

    def tell_end(self) -> None:
        """Tell the process that the run has ended."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def end(self, until: float, grace: float = GRACE_SECONDS) -> None:
        """Wait ``grace`` seconds, up to the ``time.monotonic`` time ``until``; kill the process if it is not done."""
        if self._process is None:
            return
        status = 0
        try:
            status = self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._tell(f"did not finish within {grace:g} s after the run")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with its child processes
        self._process.wait()
        self._listener.join()
        if status:
            self._tell(f"its process ended with exit code {status}; its log is {self._log}")

    def _listen(self) -> None:
        """Pass on the process's only warning line as soon as it arrives."""
        if self._process is None or self._process.stdout is None:
            return
        with self._process.stdout, contextlib.suppress(OSError):
            for line in self._process.stdout:
                self._tell(line.decode(errors="replace").strip())

    def _tell(self, reason: str) -> None:
        if not self._warned.is_set():
            self._warned.set()
            self._warn(
                f"tracker {self._name}: {reason}; trials continue without it, and `hpo export "
                f"trackers {self._study.name!r}` writes what is missing"
            )


def _follow() -> int:
    """Run the tracker's process; return its exit status."""
    os.nice(NICE)
    complaints = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries goes to the log
    shown = warnings.showwarning

    def complain(message: Warning | str, category: type[Warning], *details: Any) -> None:
        if issubclass(category, TrackerWarning):
            complaints.write(f"{message}\n")
        else:
            shown(message, category, *details)

    warnings.showwarning = complain  # type: ignore[assignment]
    order = json.loads(sys.stdin.buffer.readline())
    over = threading.Event()
    threading.Thread(target=_await_end, args=(over,), daemon=True).start()
    asked = False

    def stopped(seconds: float) -> bool:
        nonlocal asked
        if asked:
            return True
        asked = over.wait(seconds)
        return False  # reads the database once more

    choice = TrackerChoice(order["name"], order["settings"])
    try:
        with open_store(order["storage"], create=False) as store:
            study = store.study_by_id(order["study"])
            with contextlib.closing(
                make_tracker(choice, study, stored_spec(study), Path(order["folder"]))
            ) as tracker:
                track_study(store, study, tracker, follow=True, stopped=stopped)
    except (HpoError, StoreError) as error:
        complaints.write(f"{str(error).splitlines()[0]}\n")
        return 1
    except Exception as error:
        complaints.write(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}\n")
        raise
    return 0


def _await_end(over: threading.Event) -> None:
    # not through sys.stdin: this thread would hold its lock, and an interpreter that ends meanwhile aborts
    while os.read(0, 1024):
        pass
    over.set()
    time.sleep(2 * GRACE_SECONDS)  # a run that still exists would have ended this process by now
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(_follow())
