"""One trial inside a Ray actor: each Tune iteration trains to the next evaluation.

A class trainable whose actor is reused: the next trial starts in a process that has the libraries loaded and,
where it trains the same workload, the data in memory.
"""

from __future__ import annotations

import sys
from typing import Any

from ray import tune

from hpo.tuning.trial_run import TrialRun


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """A :class:`~hpo.tuning.trial_run.TrialRun` that Tune drives."""

    def setup(self, config: dict[str, Any]) -> None:
        """Build the training, or take up its checkpoint."""
        from trainers.numerics.memory import keep_freed_memory

        keep_freed_memory()
        self._run: TrialRun = getattr(self, "_run", None) or TrialRun()
        self._run.begin(config)
        use_one_thread()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial in this actor."""
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train to the next evaluation."""
        return self._run.advance()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Tune keeps no checkpoints: the trial's own is enough."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """See :meth:`save_checkpoint`."""


def use_one_thread() -> None:
    """One core each is what Tune hands out; more trials beat faster ones. Not every workload has loaded torch."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
