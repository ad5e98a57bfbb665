"""Trackers beside a run: each in a process of its own, which reads the database and is never waited for.

The process has the lowest priority and gets its orders by its standard input; the end of that input tells it that the
run is over, so that it ends too where the run is killed. It looks once more then, and has ``GRACE_SECONDS`` for what is
left. Whatever becomes of it, one that hangs, fails, or loses its network is one warning of the run, and what it did not
write a later run or ``hpo export trackers`` writes.
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
from hpo.runs.exports.tracking import TrackerWarning, make_tracker, track
from hpo.runs.repository import open_store, stored_spec
from hpo.study.trackers import TrackerChoice
from storage.errors import StoreError
from storage.records import Study
from trainers.json_text import json_bytes

GRACE_SECONDS = 30.0
"""How long a tracker may write on when its run is over."""


@contextlib.contextmanager
def trackers_beside(
    chosen: Sequence[TrackerChoice],
    study: Study,
    storage: str,
    folder: Path,
    warn: Callable[[str], None],
    grace_seconds: float | None = None,
) -> Iterator[None]:
    """Follow a study with its trackers while the block runs; their files go below ``folder``.

    ``grace_seconds`` are what they have when it is over, ``GRACE_SECONDS`` if None.
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
    """One tracker's process."""

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
                    start_new_session=True,
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
        """Tell it that the run is over."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def end(self, until: float, grace: float = GRACE_SECONDS) -> None:
        """Wait for it until then (``time.monotonic``), which was ``grace`` seconds; end it where it is not done."""
        if self._process is None:
            return
        status = 0
        try:
            status = self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._tell(f"did not finish within {grace:g} s after the run")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with what it started
        self._process.wait()
        self._listener.join()
        if status:
            self._tell(f"its process ended with exit code {status}; its log is {self._log}")

    def _listen(self) -> None:
        """Its one line of complaint, as soon as it is there."""
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
    """The body of the process; returns the exit status."""
    os.nice(19)
    complaints = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints goes to the log
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
        return False  # a last look

    choice = TrackerChoice(order["name"], order["settings"])
    try:
        with open_store(order["storage"], create=False) as store:
            study = store.study_by_id(order["study"])
            with contextlib.closing(
                make_tracker(choice, study, stored_spec(study), Path(order["folder"]))
            ) as tracker:
                track(store, study, tracker, follow=True, stopped=stopped)
    except (HpoError, StoreError) as error:
        complaints.write(f"{str(error).splitlines()[0]}\n")
        return 1
    except Exception as error:
        complaints.write(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}\n")
        raise
    return 0


def _await_end(over: threading.Event) -> None:
    sys.stdin.buffer.read()
    over.set()
    time.sleep(2 * GRACE_SECONDS)  # the run was killed, as it would have ended this process before
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(_follow())
