"""The sweep behind Ray Tune's Searcher: Tune asks, the sweep's strategy and Optuna's samplers answer."""

from __future__ import annotations

from typing import Any

from ray.tune.search import Searcher

from hpo.tuning.generation.strategy import Done
from hpo.tuning.trainings import Trainings


class SweepSearcher(Searcher):  # type: ignore[misc]
    """Hands Tune the next training. The result reaches the sweep through the callback, not through here: Tune would
    report a trial that the scheduler stopped as an ordinary result.
    """

    def __init__(self, sweep: Trainings) -> None:
        super().__init__(metric="metric", mode="max")
        self._sweep = sweep

    def suggest(self, trial_id: str) -> Any:
        """The next training's config, None to be asked again later, or FINISHED."""
        config = self._sweep.next_config(trial_id)
        if isinstance(config, Done):
            # what runs may have to begin anew, and Tune asks no more once it was told that all is done
            waits = self._sweep.running and not self._sweep.interrupted
            return None if waits else Searcher.FINISHED
        return config

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """See the class: the callback records."""

    def save(self, checkpoint_path: str) -> None:
        """The database is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """The database is the state."""
