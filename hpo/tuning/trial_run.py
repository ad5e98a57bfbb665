"""One trial, evaluation by evaluation, wherever it runs: in an actor of Ray, or in the sweep's own process.

The trial writes its own checkpoint beside the database's truth, so that a trial that was in flight when everything
died goes on from there.
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
    """Which of a trial's workers a process is: number ``rank`` of ``size``, on node ``node_rank`` of ``nodes``.

    They meet at the first one's ``master_address`` and ``master_port``, 0 for any port that is free. A program is one
    process a node here, and starts ``workers_per_node`` by itself.
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

    ``points`` is the evaluation just made, after a resume with those before it. The workload of the trial before is
    kept, with the data that it has in memory, where the next one trains the same.
    """

    def __init__(
        self,
        place: WorkerPlace | None = None,
        communicator: Communicator | None = None,
        threads: int = 1,
        workloads: dict[str, Any] | None = None,
    ) -> None:
        """``communicator`` joins the workers of the trial; None stands for a process that works alone.

        ``workloads`` are those that other trials of this process have loaded, by what they train on.
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
        """Build the training, or take up its checkpoint. A failure here is the trial's result, not a crash."""
        self._failure = ""
        self.close()
        try:
            self._begin(config)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    @property
    def training(self) -> AnyTraining | None:
        """The training that was begun; None where that failed, or none was."""
        return None if self._failure else self._training

    def close(self) -> None:
        """End what the training has started, wherever it stands."""
        if self._training is not None:
            self._training.close()
            self._training = None

    def stop(self) -> None:
        """Like :meth:`close`; there is nothing else to end."""
        self.close()

    def advance(self) -> dict[str, Any]:
        """Train to the next evaluation."""
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
        training = begin_training(
            job,
            self._communicator,
            workload=self._workloads[key],
            place=self._program_place(Path(config["folder"])),
        )
        use_threads(self._threads)
        self._training = training
        self._reported = [dataclasses.asdict(point) for point in training.resumed or ()]
        self._checkpoint, self._checkpoint_seconds = (
            Path(config["checkpoint"]),
            config["checkpoint_seconds"],
        )
        if self._checkpoint.exists():
            self._take_up(training)
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

    def _take_up(self, training: AnyTraining) -> None:
        """Go on from the checkpoint; one of another job, such as of another database's trial, is not this trial's."""
        from trainers.errors import CheckpointError
        from trainers.loop import checkpoint

        try:
            saved = checkpoint.load(self._checkpoint)
            training.load_state_dict(saved["training"])
            self._reported = list(saved["points"])
        except (CheckpointError, KeyError):
            self._checkpoint.unlink(missing_ok=True)

    def _advance(self, training: AnyTraining) -> dict[str, Any]:
        return self.told(None if training.finished else training.advance())

    def told(self, found: ConvergencePoint | None) -> dict[str, Any]:
        """The result of an evaluation, just made, of the training that was begun; saves a checkpoint if one is due."""
        assert self._training is not None, "a training that was begun"
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
        if time.monotonic() - self._saved_at >= self._checkpoint_seconds:
            self.save()
        return result

    def save(self) -> None:
        """Write a checkpoint, except for a program, which keeps its own.

        The curve goes with the weights: the database may not hold its last points when everything dies.
        """
        training = self._training
        if training is None or training.resumed is not None or self._place.rank != 0:
            return
        from trainers.errors import CheckpointError
        from trainers.loop import checkpoint

        # a disk that is full costs a checkpoint, not the training
        with contextlib.suppress(CheckpointError):
            checkpoint.save(
                self._checkpoint,
                {"training": training.state_dict(), "points": self._reported},
            )
        self._saved_at = time.monotonic()
