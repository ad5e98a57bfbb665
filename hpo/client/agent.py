"""The trial agent: asks a study for a trial, trains it, reports the results, and repeats until the study has ended.

Any number of agents may work on one study, on any machine that reaches its server; each may fail at any moment.
Agents that share a folder resume from each other's checkpoints.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpo.ask_and_tell.trial import AskedTrial, AskTell
from hpo.errors import HpoError, TrialLostError
from hpo.study.jobs import agent_folder
from hpo.tuning.trial_run import TrialRun, WorkerPlace
from trainers.report import ConvergencePoint, TrainingOutcome
from trainers.workloads.program.files import ProgramFiles

LOG = logging.getLogger("hpo.agent")

CHECKPOINT_SECONDS = 10.0
"""Seconds of training between two checkpoints: at most this much training is lost when an agent fails."""


@dataclass(frozen=True)
class AgentOptions:
    """Options of an agent.

    ``folder`` holds the checkpoints and programs' files of its trials. ``trials`` is the maximum number of trials that
    it trains. After ``stop_after`` seconds, the agent takes no more trials and gives the current one back.
    ``workers_per_node`` is the number of workers that a program starts, and ``threads`` is the number of CPU threads of
    a training run.
    """

    folder: Path
    workers_per_node: int = 1
    threads: int = 1
    trials: int | None = None
    stop_after: float | None = None


@dataclass
class AgentReport:
    """Summary of an agent's work: trials by outcome, seconds of training, and seconds since the agent started.

    ``waited`` counts the seconds during which there was nothing to train. ``overheads`` holds, for each trial, the
    seconds spent neither training nor waiting, but on requests to the study. ``cpu_trained`` is the CPU time in seconds
    of training in this process; ``cpu_overheads`` holds, for each trial, the CPU time of everything else.
    """

    ended: dict[str, int] = field(default_factory=dict)
    trained: float = 0.0
    cpu_trained: float = 0.0
    waited: float = 0.0
    seconds: float = 0.0
    overheads: list[float] = field(default_factory=list)
    cpu_overheads: list[float] = field(default_factory=list)

    @property
    def trials(self) -> int:
        """Number of trials that the agent has ended."""
        return sum(self.ended.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {"trials": self.trials, **dataclasses.asdict(self)}


class TrialAgent:
    """Trains the trials of one study until the study ends, :meth:`stop` is called, or an option's limit is reached."""

    def __init__(self, study: AskTell, name: str, options: AgentOptions) -> None:
        self._study, self._name, self._options = study, name, options
        self._stopping = threading.Event()
        self._run = TrialRun(
            WorkerPlace(workers_per_node=options.workers_per_node), threads=options.threads
        )
        self._folder = agent_folder(options.folder, name)

    def stop(self) -> None:
        """Give the current trial back and stop. Returns immediately; safe in a signal handler."""
        self._stopping.set()

    def run(self) -> AgentReport:
        """Train trials, and return a report. Errors of the server are raised only if an outage lasts too long."""
        report, began = AgentReport(), time.monotonic()
        until = None if self._options.stop_after is None else began + self._options.stop_after

        def over() -> bool:
            late = until is not None and time.monotonic() >= until
            return self._stopping.is_set() or late

        while not over() and report.trials != self._options.trials:
            asked_at, before = time.monotonic(), report.trained + report.waited
            cpu_at, cpu_before = time.process_time(), report.cpu_trained
            trial = self._ask(over, report)
            if trial is None:
                break
            try:
                state = self._train(trial, over, report)
            except TrialLostError as error:
                LOG.warning("%s", error)
                continue
            LOG.info("trial %d of %s: %s", trial.number, self._name, state)
            if state != "queued":
                report.ended[state] = report.ended.get(state, 0) + 1
                spent = report.trained + report.waited - before
                report.overheads.append(time.monotonic() - asked_at - spent)
                cpu_spent = report.cpu_trained - cpu_before
                report.cpu_overheads.append(time.process_time() - cpu_at - cpu_spent)
        report.seconds = time.monotonic() - began
        return report

    def _ask(self, over: Callable[[], bool], report: AgentReport) -> AskedTrial | None:
        while True:
            trial = self._study.ask(wait=False)
            if trial is not None or self._study.ended or over():
                return trial
            waiting = time.monotonic()
            self._stopping.wait(self._study.wait_seconds)
            report.waited += time.monotonic() - waiting

    def _train(self, trial: AskedTrial, over: Callable[[], bool], report: AgentReport) -> str:
        """Train one trial; return how it ended, or ``queued`` if it was given back."""
        checkpoint = self._folder / f"{trial.number}.pt"
        self._folder.mkdir(parents=True, exist_ok=True)
        folder = self._folder / str(trial.number)
        self._move_earlier_files(folder)
        config = {
            "job": trial.job.to_dict(),
            "checkpoint": str(checkpoint),
            "checkpoint_seconds": CHECKPOINT_SECONDS,
            "folder": str(folder),
        }
        try:
            with _timed(report):
                self._run.begin(config)
            while True:
                with _timed(report):
                    result = self._run.advance()
                points = [ConvergencePoint(**point) for point in result.get("points", ())]
                if result.get("done"):
                    trial.report_last(*points)
                    outcome = result.get("outcome")
                    state = trial.tell(
                        None if outcome else "failed",
                        reason=result.get("reason", ""),
                        outcome=TrainingOutcome.from_dict(outcome) if outcome else None,
                    )
                    break
                trial.report_point(*points)
                if trial.stopped:
                    state = trial.tell()
                    break
                if over():
                    self._run.save()
                    self._run.stop()
                    trial.release()
                    return trial.state
        except HpoError:
            self._run.stop()
            trial.abandon()  # another agent has it, or the server is down; it is reassigned when the lease expires
            raise
        except BaseException:
            self._run.stop()
            trial.release()
            raise
        self._run.close()
        if state != "queued":
            checkpoint.unlink(missing_ok=True)
            # a trial with that number in a later study of the same name starts fresh
            ProgramFiles(folder).set_report_aside()
        return state

    def _move_earlier_files(self, folder: Path) -> None:
        """Move a program's files to a trial's ``folder`` from where agents of earlier versions kept them.

        If the study's name is a number, files there are those of the study with that id.
        """
        earlier = self._options.folder / "trials" / self._folder.name / folder.name
        if not self._name.isdecimal() and earlier.is_dir() and not folder.exists():
            earlier.rename(folder)


class _timed:  # noqa: N801  (reads as a statement)
    """Adds the duration of a ``with`` block to the training time."""

    def __init__(self, report: AgentReport) -> None:
        self._report = report

    def __enter__(self) -> None:
        self._began, self._cpu_began = time.monotonic(), time.thread_time()

    def __exit__(self, *error: object) -> None:
        self._report.trained += time.monotonic() - self._began
        self._report.cpu_trained += time.thread_time() - self._cpu_began
