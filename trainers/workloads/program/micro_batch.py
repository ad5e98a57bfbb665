"""Find the micro batch with which a program fits in memory: it is halved when the program runs out of memory, and kept
for the rung.

The result is kept in a file beside the folders of the trials, one for each global batch size and number of workers, so
that every later trial of the rung starts with this micro batch, even after a resume or on other workers that see the
folder. The result applies only to the program for which it was found, and is ignored if the command changes. A trial
also reports it at its end (:attr:`trainers.report.TrainingOutcome.micro_batch_size`), for plans made elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers.errors import WorkloadError
from trainers.job import TrainingJob
from trainers.json_text import json_text
from trainers.workloads.program.files import ProgramFiles
from trainers.workloads.program.options import OutOfMemoryOptions

if TYPE_CHECKING:
    from trainers.workloads.program.process import ProgramProcess

SEARCH_SECONDS = 10.0
"""The maximum time in seconds for the search for a pattern at the end of a log."""
SEARCHED_BYTES = 1 << 20
_SEARCH = (
    "import re, sys; found = re.compile(sys.argv[1]).search; "
    "sys.exit(3 if any(found(line) for line in sys.stdin) else 0)"
)
_FOUND = 3


@dataclass(frozen=True)
class KeptMicroBatch:
    """The file that holds the micro batch of one rung, and the program to which it applies."""

    file: Path
    program: dict[str, Any]

    @classmethod
    def of(cls, job: TrainingJob, folder: Path, workers: int) -> KeptMicroBatch:
        """Return the file for a job's rung, whose trial folders lie beside ``folder``."""
        name = f"micro_batch-{job.global_batch_size}-{workers}.json"
        return cls(folder.absolute().parent / name, json.loads(json_text(job.data)))

    def read(self) -> int | None:
        """Return the samples per forward pass of one worker; None if unknown, or found for another program."""
        try:
            kept = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(kept, dict) or kept.get("program") != self.program:
            return None
        size = kept.get("micro_batch_size")
        return size if isinstance(size, int) and size >= 1 else None

    def write(self, micro_batch_size: int) -> None:
        """Store a size if it is smaller than the stored one; a reader always sees a complete file."""
        before = self.read()
        if before is not None and before <= micro_batch_size:
            return
        text = json_text({"micro_batch_size": micro_batch_size, "program": self.program}, indent=2)
        with contextlib.suppress(
            OSError
        ):  # on a full disk, the next trial has to search again, but this one continues
            with tempfile.NamedTemporaryFile(
                "w", dir=self.file.parent, prefix=self.file.name, delete=False, encoding="utf-8"
            ) as new:
                new.write(text + "\n")
            Path(new.name).replace(self.file)


def ran_out_of_memory(
    process: ProgramProcess, files: ProgramFiles, signs: OutOfMemoryOptions | None
) -> bool:
    """Return whether a failed program reported that it ran out of memory."""
    if signs is None or not process.failure:
        return False
    if signs.exit_code is not None and process.exit_code == signs.exit_code:
        return True
    return signs.pattern is not None and _is_in_log(signs.pattern, files)


def _is_in_log(pattern: str, files: ProgramFiles) -> bool:
    """Search in a separate process, which can be killed, because a match may take forever."""
    try:
        with files.log.open("rb") as log:
            log.seek(max(0, files.log.stat().st_size - SEARCHED_BYTES))
            text = log.read().decode("utf-8", "replace")
        searched = subprocess.run(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _SEARCH, pattern],
            input=text.encode(),
            timeout=SEARCH_SECONDS,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return False
    except subprocess.TimeoutExpired as error:
        raise WorkloadError(
            f"the search for program.out_of_memory.pattern in {files.log} took more than "
            f"{SEARCH_SECONDS:g} s, as can happen with nested repetitions; write a pattern "
            f"without them"
        ) from error
    return searched.returncode == _FOUND
