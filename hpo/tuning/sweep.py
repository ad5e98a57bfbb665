"""The trainings of a study's ladder: what the agenda and the samplers say, until the budget of trainings is spent.

As all :mod:`hpo.tuning.trainings`, a sweep goes on from the database; the samplers are told everything anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hpo.study.budgets import rung_budgets
from hpo.study.samplers import SAMPLERS
from hpo.study.spec import StudySpec
from hpo.tuning.agenda import (
    Choose,
    Done,
    Explore,
    Repeat,
    Task,
    Wait,
    explorations,
    next_seed,
    next_task,
)
from hpo.tuning.patience import Patience
from hpo.tuning.sampler import Sampler, make_sampler
from hpo.tuning.trainings import Progress, Trainings
from search_spaces.settings import TrainingSettings
from storage.records import NewTrial, Study, Trial, TrialPurpose
from storage.store import Store


class Sweep(Trainings):
    """One study's sweep."""

    purpose = TrialPurpose.SWEEP

    def __init__(
        self,
        spec: StudySpec,
        study: Study,
        store: Store,
        *,
        checkpoints: Path,
        progress: Progress,
        patience: Patience | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._budgets = rung_budgets(spec.ladder, spec.budget.trials, spec.seeds)
        self._tickets: dict[int, int] = {}
        super().__init__(
            spec,
            study,
            store,
            checkpoints=checkpoints,
            progress=progress,
            patience=patience,
            stop=stop,
        )

    @property
    def explored(self) -> set[int]:
        """Ids of the trials that explore; the others repeat one of them."""
        return {trial.id for trial in explorations(self.trials)}

    def _take_up(self) -> None:
        spec, earlier = self._spec, len(self._trials)
        imported = self._patience(
            lambda: self._store.trials(self._study.id, purpose=TrialPurpose.IMPORTED)
        )
        known = [*imported, *self._trials.values()]
        self.batches = sorted({*spec.ladder, *(trial.global_batch_size for trial in known)})
        self._sampler: Sampler = make_sampler(spec, self.batches, earlier)
        for trial in known:
            if trial.state.finished:
                self._sampler.tell(trial, curve=partial(self.points, trial))
            else:
                self._sampler.began(trial)

    def _config(self, trial: Trial) -> dict[str, Any]:
        ticket = self._tickets.get(trial.id)
        reason = "" if ticket is None else self._sampler.reason(ticket)
        return {
            "limit_epochs": self._sampler.limit_epochs(trial.global_batch_size, ticket),
            "limit_reason": reason,
            "by_curve": not reason,
            "stoppable": trial.id in self.explored,
        }

    def _ended(self, trial: Trial) -> None:
        ticket = self._tickets.pop(trial.id, None)
        self._sampler.tell(trial, ticket, partial(self.points, trial))

    def _nothing_left(self) -> bool:
        return isinstance(self._next_task(), Done)

    def _next_trial(self) -> Trial | Done | None:
        task = self._next_task()
        if isinstance(task, Done):
            return task
        if isinstance(task, Wait):
            return None
        new, ticket = self._new_trial(task)
        trial = self._add(new)
        if ticket is not None:
            self._tickets[trial.id] = ticket
        return trial

    def _new_trial(self, task: Explore | Choose | Repeat) -> tuple[NewTrial, int | None]:
        """The trial of a task, and the sampler's ticket for it; a repetition has none."""
        seed = next_seed(self.trials)
        if isinstance(task, Repeat):
            batch, ticket = task.global_batch_size, None
            settings = TrainingSettings.from_record(task.settings).to_dict()
        else:
            batch, suggested, ticket = self._sampler.suggest(
                task.global_batch_size if isinstance(task, Explore) else None,
                self._unfinished(),
            )
            settings = suggested.to_dict()
        new = NewTrial(global_batch_size=batch, seed=seed, settings=settings, purpose=self.purpose)
        return new, ticket

    def _next_task(self) -> Task:
        if not SAMPLERS[self._spec.sampler].chooses_rung:
            return next_task(self._budgets, self.trials, self._spec.question)
        if len(self._trials) >= self._spec.budget.trials:
            return Done()
        unfinished = self._unfinished()
        if not self._sampler.ended(unfinished):
            return Choose()
        return Wait() if unfinished else Done()

    @property
    def why_ended(self) -> str:
        """What the sampler says of its end; "" for nothing."""
        return self._sampler.reason(None) if self.complete else ""

    def _unfinished(self) -> list[Trial]:
        return [trial for trial in self._trials.values() if not trial.state.finished]
