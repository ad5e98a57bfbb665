"""The race: a few configurations are trained at the full-scale batch itself, and the best two once more.

Where the quickest has the highest rate of all, or the lowest, the best lies beyond: the race goes a step further.

A batch of any size is trained here by accumulation, at the price of its samples. The laws say where the best settings
lie, but not exactly, and a training that is lost costs the slot on the full machine: so a few configurations about the
forecast's start, those that are far behind are dropped, and the best two are repeated, for the scatter between seeds
makes one of them look better than it is. What is to be trained next is a function of the race's trials alone, so that a
race that was interrupted goes on. The first training of every configuration has the same seed, and so the same start
weights and order of samples, the second ones have the next: what a seed adds to all of them decides nothing.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo.extrapolation.evidence.stored import counted_once
from hpo.study.spec import StudySpec
from hpo.tuning.agenda import Done, Wait, explorations
from hpo.tuning.retry import StorageRetry
from hpo.tuning.trainings import Progress, Trainings
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, Study, Trial, TrialPurpose, TrialState, settings_key
from storage.store import Store

# the trainings of the sweep have the seeds from 0, those of plans the ones that follow; a race draws its own from here
FIRST_SEED, DRAWS = 100_000, 1_000_000
# where the quickest, by a thirtieth at least, has the highest or lowest rate: so many further ones, this factor apart;
# the budget ends most races earlier
STEPS, STEP, QUICKER = 6, 1.6, 0.03
FINALISTS, SEEDS = 2, 2  # so many of the best are trained with so many seeds
RESCUES = 2  # where nothing reached the target: so often a lower rate with a longer warmup is tried
LOWER_RATE, LONGER_WARMUP = 0.5, 2.0


@dataclass(frozen=True)
class Course:
    """What a race is run by.

    ``lineup`` holds complete settings, the forecast's first. ``limit_epochs`` are what a training may need before it is
    given up, ``epochs`` what one is expected to need, ``most_epochs`` what all together may train.
    """

    global_batch_size: int
    lineup: tuple[Mapping[str, Any], ...]
    epochs: float
    limit_epochs: float
    most_epochs: float


def next_entry(course: Course, trials: Sequence[Trial]) -> Mapping[str, Any] | Wait | Done:
    """The settings to train next in a race with these ``trials`` (of every state)."""
    trials, trained = counted_once(trials), defaultdict[str, list[Trial]](list)
    for trial in trials:
        trained[trial.settings_key].append(trial)
    fresh = [settings for settings in course.lineup if settings_key(settings) not in trained]
    if fresh and len(trained) < len(course.lineup):
        return fresh[0]
    if not all(trial.state.finished for trial in trials):
        return Wait()
    further = _further(explorations(trials))
    if further is not None and len(trained) < len(course.lineup) + STEPS:
        return further
    ranked = sorted(
        (_mean_log_epochs(runs), runs[0].settings_key, runs)
        for runs in trained.values()
        if all(run.state is TrialState.REACHED for run in runs)
    )
    for _, _, runs in ranked[:FINALISTS]:
        if len(runs) < SEEDS:
            return runs[0].settings
    if not ranked and len(trained) < len(course.lineup) + RESCUES:
        return _rescue(explorations(trials))
    return Done()


def epochs_left(course: Course, trials: Sequence[Trial], reserved: Mapping[int, float]) -> float:
    """Epochs that a race may still train; ``reserved`` are those promised to the trials that run, by their id.

    Trainings that repeat another to the seed, which an older race may hold, do not count, so that it can be mended.
    """
    return course.most_epochs - math.fsum(
        (trial.epochs or 0.0) if trial.state.finished else reserved.get(trial.id, 0.0)
        for trial in counted_once(trials)
    )


class Race(Trainings):
    """One study's race at one batch in this process, within ``course.most_epochs``.

    An evaluation may come later than a trial's last epoch is up, so that a trial ends with the last evaluation before
    its limit.
    """

    purpose = TrialPurpose.RACE

    def __init__(
        self,
        spec: StudySpec,
        study: Study,
        store: Store,
        course: Course,
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
        """The fewest epochs in which a training has reached the target; inf before any has."""
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
        """Whether the race ends because what is left of its budget is too little for another training."""
        return not isinstance(next_entry(self.course, self.trials), Done) and self._nothing_left()

    def _stored(self) -> list[Trial]:
        return [
            trial
            for trial in super()._stored()
            if trial.global_batch_size == self.course.global_batch_size
        ]

    def _config(self, trial: Trial) -> dict[str, Any]:
        first = trial.id in {each.id for each in explorations(self.trials)}
        others = {key: value for key, value in self._reserved.items() if key != trial.id}
        left = epochs_left(
            self.course, [each for each in self.trials if each.id != trial.id], others
        )
        self._reserved[trial.id] = min(left, self.course.limit_epochs)
        # the shape of a curve at a batch never trained at is unknown: none is dropped by where it seems to lead
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
        return epochs_left(self.course, self.trials, self._reserved) >= needed

    def _nothing_left(self) -> bool:
        return isinstance(next_entry(self.course, self.trials), Done) or not self._affordable()

    def _next_trial(self) -> Trial | Done | None:
        entry = next_entry(self.course, self.trials)
        if isinstance(entry, Done):
            return entry
        if isinstance(entry, Wait):
            return None
        if not self._affordable():
            return (
                None if self._reserved else Done()
            )  # a training that ends early gives back what it was promised
        return self._add(
            NewTrial(
                global_batch_size=self.course.global_batch_size,
                settings=TrainingSettings.from_record(entry).to_dict(),
                seed=next_seed(
                    entry, self.trials, first_seed(self._study.name, self.course.global_batch_size)
                ),
                purpose=self.purpose,
            )
        )


def first_seed(study: str, global_batch_size: int) -> int:
    """The seed that the race of a study begins with, the same every time.

    Others have others: a seed with which all trainings are slow would make every race of a workload slow.
    """
    return FIRST_SEED + zlib.crc32(f"{study} at {global_batch_size}".encode()) % DRAWS


def next_seed(settings: Mapping[str, Any], trials: Sequence[Trial], first: int) -> int:
    """The seed of the next training of these settings: the first that they were not trained with.

    A race that has begun goes on from the ``first`` seed that it has.
    """
    begun, key = min((trial.seed for trial in trials), default=first), settings_key(settings)
    taken = {trial.seed for trial in trials if trial.settings_key == key}
    return next(seed for seed in itertools.count(begun) if seed not in taken)


def _further(tried: Sequence[Trial]) -> dict[str, Any] | None:
    """The quickest settings a step up in the rate where theirs is the highest, a step down where it is the lowest.

    None where it is neither, or not clearly the quickest: one that was dropped or lost is slower than any that was not.
    """
    reached = sorted(
        (trial for trial in tried if trial.epochs_to_target),
        key=lambda trial: trial.epochs_to_target or math.inf,
    )
    if not reached or len(tried) < 2:
        return None
    quickest, *slower = reached
    if slower and (quickest.epochs_to_target or 0.0) > (1 - QUICKER) * (
        slower[0].epochs_to_target or 0.0
    ):
        return None
    rate = float(quickest.settings["learning_rate"])
    others = [float(trial.settings["learning_rate"]) for trial in tried if trial is not quickest]
    if min(others) <= rate <= max(others):
        return None
    return {
        **quickest.settings,
        "learning_rate": rate * STEP if rate > max(others) else rate / STEP,
    }


def _rescue(tried: Sequence[Trial]) -> dict[str, Any]:
    """The settings least likely to be lost of those tried, with a lower rate and a longer warmup."""
    rates = [float(trial.settings["learning_rate"]) for trial in tried]
    warmups = [float(trial.settings.get("warmup_epochs") or 0.0) for trial in tried]
    return {
        **tried[rates.index(min(rates))].settings,
        "learning_rate": LOWER_RATE * min(rates),
        "warmup_epochs": LONGER_WARMUP * max(warmups),
    }


def _mean_log_epochs(runs: Sequence[Trial]) -> float:
    return math.fsum(math.log(run.epochs_to_target) for run in runs if run.epochs_to_target) / len(
        runs
    )
