"""One trial, evaluation by evaluation, either in a Ray actor or in the sweep's own process.

In addition to the points in the database, the trial writes its own checkpoint, from which it resumes after a crash.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.distributed import Communicator
    from trainers.report import ConvergencePoint
    from trainers.workloads.program.training import ProgramPlace
    from trainers.workloads.training_run import AnyTraining


@dataclass(frozen=True)
class WorkerPlace:
    """The rank of a process among a trial's workers: ``rank`` of ``size``, on node ``node_rank`` of ``nodes``.

    The workers rendezvous at the first worker's ``master_address`` and ``master_port`` (0: any free port). A program is
    one process per node here, and starts its ``workers_per_node`` workers itself.
    """

    rank: int = 0
    size: int = 1
    node_rank: int = 0
    workers_per_node: int = 1
    nodes: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = 0


class TrialRun:
    """Trains ``config["job"]``; a result holds ``points``, ``state`` and, at the end, ``outcome`` and ``done``.

    ``points`` holds the latest evaluation and, after a resume, those before it. The previous trial's workload stays
    loaded, with its data in memory, if the next trial trains the same workload.
    """

    def __init__(
        self,
        place: WorkerPlace | None = None,
        communicator: Communicator | None = None,
        threads: int = 1,
        workloads: dict[str, Any] | None = None,
    ) -> None:
        """Create a trial runner; ``communicator`` connects the workers of the trial, and is None for a single process.

        ``workloads`` holds the workloads that other trials of this process have loaded, by workload and data.
        """
        self._place, self._communicator, self._threads = (
            place or WorkerPlace(),
            communicator,
            threads,
        )
        self._workloads = {} if workloads is None else workloads
        self._training: AnyTraining | None = None
        self._failure = ""

    def begin(self, config: dict[str, Any]) -> None:
        """Build the training or resume its checkpoint. A failure here becomes the trial's result, not a crash."""
        self._failure = ""
        self.close()
        try:
            self._begin(config)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    @property
    def training(self) -> AnyTraining | None:
        """The current training; None if there is none or its setup failed."""
        return None if self._failure else self._training

    def close(self) -> None:
        """Close the training, whatever its state."""
        if self._training is not None:
            self._training.close()
            self._training = None

    def stop(self) -> None:
        """Do the same as :meth:`close`; there are no worker processes to stop."""
        self.close()

    def advance(self) -> dict[str, Any]:
        """Train until the next evaluation."""
        if self._failure or self._training is None:
            return {"state": "failed", "reason": self._failure, "done": True}
        try:
            return self._advance(self._training)
        except Exception as error:
            return {"state": "failed", "reason": f"{type(error).__name__}: {error}", "done": True}

    def _begin(self, config: dict[str, Any]) -> None:
        from trainers.begin import begin_training
        from trainers.job import TrainingJob
        from trainers.numerics.threads import use_threads
        from trainers.workloads import load_workload

        job = TrainingJob.from_dict(config["job"])
        key = f"{job.workload} {sorted(job.data.items())} {job.search_path}"
        if key not in self._workloads:
            self._workloads.clear()
            self._workloads[key] = load_workload(job.workload, job.data, job.search_path)

        def build() -> AnyTraining:
            return begin_training(
                job,
                self._communicator,
                workload=self._workloads[key],
                place=self._program_place(Path(config["folder"])),
            )

        self._training = build()
        use_threads(self._threads)
        self._reported = [dataclasses.asdict(point) for point in self._training.resumed or ()]
        self._checkpoint, self._checkpoint_seconds = (
            Path(config["checkpoint"]),
            config["checkpoint_seconds"],
        )
        keeps_its_own = self._training.resumed is not None
        found = not keeps_its_own and self._checkpoint.exists()
        taken_up = found and self._take_up(self._training)
        # the workers of a trial resume together or not at all: one of them may not see the file
        if self._any_worker(found) and self._any_worker(not taken_up):
            self.close()
            self._training, self._reported = build(), []  # it may have loaded a part of the file
        self._earlier = list(self._reported)
        self._saved_at = time.monotonic()

    def _program_place(self, folder: Path) -> ProgramPlace:
        from trainers.workloads.program.training import ProgramPlace

        at = self._place
        return ProgramPlace(
            folder,
            at.workers_per_node,
            at.nodes,
            at.node_rank,
            at.master_address,
            at.master_port or None,
            threads=self._threads,
        )

    def _take_up(self, training: AnyTraining) -> bool:
        """Resume from the checkpoint; return False if it belongs to another job, such as a trial from another database,
        or to another model. The next save replaces it: other workers may not have read it yet.
        """
        from trainers.errors import CheckpointError
        from trainers.loop import checkpoint

        try:
            saved = checkpoint.load(self._checkpoint)
            training.load_state_dict(saved["training"])
            self._reported = list(saved["points"])
        except (CheckpointError, KeyError):
            return False
        return True

    def _advance(self, training: AnyTraining) -> dict[str, Any]:
        return self.told(None if training.finished else training.advance())

    def told(self, found: ConvergencePoint | None) -> dict[str, Any]:
        """Return the result of the latest evaluation, and save a checkpoint if one is due."""
        assert self._training is not None, "begin() was not called"
        training = self._training
        result: dict[str, Any] = {"state": "running", "points": self._earlier}
        self._earlier = []
        if found is not None:
            point = dataclasses.asdict(found)
            self._reported.append(point)
            result |= {
                "points": [*result["points"], point],
                "epochs": point["epochs"],
                "metric": point["metric"],
            }
        if training.finished:
            outcome = training.outcome
            return result | {"state": outcome.state, "outcome": outcome.to_dict(), "done": True}
        first = self._place.rank == 0
        due = first and time.monotonic() - self._saved_at >= self._checkpoint_seconds
        if self._any_worker(due):
            training.gather()
            self.save()
        return result

    def _any_worker(self, told: bool) -> bool:
        """Return whether this is true for any worker of the trial; all its workers must call this."""
        if self._communicator is None:
            return told
        from trainers.loop.restarts import agreed_by_workers

        return agreed_by_workers(self._communicator, told)

    def save(self) -> None:
        """Write a checkpoint, except for a program, which keeps its own; with several workers, only the first writes.

        The curve is saved with the weights: the database may lack its last points when everything dies.
        """
        training = self._training
        if training is None or training.resumed is not None or self._place.rank != 0:
            return
        from trainers.errors import CheckpointError
        from trainers.loop import checkpoint

        # a full disk costs a checkpoint, not the trial
        with contextlib.suppress(CheckpointError):
            checkpoint.save(
                self._checkpoint,
                {"training": training.state_dict(), "points": self._reported},
            )
        self._saved_at = time.monotonic()
