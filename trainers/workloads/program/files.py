"""The files of one training run of a program, and the end of its log."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.errors import WorkloadError
from trainers.workloads.program.secrets import text_without_secrets

LAST_LINES = 12
LAST_CHARACTERS = 1500
READ_BYTES = 1 << 20
"""The number of bytes read from the end of a log, to which multi-node launchers append their own summaries."""

_ONLY_A_CODE = re.compile(
    r"[EWI]\d{4} \S+ \d+ (\S*/)?torch/distributed/elastic/.*"
    r"(failed \(exitcode: \d+\)|Sending process \d+ closing signal)"
    r"|srun: error: \S+: tasks? [\d,-]+: Exited with exit code \d+$"
    r"|srun: (Terminating StepId|Job step aborted|launch/slurm: )"
    r"|slurmstepd: error: \*\*\* STEP .* CANCELLED"
    r"|Process \S+ exit with status code \d{1,2}\.$"
    r"|Terminating remaining workers after failure of Process "
)
"""Lines of torchrun, srun and horovodrun that say only that a worker ended; lines that name a signal are kept."""
_MPIRUN_BLOCK = re.compile(
    r"Primary job +terminated normally|exited with non-zero status|MPI_ABORT was invoked"
)
_RULE = re.compile(r"([-=])\1{39,}$")


@dataclass(frozen=True)
class ProgramFiles:
    """The files of one training run of a program, in a folder that all its nodes see; some belong to only one node."""

    folder: Path
    node_rank: int = 0

    @property
    def own(self) -> Path:
        """The folder for the files of this node."""
        return self.folder / f"node-{self.node_rank}" if self.node_rank else self.folder

    @property
    def trial(self) -> Path:
        """The JSON file with the program's trial."""
        return self.own / "trial.json"

    @property
    def report(self) -> Path:
        """The file for the program's report, as lines of JSON."""
        return self.own / "report.jsonl"

    @property
    def log(self) -> Path:
        """The file with the program's output."""
        return self.own / "log.txt"

    @property
    def stop(self) -> Path:
        """The file that appears to ask the program to stop."""
        return self.own / "stop"

    @property
    def checkpoint(self) -> Path:
        """The folder of the program's own checkpoints, kept until it has ended."""
        return self.folder / "checkpoint"

    @property
    def output(self) -> Path:
        """The folder for files that the program wants to keep."""
        return self.folder / "output"

    def make(self) -> None:
        """Create the folders."""
        for folder in (self.own, self.checkpoint, self.output):
            folder.mkdir(parents=True, exist_ok=True)

    def set_report_aside(self) -> None:
        """Move earlier reports to ``report.ended.jsonl``, so that the next start in this folder has an empty report."""
        with contextlib.suppress(FileNotFoundError):
            self.report.replace(self.report.with_name("report.ended.jsonl"))

    def set_log_aside(self) -> None:
        """Move the output of earlier starts in this folder, which have not reported any evaluation that counts, to
        ``log.ended.txt``.
        """
        with contextlib.suppress(FileNotFoundError):
            self.log.replace(self.log.with_name("log.ended.txt"))

    @property
    def lock(self) -> Path:
        """The file that a program's guard keeps locked while the guard is running."""
        return self.own / "lock"

    def failure(self, what: str) -> WorkloadError:
        """Return an error that states what went wrong, with the end of the program's output."""
        words = self.last_words()
        said = f"the end of {self.log}:\n{words}" if words else "it printed nothing"
        return WorkloadError(f"the program failed: {what}; {said}")

    def last_words(self) -> str:
        """Return the end of the program's output before its launcher's summary, without secrets; "" if empty."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - READ_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
        lines = list(without_launcher(lines)) or lines
        words = "\n".join(lines[-LAST_LINES:])[-16 * LAST_CHARACTERS :]
        return text_without_secrets(words)[-LAST_CHARACTERS:]


def without_launcher(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a log, except lines in which torchrun, srun, mpirun or horovodrun reports a failed worker."""
    at = 0
    while at < len(lines):
        end = _end_of_frame(lines, at)
        if end == at:
            yield lines[at]
        at = max(end, at + 1)


def _end_of_frame(lines: Sequence[str], at: int) -> int:
    """Return the line after a launcher's summary that starts at line ``at``, or ``at`` if no summary starts there."""
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
