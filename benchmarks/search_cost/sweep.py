"""The sweep of a study as the service does it: agenda, Optuna's TPE by rung, successive halving; no Ray runs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.search_cost.simulation import LADDER, MOST_LAG, Task, Training
from hpo.study.budgets import rung_budgets
from hpo.tuning.agenda import Explore, Repeat, next_task
from hpo.tuning.sampler import LadderSampler
from hpo.tuning.stopping import LadderASHA
from search_spaces.space import SearchSpace
from storage.records import Trial, TrialState

SEEDS = 2


def swept(task: Task, seed: int, trials: int) -> Iterator[tuple[int, dict[str, Any], Training]]:
    """Batch size, settings and training of each trial of the sweep."""
    rng, done = np.random.default_rng((seed, 5)), list[Trial]()
    epochs = task.budget(LADDER[-1])
    sampler = LadderSampler(
        _space(task), LADDER, sampler="tpe", name=f"benchmark {seed}", epochs=epochs
    )
    halving = LadderASHA(epochs, higher_is_better=False)
    budgets = rung_budgets(LADDER, trials, SEEDS)
    while isinstance(asked := next_task(budgets, done), (Explore, Repeat)):
        batch, ticket = asked.global_batch_size, None
        if isinstance(asked, Repeat):
            settings = dict(asked.settings)
        else:
            _, suggested, ticket = sampler.suggest(batch)
            settings = suggested.to_dict()
        job = {"global_batch_size": batch}
        stub = SimpleNamespace(
            trial_id=str(len(done)), config={"job": job, "stoppable": isinstance(asked, Explore)}
        )
        halving.begins(stub)

        def stop(at: list[float], losses: list[float], stub: Any = stub) -> bool:
            return halving.stops(stub, {"epochs": at[-1], "metric": losses[-1]}) and at[-1] < epochs

        training = task.train(
            batch, settings["learning_rate"], settings["momentum"], epochs, rng, stop
        )
        halving.ended(
            stub,
            {"epochs": training.epochs, "metric": training.losses[-1], "state": training.state},
        )
        trial = _trial(len(done), batch, settings, training)
        sampler.tell(trial, ticket)
        done.append(trial)
        yield batch, settings, training


def _space(task: Task) -> SearchSpace:
    return SearchSpace.parse(
        {
            "learning_rate": {"log_uniform": list(task.rates), "role": "scaled"},
            "momentum": task.momentum
            if task.momentum is not None
            else {"uniform": [0.0, 1 - MOST_LAG], "role": "scaled"},
            "normalization_batch_size": 1,
        }
    )


def _trial(number: int, batch: int, settings: dict[str, Any], training: Training) -> Trial:
    """The trial as it is stored; every training of a sweep has a seed of its own."""
    reached = training.epochs if training.state == "reached" else None
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        state=TrialState(training.state),
        global_batch_size=batch,
        seed=number,
        settings=settings,
        purpose="sweep",
        epochs_to_target=reached,
        epochs=training.epochs,
        steps=None,
        seconds=None,
        best_metric=None,
        final_metric=None,
        reason="",
        resolution_epochs=training.resolution_epochs,
        started_at=None,
        finished_at=None,
    )
