"""One trial, evaluation by evaluation, wherever it runs: in an actor of Ray, or in the sweep's own process.

The trial writes its own checkpoint beside the database's truth, so that a trial that was in flight when everything
died goes on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any


class TrialRun:
    """Trains ``config["job"]``; a result holds ``points``, ``state`` and, at the end, ``outcome`` and ``done``.

    ``points`` is the evaluation just made, after a resume with those before it. The workload of the trial before is
    kept, with the data that it has in memory, where the next one trains the same.
    """

    def __init__(self) -> None:
        self._workloads: dict[str, Any] = {}
        self._failure = ""

    def begin(self, config: dict[str, Any]) -> None:
        """Build the training, or take up its checkpoint. A failure here is the trial's result, not a crash."""
        self._failure = ""
        try:
            self._begin(config)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    def advance(self) -> dict[str, Any]:
        """Train to the next evaluation."""
        if self._failure:
            return {"state": "failed", "reason": self._failure, "done": True}
        try:
            return self._advance()
        except Exception as error:
            return {"state": "failed", "reason": f"{type(error).__name__}: {error}", "done": True}

    def _begin(self, config: dict[str, Any]) -> None:
        from trainers.begin import begin_training
        from trainers.job import TrainingJob
        from trainers.workloads import load_workload

        job = TrainingJob.from_dict(config["job"])
        key = f"{job.workload} {sorted(job.data.items())} {job.search_path}"
        if key not in self._workloads:
            self._workloads = {key: load_workload(job.workload, job.data, job.search_path)}
        self._training = begin_training(job, workload=self._workloads[key])
        self._reported: list[dict[str, Any]] = []
        self._earlier: list[dict[str, Any]] = []
        self._checkpoint, self._checkpoint_seconds = (
            Path(config["checkpoint"]),
            config["checkpoint_seconds"],
        )
        if self._checkpoint.exists():
            self._take_up()
        self._saved_at = time.monotonic()

    def _take_up(self) -> None:
        """Go on from the checkpoint; one of another job, such as of another database's trial, is not this trial's."""
        from trainers.errors import CheckpointError
        from trainers.loop import checkpoint

        try:
            saved = checkpoint.load(self._checkpoint)
            self._training.load_state_dict(saved["training"])
            self._reported, self._earlier = list(saved["points"]), list(saved["points"])
        except (CheckpointError, KeyError):
            self._checkpoint.unlink(missing_ok=True)

    def _advance(self) -> dict[str, Any]:
        result: dict[str, Any] = {"state": "running", "points": self._earlier}
        self._earlier = []
        if not self._training.finished:
            point = dataclasses.asdict(self._training.advance())
            self._reported.append(point)
            result |= {
                "points": [*result["points"], point],
                "epochs": point["epochs"],
                "metric": point["metric"],
            }
        if self._training.finished:
            outcome = self._training.outcome
            return result | {"state": outcome.state, "outcome": outcome.to_dict(), "done": True}
        if time.monotonic() - self._saved_at >= self._checkpoint_seconds:
            self.save()
        return result

    def save(self) -> None:
        """Write a checkpoint. The curve goes with the weights: the database may not hold its last points when
        everything dies.
        """
        from trainers.errors import CheckpointError
        from trainers.loop import checkpoint

        # a disk that is full costs a checkpoint, not the training
        with contextlib.suppress(CheckpointError):
            checkpoint.save(
                self._checkpoint,
                {"training": self._training.state_dict(), "points": self._reported},
            )
        self._saved_at = time.monotonic()
