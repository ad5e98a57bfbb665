"""The trials of a study's ladder, chosen one by one by the strategy and the samplers, until its budget is spent.

Like all :mod:`hpo.tuning.trainings`, a sweep resumes from the database; the samplers are then told the results of all
finished trials again.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hpo.study.samplers import SAMPLERS
from hpo.study.sizes import Point, budgets_by_sizes, rung_in_words, sizes_of_settings
from hpo.study.spec import StudySpec
from hpo.tuning.generation.growing import GrowingStrategy
from hpo.tuning.generation.samplers import Sampler, make_sampler
from hpo.tuning.generation.strategy import (
    ChooseBatch,
    ExploreSettings,
    RepeatTraining,
    SweepDone,
    Task,
    WaitForTrainings,
    explorations,
    next_of_all,
    unused_trial_seed,
)
from hpo.tuning.retry import StorageRetry
from hpo.tuning.trainings import Progress, StudyTrainings
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, Study, Trial, TrialPurpose
from storage.store import Store


class Sweep(StudyTrainings):
    """The sweep of one study."""

    purpose = TrialPurpose.SWEEP

    def __init__(
        self,
        spec: StudySpec,
        study: Study,
        store: Store,
        *,
        checkpoints: Path,
        progress: Progress,
        retry: StorageRetry | None = None,
        stop: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda text: None,  # noqa: ARG005
    ) -> None:
        self._budgets = budgets_by_sizes(spec)
        grows = bool(spec.sizes) and spec.budget.ends_by_itself
        self._growing = GrowingStrategy(spec, say) if grows else None
        self._tickets: dict[int, int] = {}
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
    def explored(self) -> set[int]:
        """Ids of the exploratory trials; every other trial repeats one of them."""
        return {trial.id for trial in explorations(self.trials)}

    def _take_up(self) -> None:
        spec, earlier = self._spec, len(self._trials)
        imported = self._retry(
            lambda: self._store.trials(self._study.id, purpose=TrialPurpose.IMPORTED)
        )
        known = [*map(self.as_counted, imported), *self._trials.values()]
        self.batches = sorted({*spec.ladder, *(trial.global_batch_size for trial in known)})
        self._samplers: dict[Point, Sampler] = {}
        smaller: Sampler | None = None
        for point in self._budgets:
            smaller = make_sampler(spec, self.batches, earlier, point, smaller)
            self._samplers[point] = smaller
        for trial in known:
            sampler = self._sampler(trial)
            if sampler is None:
                continue
            if trial.state.finished:
                sampler.tell(trial, curve=partial(self.points, trial))
            else:
                sampler.began(trial)

    def rung(self, trial: Trial) -> str:
        """Return the name of a trial's rung."""
        return rung_in_words(trial.global_batch_size, self._point(trial))

    def _point(self, trial: Trial) -> Point:
        return sizes_of_settings(self._spec, trial.settings)

    def _sampler(self, trial: Trial) -> Sampler | None:
        """Return the sampler for a trial's sizes; None if they are not in the ladder, because the trial comes from
        elsewhere or the ladder has changed.
        """
        return self._samplers.get(self._point(trial))

    @property
    def _only_sampler(self) -> Sampler:
        """Return the only sampler, for a study whose sampler chooses the rung: all its trials have the same size."""
        (sampler,) = self._samplers.values()
        return sampler

    def _config(self, trial: Trial) -> dict[str, Any]:
        ticket = self._tickets.get(trial.id)
        sampler = self._sampler(trial)
        reason = "" if ticket is None or sampler is None else sampler.reason(ticket)
        batch = trial.global_batch_size
        limit = None if sampler is None else sampler.limit_epochs(batch, ticket)
        return {
            "rung": self.rung(trial),
            "limit_epochs": limit,
            "limit_reason": reason,
            "by_curve": not reason,
            "stoppable": trial.id in self.explored,
        }

    def _ended(self, trial: Trial) -> None:
        ticket = self._tickets.pop(trial.id, None)
        sampler = self._sampler(trial)
        if sampler is not None:
            sampler.tell(trial, ticket, partial(self.points, trial))

    def _nothing_left(self) -> bool:
        return isinstance(self._next_task(), SweepDone)

    def _next_trial(self) -> Trial | SweepDone | None:
        task = self._next_task()
        if isinstance(task, SweepDone):
            return task
        if isinstance(task, WaitForTrainings):
            return None
        new, ticket = self._new_trial(task)
        trial = self._add(new)
        if ticket is not None:
            self._tickets[trial.id] = ticket
        return trial

    def _new_trial(
        self, task: ExploreSettings | ChooseBatch | RepeatTraining
    ) -> tuple[NewTrial, int | None]:
        """Return the trial for a task, and the sampler's ticket for it; a repetition has no ticket."""
        seed = unused_trial_seed(self.trials)
        if isinstance(task, RepeatTraining):
            batch, ticket = task.global_batch_size, None
            settings = TrainingSettings.from_record(task.settings).to_dict()
        else:
            rung, sizes = (
                (task.global_batch_size, task.sizes)
                if isinstance(task, ExploreSettings)
                else (None, ())
            )
            batch, suggested, ticket = self._samplers[sizes].suggest(rung, self._unfinished())
            own = {**suggested.own, **dict(sizes)}
            settings = dataclasses.replace(suggested, own=own).to_dict()
        new = NewTrial(global_batch_size=batch, seed=seed, settings=settings, purpose=self.purpose)
        return new, ticket

    def _next_task(self) -> Task:
        if self._growing is not None:
            return self._growing.next(self.trials)
        if not SAMPLERS[self._spec.sampler].chooses_rung:
            trials = defaultdict[Point, list[Trial]](list)
            for trial in self.trials:
                trials[self._point(trial)].append(trial)
            return next_of_all(self._budgets, trials, self._spec.question)
        if len(self._trials) >= self._spec.budget.trials:
            return SweepDone()
        unfinished = self._unfinished()
        if not self._only_sampler.ended(unfinished):
            return ChooseBatch()
        return WaitForTrainings() if unfinished else SweepDone()

    @property
    def why_ended(self) -> str:
        """The reason why the sweep has ended, if it ends by itself; "" otherwise."""
        if self._growing is not None:
            return self._growing.why_ended if self.complete else ""
        chooses = SAMPLERS[self._spec.sampler].chooses_rung
        return self._only_sampler.reason(None) if self.complete and chooses else ""

    def _unfinished(self) -> list[Trial]:
        return [trial for trial in self._trials.values() if not trial.state.finished]
