"""A program as a process: started, followed, asked to stop, ended with everything that it has started."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.errors import WorkloadError
from trainers.workloads.program import guard
from trainers.workloads.program.secrets import without_secrets

POLL_SECONDS = 0.05
LAST_LINES = 12
LAST_CHARACTERS = 1500
READ_BYTES = 1 << 20
"""How much of the end of a log is looked at: the frames that launchers of many nodes put behind the program's words."""

_ONLY_A_CODE = re.compile(
    r"[EWI]\d{4} \S+ \d+ (\S*/)?torch/distributed/elastic/.*"
    r"(failed \(exitcode: \d+\)|Sending process \d+ closing signal)"
    r"|srun: error: \S+: tasks? [\d,-]+: Exited with exit code \d+$"
    r"|srun: (Terminating StepId|Job step aborted|launch/slurm: )"
    r"|slurmstepd: error: \*\*\* STEP .* CANCELLED"
    r"|Process \S+ exit with status code \d{1,2}\.$"
    r"|Terminating remaining workers after failure of Process "
)
"""Lines of torchrun, srun and horovodrun that say no more than that a worker ended; one that names a signal is kept."""
_MPIRUN_BLOCK = re.compile(
    r"Primary job +terminated normally|exited with non-zero status|MPI_ABORT was invoked"
)
_RULE = re.compile(r"([-=])\1{39,}$")


@dataclass(frozen=True)
class ProgramFiles:
    """The files of one training of a program, in a folder that all its nodes see; some are of one node alone."""

    folder: Path
    node_rank: int = 0

    @property
    def own(self) -> Path:
        """The folder of this node."""
        return self.folder / f"node-{self.node_rank}" if self.node_rank else self.folder

    @property
    def trial(self) -> Path:
        """What the program is told, as JSON."""
        return self.own / "trial.json"

    @property
    def report(self) -> Path:
        """What the program reports, lines of JSON."""
        return self.own / "report.jsonl"

    @property
    def log(self) -> Path:
        """What the program printed."""
        return self.own / "log.txt"

    @property
    def stop(self) -> Path:
        """Appears where the program is asked to stop."""
        return self.own / "stop"

    @property
    def checkpoint(self) -> Path:
        """The program's own checkpoints, until it has ended."""
        return self.folder / "checkpoint"

    @property
    def output(self) -> Path:
        """What the program wants to keep."""
        return self.folder / "output"

    def make(self) -> None:
        """Make the folders."""
        for folder in (self.own, self.checkpoint, self.output):
            folder.mkdir(parents=True, exist_ok=True)

    def set_report_aside(self) -> None:
        """Let a later start in this folder begin anew: what was reported is kept as ``report.ended.jsonl``."""
        with contextlib.suppress(FileNotFoundError):
            self.report.replace(self._ended_report)

    def set_log_aside(self) -> None:
        """Keep what an earlier training here printed, whose report was set aside, as ``log.ended.txt``."""
        if self._ended_report.exists() and not self.report.exists():
            with contextlib.suppress(FileNotFoundError):
                self.log.replace(self.log.with_name("log.ended.txt"))

    @property
    def _ended_report(self) -> Path:
        return self.report.with_name("report.ended.jsonl")

    @property
    def lock(self) -> Path:
        """Held by the guard of a program as long as it is there."""
        return self.own / "lock"

    def wait_until_free(self, seconds: float) -> None:
        """Wait until an earlier start, whose owner was killed, has ended; :class:`WorkloadError` where it does not."""
        deadline = time.monotonic() + seconds
        with self.lock.open("a") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise WorkloadError(
                            f"another start of this program is still running in {self.folder}; end it first"
                        ) from error
                    time.sleep(POLL_SECONDS)

    def failure(self, what: str) -> WorkloadError:
        """An error that says what went wrong, with the last words of the program."""
        words = self.last_words()
        said = f"the end of {self.log}:\n{words}" if words else "it printed nothing"
        return WorkloadError(f"the program failed: {what}; {said}")

    def last_words(self) -> str:
        """The end of what the program printed before its launcher's frame, without secrets; "" where it was nothing."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - READ_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
        lines = list(_without_launcher(lines)) or lines
        words = "\n".join(lines[-LAST_LINES:])[-16 * LAST_CHARACTERS :]
        return without_secrets(words)[-LAST_CHARACTERS:]


class ProgramProcess:
    """One start of a program under its guard (:mod:`trainers.workloads.program.guard`)."""

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
        """Start ``command`` in ``folder``; ``listens`` says that it looks for the file that asks it to stop."""
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
        """Whether the program has ended, after at most so many seconds."""
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
        """How a program that has ended failed; "" for one that ended well, or was asked to."""
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

    def ask_to_stop(self) -> None:
        """Begin to end it: it is asked, then gets SIGTERM, then SIGKILL."""
        if self._control >= 0:
            with contextlib.suppress(OSError):
                os.close(self._control)
            self._control = -1

    def end(self) -> None:
        """End it, and wait until it and everything that it has started is gone."""
        self.ask_to_stop()
        while not self.wait(60.0):
            pass


def _without_launcher(lines: Sequence[str]) -> Iterator[str]:
    """The lines of a log but for those by which torchrun, srun, mpirun and horovodrun say that a worker has failed."""
    at = 0
    while at < len(lines):
        end = _end_of_frame(lines, at)
        if end == at:
            yield lines[at]
        at = max(end, at + 1)


def _end_of_frame(lines: Sequence[str], at: int) -> int:
    """Where a launcher's frame that begins at a line ends; ``at`` where none begins there."""
    line, rest = lines[at], range(at + 1, len(lines))
    if _ONLY_A_CODE.match(line):
        return at + 1
    if line.startswith("Traceback (most recent call last)"):
        error = next((n for n in rest if not lines[n].startswith(" ")), at)
        if lines[error].startswith("torch.distributed.elastic.") and "ChildFailed" in lines[error]:
            rules = [
                n for n in range(error, len(lines)) if _RULE.match(lines[n]) and "=" in lines[n]
            ]
            return rules[1] + 1 if len(rules) > 1 else error + 1
        if lines[error].startswith("RuntimeError: Horovod detected that one or more processes"):
            named = ("Process name:", "Exit code:")
            return next(
                (n for n in range(error + 1, len(lines)) if not lines[n].startswith(named)),
                len(lines),
            )
    if _RULE.match(line):
        end = next((n for n in rest if lines[n] == line), at)
        if _MPIRUN_BLOCK.search(" ".join(lines[at:end])):
            return end + 1
    return at


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
