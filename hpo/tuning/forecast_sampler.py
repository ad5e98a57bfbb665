"""``sampler: forecast``: trials by what they tell about the full-scale batch, at whichever rung tells it cheapest.

The acquisition chooses the rung and its scaled settings. Settings with the role ``shared`` stay with Optuna's TPE over
the whole ladder, and so do the first trials until there is evidence to choose by; they are spread evenly at the
smallest rung, and go on to the next ones where none of them reaches the target. A study that scales a choice, which the
laws cannot move, is searched in that way throughout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from hpo.extrapolation.evidence.stored import observation, samples_per_epoch, tuned_settings
from hpo.study.spec import StudySpec
from hpo.tuning.acquisition.chooser import ENOUGH_TRIALS, Acquisition
from hpo.tuning.sampler import LadderSampler
from search_spaces.settings import TrainingSettings
from storage.records import Trial

BEYOND = 8
"""Where a study names no full-scale batch: so many times its largest rung."""


class ForecastSampler:
    """Suggests rung and settings together; rebuilt from the finished trials of a study, like any sampler here."""

    def __init__(self, spec: StudySpec, earlier: int = 0) -> None:
        self._ladder, self._space = spec.ladder, spec.search
        self._epochs = spec.budget.epochs_per_trial
        self._inner = LadderSampler(
            spec.search,
            spec.ladder,
            sampler="tpe",
            name=spec.name,
            epochs=self._epochs,
            earlier=earlier,
        )
        target = spec.full_scale.global_batch_size if spec.full_scale else BEYOND * spec.ladder[-1]
        seed = int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:4], "big")
        self._tuned = tuned_settings(spec.search)
        self._acquisition = Acquisition(
            spec.ladder,
            target,
            self._tuned,
            seed=seed,
            resolution=1 / spec.budget.evaluations_per_epoch,
        )

    def suggest(
        self,
        global_batch_size: int | None = None,  # noqa: ARG002  it is chosen here
        running: Iterable[Trial] = (),
    ) -> tuple[int, TrainingSettings, int]:
        """Batch size and settings to train next, with a ticket; ``running`` are the trials in flight."""
        if not (
            self._tuned and len(self._tuned) == len(self._space.scaled) and self._acquisition.ready
        ):
            # where the smallest rung has no settings that reach the target, a larger one may
            batch = self._ladder[
                len(self._acquisition.observations) // ENOUGH_TRIALS % len(self._ladder)
            ]
            return self._inner.suggest(batch)
        in_flight = [(trial.global_batch_size, trial.settings) for trial in running]

        def choose(others: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
            choice = self._acquisition.choose(others, in_flight)
            return choice.global_batch_size, {
                name: self._space.domains[name].clip(value)
                for name, value in choice.settings.items()
            }

        return self._inner.suggest_by(choose)

    def began(self, trial: Trial) -> None:
        """Know of a trial of an earlier run that has not ended."""
        self._inner.began(trial)

    def forget(self, ticket: int, global_batch_size: int) -> None:
        """Know that nothing will come of a suggestion."""
        self._inner.forget(ticket, global_batch_size)

    def tell(self, trial: Trial, ticket: int | None = None) -> None:
        """Learn from a finished trial; those of rungs that the study no longer has count for the forecast alone."""
        if trial.global_batch_size in self._ladder:
            self._inner.tell(trial, ticket)
        seen = observation(trial)
        if seen is not None:
            self._acquisition.samples_per_epoch = (
                self._acquisition.samples_per_epoch or samples_per_epoch([trial])
            )
            self._acquisition.tell(seen)

    def limit_epochs(self, global_batch_size: int) -> float:
        """Epochs after which a trial at this batch has told what it can."""
        return min(self._epochs, self._acquisition.limit_epochs(global_batch_size) or self._epochs)
