"""One trial inside a Ray actor: each Tune iteration trains until the next evaluation.

This class trainable reuses its actor: the next trial starts in a process that has already loaded the libraries and, if
the workload is the same, the data.
"""

from __future__ import annotations

from typing import Any

from ray import tune

from hpo.tuning.resources import TrialResources
from hpo.tuning.trial_run import TrialRun, WorkerPlace
from hpo.tuning.workers import WorkerGroup


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """Runs a :class:`~hpo.tuning.trial_run.TrialRun` under Tune, or the workers of a trial that has several."""

    def setup(self, config: dict[str, Any]) -> None:
        """Accept a trial; it starts with the first step, because Tune may prepare two actors for it and keep one."""
        from trainers.numerics.memory import keep_freed_memory

        keep_freed_memory()
        self._run: TrialRun | WorkerGroup = getattr(self, "_run", None) or _run_with(
            TrialResources(**config["resources"])
        )
        self._run.close()
        self._next: dict[str, Any] | None = config

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Accept the next trial in this actor."""
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train until the next evaluation; the first step builds the training or resumes its checkpoint."""
        if self._next is not None:
            self._run.begin(self._next)
            self._next = None
        return self._run.advance()

    def cleanup(self) -> None:
        """Stop the trial and its workers."""
        self._run.stop()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Do nothing: Tune keeps no checkpoints, as the trial writes its own."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: see :meth:`save_checkpoint`."""


def _run_with(resources: TrialResources) -> TrialRun | WorkerGroup:
    """Return the trainer of a trial: this process, or the group of workers that this process leads."""
    if resources.grouped:
        return WorkerGroup(resources)
    place = WorkerPlace(workers_per_node=resources.workers_per_node)
    return TrialRun(place, threads=resources.threads)
