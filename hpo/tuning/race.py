"""The trials of a race, until it is decided or its budget is spent (:mod:`hpo.tuning.generation.race`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpo.study.sizes import has_full_scale_sizes
from hpo.study.spec import StudySpec
from hpo.tuning.generation.race import (
    RaceCourse,
    first_race_seed,
    next_race_entry,
    next_race_seed,
    race_epochs_left,
)
from hpo.tuning.generation.strategy import SweepDone, WaitForTrainings, explorations
from hpo.tuning.retry import StorageRetry
from hpo.tuning.trainings import Progress, StudyTrainings
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, Study, Trial, TrialPurpose
from storage.store import Store


class Race(StudyTrainings):
    """One study's race at one batch size in this process, within ``course.most_epochs``.

    A trial is stopped at the last evaluation before its limit, because the next evaluation may come after that limit.
    """

    purpose = TrialPurpose.RACE

    def __init__(
        self,
        spec: StudySpec,
        study: Study,
        store: Store,
        course: RaceCourse,
        *,
        checkpoints: Path,
        progress: Progress,
        retry: StorageRetry | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.course, self._reserved = course, dict[int, float]()
        super().__init__(
            spec,
            study,
            store,
            checkpoints=checkpoints,
            progress=progress,
            retry=retry,
            stop=stop,
        )

    @property
    def fewest_epochs(self) -> float:
        """The fewest epochs in which a trial has reached the target; inf if none has."""
        return min(
            (
                trial.epochs_to_target
                for trial in self._trials.values()
                if trial.epochs_to_target is not None
            ),
            default=math.inf,
        )

    @property
    def out_of_epochs(self) -> bool:
        """Whether the race ends because its remaining budget is too small for another trial."""
        return (
            not isinstance(next_race_entry(self.course, self.trials), SweepDone)
            and self._nothing_left()
        )

    def _stored(self) -> list[Trial]:
        return [
            trial
            for trial in super()._stored()
            if trial.global_batch_size == self.course.global_batch_size
            and has_full_scale_sizes(self._spec, trial.settings)
        ]

    def _config(self, trial: Trial) -> dict[str, Any]:
        first = trial.id in {each.id for each in explorations(self.trials)}
        others = {key: value for key, value in self._reserved.items() if key != trial.id}
        left = race_epochs_left(
            self.course, [each for each in self.trials if each.id != trial.id], others
        )
        self._reserved[trial.id] = min(left, self.course.limit_epochs)
        # learning curves at an untrained batch size have an unknown shape, so no trial is dropped because of its
        # predicted curve
        return {
            "limit_epochs": self.course.limit_epochs,
            "stoppable": first,
            "most_epochs": self._reserved[trial.id],
            "by_curve": False,
        }

    def _budget_epochs(self, trial: Trial) -> float | None:  # noqa: ARG002
        return max(self._spec.budget.epochs_per_trial, float(math.ceil(self.course.limit_epochs)))

    def _ended(self, trial: Trial) -> None:
        self._reserved.pop(trial.id, None)

    def _affordable(self) -> bool:
        needed = min(self.fewest_epochs, self.course.epochs)
        return race_epochs_left(self.course, self.trials, self._reserved) >= needed

    def _nothing_left(self) -> bool:
        return (
            isinstance(next_race_entry(self.course, self.trials), SweepDone)
            or not self._affordable()
        )

    def _next_trial(self) -> Trial | SweepDone | None:
        entry = next_race_entry(self.course, self.trials)
        if isinstance(entry, SweepDone):
            return entry
        if isinstance(entry, WaitForTrainings):
            return None
        if not self._affordable():
            return (
                None if self._reserved else SweepDone()
            )  # a trial that ends early returns its reserved epochs
        return self._add(
            NewTrial(
                global_batch_size=self.course.global_batch_size,
                settings=TrainingSettings.from_record(entry).to_dict(),
                seed=next_race_seed(
                    entry,
                    self.trials,
                    first_race_seed(self._study.name, self.course.global_batch_size),
                ),
                purpose=self.purpose,
            )
        )
