"""One trial inside a Ray actor: each Tune iteration trains to the next evaluation.

A class trainable whose actor is reused: the next trial starts in a process that has the libraries loaded and,
where it trains the same workload, the data in memory. The trial writes its own checkpoint beside the database's
truth, so that a trial that was in flight when everything died goes on from there.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from ray import tune


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """Trains ``config["job"]``; a result holds ``points``, ``state`` and, at the end, ``outcome``.

    ``points`` is the evaluation just made, after a resume with those before it.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Build the training, or take up its checkpoint. A failure here is the trial's result, not a crash."""
        from trainers.memory import keep_freed_memory

        keep_freed_memory()
        self._workloads: dict[str, Any] = getattr(self, "_workloads", {})
        self._failure = ""
        try:
            self._start(config)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial in this actor."""
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train to the next evaluation."""
        if self._failure:
            return {"state": "failed", "reason": self._failure, "done": True}
        try:
            return self._advance()
        except Exception as error:
            return {"state": "failed", "reason": f"{type(error).__name__}: {error}", "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Tune keeps no checkpoints: the trial's own is enough."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """See :meth:`save_checkpoint`."""

    def _start(self, config: dict[str, Any]) -> None:
        from trainers.job import TrainingJob
        from trainers.workloads import begin_training, load_workload

        job = TrainingJob.from_dict(config["job"])
        key = f"{job.workload} {sorted(job.data.items())} {job.search_path}"
        if key not in self._workloads:
            self._workloads = {key: load_workload(job.workload, job.data, job.search_path)}
        self._training = begin_training(job, workload=self._workloads[key])
        _use_one_thread()
        self._reported: list[dict[str, Any]] = []
        self._earlier: list[dict[str, Any]] = []
        self._checkpoint, self._checkpoint_seconds = Path(config["checkpoint"]), config["checkpoint_seconds"]
        if self._checkpoint.exists():
            from trainers import checkpoint

            saved = checkpoint.load(self._checkpoint)
            self._training.load_state_dict(saved["training"])
            self._reported, self._earlier = list(saved["points"]), list(saved["points"])
        self._saved_at = time.monotonic()

    def _advance(self) -> dict[str, Any]:
        result: dict[str, Any] = {"state": "running", "points": self._earlier}
        self._earlier = []
        if not self._training.finished:
            point = dataclasses.asdict(self._training.advance())
            self._reported.append(point)
            result |= {"points": [*result["points"], point], "epochs": point["epochs"], "metric": point["metric"]}
        if self._training.finished:
            outcome = self._training.outcome
            return result | {"state": outcome.state, "outcome": outcome.to_dict(), "done": True}
        if time.monotonic() - self._saved_at >= self._checkpoint_seconds:
            self._save()
        return result

    def _save(self) -> None:
        """The curve goes with the weights: the database may not hold its last points when everything dies."""
        from trainers import checkpoint

        checkpoint.save(self._checkpoint, {"training": self._training.state_dict(), "points": self._reported})
        self._saved_at = time.monotonic()


def _use_one_thread() -> None:
    """One core each is what Tune hands out; more trials beat faster ones. Not every workload has loaded torch."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
