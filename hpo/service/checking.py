"""Checks of submitted studies, in separate processes and within a time limit.

Whatever a study file contains, reading it neither blocks the server's interpreter nor takes longer than the configured
limit: a process that exceeds the limit is killed and replaced. The processes persist, so a check has no startup cost.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpo.errors import HpoError, SpecError, SpecFault
from hpo.service.config import ServerConfig
from hpo.service.logs import LOG
from hpo.service.refusal import RefusedError
from hpo.service.submission import read_submission, submitted_workload_metrics
from search_spaces.plugins import TAKEN

PROCESSES = 2
START_SECONDS = 60.0
NICE = 5


@dataclass(frozen=True)
class CheckedStudy:
    """A checked study file: its text and the content that the server needs.

    ``faults_of_new`` are the faults that only a new study must not have.
    """

    text: str
    name: str
    workload: str
    metric: str
    threshold: float
    higher_is_better: bool
    trials: int | None
    plain: Mapping[str, Any]
    faults_of_new: Sequence[Mapping[str, Any]]

    @classmethod
    def of(
        cls, text: str, config: ServerConfig, metrics: Mapping[str, Mapping[str, bool] | None]
    ) -> CheckedStudy:
        """Read a study from network input, in this process; raise :class:`SpecError` with every error.

        Raises KeyError with the name of the workload if its ``metrics`` are not given.
        """
        spec = read_submission(text, config, metrics.__getitem__)
        faults: Sequence[SpecFault] = ()
        try:
            spec.check_new()
        except SpecError as error:
            faults = error.faults
        return cls(
            spec.text,
            spec.name,
            spec.workload,
            spec.target.metric,
            spec.target.threshold,
            spec.target.higher_is_better,
            spec.budget.asked_trials,
            spec.to_dict(),
            [vars(fault) for fault in faults],
        )

    def check_new(self) -> None:
        """Raise :class:`SpecError` if no new study may be this one; a stored study may be it."""
        if self.faults_of_new:
            raise SpecError([SpecFault(**fault) for fault in self.faults_of_new])


class CheckerPool:
    """A pool of processes, each checking one text at a time; call it from no more threads than it has processes."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._free: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(PROCESSES):
            self._free.put(None)
        self._closed = False
        self._metrics: dict[str, Mapping[str, bool] | None] = {}

    def check(self, text: str) -> CheckedStudy:
        """Return the study in a text received over the network.

        Raises :class:`SpecError` with every error, or RefusedError (422) if the check takes too long.
        """
        answer = self._answer(text)
        if "unknown" in answer:
            # getting the metrics from the workload itself may take longer than a check
            self._metrics[answer["unknown"]] = submitted_workload_metrics(answer["unknown"])
            answer = self._answer(text)
        if "study" in answer:
            return CheckedStudy(text=text, **answer["study"])
        if "faults" in answer:
            raise SpecError([SpecFault(**fault) for fault in answer["faults"]])
        raise RefusedError(422, answer["refused"])

    def _answer(self, text: str) -> dict[str, Any]:
        seconds = self._config.limits.check_seconds
        process = self._free.get()
        try:
            if process is None or not process.alive:
                process = _Process(self._config)
            return process.ask({"text": text, "metrics": self._metrics}, seconds)
        except TimeoutError:
            process = None
            raise RefusedError(
                422,
                f"checking a study file may take at most {seconds:g} s, but this one takes longer",
                way_out="send a smaller file",
            ) from None
        except (OSError, ValueError) as error:
            process = None
            LOG.warning("the check of a submission failed: %s", error)
            raise RefusedError(
                503, "the check of submissions failed", way_out="try again", retry_after=2
            ) from None
        finally:
            self._free.put(process)
            if self._closed:
                self.close()

    def close(self) -> None:
        """End the idle processes; the others end after their current check."""
        self._closed, taken = True, []
        with suppress(queue.Empty):
            while True:
                taken.append(self._free.get_nowait())
        for process in taken:
            if process is not None:
                process.end()
            self._free.put(None)  # for a check that arrives late


class _Process:
    """A ``python -m hpo.service.checking`` process, which answers each line of JSON with a line of JSON."""

    def __init__(self, config: ServerConfig) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hpo.service.checking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="ascii",
            env={**os.environ, TAKEN: ",".join(config.plugins)},
        )
        try:
            self._exchange(config.model_dump_json(exclude={"storage"}), START_SECONDS)
        except BaseException:
            self.end()
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer for a text; end the process and raise TimeoutError if it takes too long."""
        try:
            answer: dict[str, Any] = json.loads(self._exchange(json.dumps(question), seconds))
        except BaseException:
            self.end()
            raise
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _exchange(self, line: str, seconds: float) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        over = threading.Event()

        def end() -> None:
            over.set()
            self._process.kill()

        late = threading.Timer(seconds, end)
        late.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError as error:
            raise TimeoutError from error
        finally:
            late.cancel()
        if not answer:
            if over.is_set():
                raise TimeoutError
            raise OSError("the checking process ended")
        return answer


def main() -> None:
    """Answer requests until the server exits."""
    os.nice(NICE)
    config = ServerConfig.model_validate_json(sys.stdin.readline() or "{}")
    _answer({})
    for line in sys.stdin:
        _answer(_checked(config, **json.loads(line)))


def _checked(
    config: ServerConfig, text: str, metrics: Mapping[str, Mapping[str, bool] | None]
) -> dict[str, Any]:
    try:
        study = CheckedStudy.of(text, config, metrics)
    except KeyError as error:
        return {"unknown": error.args[0]}
    except SpecError as error:
        return {"faults": [vars(fault) for fault in error.faults]}
    except HpoError as error:
        return {"refused": str(error)}
    return {"study": {name: value for name, value in vars(study).items() if name != "text"}}


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
