"""Adapts a sweep to Ray Tune's Searcher interface: the sweep's strategy and Optuna's samplers pick each trial."""

from __future__ import annotations

from typing import Any

from ray.tune.search import Searcher

from hpo.tuning.generation.strategy import SweepDone
from hpo.tuning.trainings import StudyTrainings


class SweepSearcher(Searcher):  # type: ignore[misc]
    """Gives Tune the next trial.

    Results reach the sweep through the callback, not through this class, because Tune reports a trial that the
    scheduler stopped to this class as an ordinary result.
    """

    def __init__(self, sweep: StudyTrainings) -> None:
        super().__init__(metric="metric", mode="max")
        self._sweep = sweep

    def suggest(self, trial_id: str) -> Any:
        """Return the next trial's config, None if Tune must ask again later, or FINISHED."""
        config = self._sweep.next_config(trial_id)
        if isinstance(config, SweepDone):
            # running trials may have to restart, and Tune stops asking once it gets FINISHED
            waits = self._sweep.running and not self._sweep.interrupted
            return None if waits else Searcher.FINISHED
        return config

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Do nothing: the callback records results (see the class docstring)."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the state is in the database."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: the state is in the database."""
