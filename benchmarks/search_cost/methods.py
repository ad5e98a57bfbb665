"""The compared searches; each yields its spending and its recommendation for the target batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search_cost.halving import halving, new_study
from benchmarks.search_cost.simulation import (
    EVALUATIONS_PER_EPOCH,
    LADDER,
    MOST_LAG,
    TARGET_BATCH,
    Task,
    Training,
)
from hpo.extrapolation.evidence.evidence import ScaledSetting
from hpo.tuning.generation.search import SearchStep, SeenTraining
from hpo.tuning.generation.search import SettingsSearch as OwnSearch


@dataclass(frozen=True)
class Moment:
    """The state after a trial: samples spent in total and at the target batch, and the recommendation's quality."""

    samples: float
    samples_at_target: float
    factor: float


NOTHING: tuple[float, float | None, float | None] = (
    np.inf,
    None,
    None,
)  # epochs and settings of the best trial so far

Search = Callable[[Task, int, float], Iterator[Moment]]
"""A search of one task with a seed, until it has spent the given samples."""


class _Ledger:
    """Counts the spending and creates the moments."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.samples = self.at_target = 0.0
        self.at_target_trials = 0

    def spend(self, batch: int, training: Training) -> None:
        self.samples += training.samples
        if batch == TARGET_BATCH:
            self.at_target += training.samples
            self.at_target_trials += 1

    def moment(self, learning_rate: float | None, momentum: float | None) -> Moment:
        factor = (
            np.inf if learning_rate is None else self._task.factor(learning_rate, momentum or 0.0)
        )
        return Moment(self.samples, self.at_target, factor)


def random_search(task: Task, seed: int, most: float) -> Iterator[Moment]:
    """Draw settings uniformly and train each at the target batch until the target or the budget."""
    rng, ledger, best = np.random.default_rng((seed, 1)), _Ledger(task), NOTHING
    limit = task.budget(TARGET_BATCH)
    while ledger.samples < most:
        rate = float(np.exp(rng.uniform(*np.log(task.rates))))
        momentum = (
            task.momentum
            if task.momentum is not None
            else 1 - float(np.exp(rng.uniform(np.log(MOST_LAG), 0)))
        )
        training = task.train(TARGET_BATCH, rate, momentum, limit, rng)
        ledger.spend(TARGET_BATCH, training)
        if training.state == "reached" and training.epochs < best[0]:
            best = training.epochs, rate, momentum
        yield ledger.moment(*best[1:])


def tpe_with_halving(task: Task, seed: int, most: float) -> Iterator[Moment]:
    """Search with Optuna's TPE and SuccessiveHalvingPruner (ASHA's rule), both with defaults, at the target batch."""
    import optuna

    rng, ledger, best = np.random.default_rng((seed, 2)), _Ledger(task), NOTHING
    limit = task.budget(TARGET_BATCH)
    study = new_study(seed)
    while ledger.samples < most:
        trial = study.ask()
        rate, momentum = _suggest(trial, task)
        training = task.train(TARGET_BATCH, rate, momentum, limit, rng, halving(trial, limit))
        ledger.spend(TARGET_BATCH, training)
        if training.state == "reached":
            study.tell(trial, float(np.log(training.epochs)))
        elif training.state == "pruned":
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, float(np.log(limit) + (2.0 if training.state == "diverged" else 1.0)))
        if training.state == "reached" and training.epochs < best[0]:
            best = training.epochs, rate, momentum
        yield ledger.moment(*best[1:])


def _suggest(trial: Any, task: Task) -> tuple[float, float]:
    rate = trial.suggest_float("learning_rate", *task.rates, log=True)
    if task.momentum is not None:
        return rate, task.momentum
    return rate, 1 - trial.suggest_float("lag", MOST_LAG, 1.0, log=True)


def searched(task: Task, seed: int, most: float) -> Iterator[Moment]:
    """Run the search of ``sampler: forecast`` at the target batch, until it ends by itself."""
    rng, ledger, others = np.random.default_rng((seed, 3)), _Ledger(task), _others(task)
    search = OwnSearch(
        (*LADDER, TARGET_BATCH),
        TARGET_BATCH,
        _tuned(task),
        most_epochs=task.budget(TARGET_BATCH),
        resolution=1 / EVALUATIONS_PER_EPOCH,
        goal=task.target_loss,
        higher_is_better=False,
        rate_exponent=1.0,
        seed=seed,
    )
    seen: list[SeenTraining] = []
    while ledger.samples < most:
        step = search.next(seen)
        if step is None:
            return
        settings = {**others, **step.settings}
        training = task.train(
            step.global_batch_size,
            settings["learning_rate"],
            settings["momentum"],
            min(step.until_epochs, task.budget(step.global_batch_size)),
            rng,
        )
        ledger.spend(step.global_batch_size, training)
        seen.append(_seen(len(seen), step, training))
        use = {**others, **search.recommendation(seen)}
        yield ledger.moment(use["learning_rate"], use["momentum"])


def _seen(number: int, step: SearchStep, training: Training) -> SeenTraining:
    count = len(training.losses)
    epochs = [training.epochs * (at + 1) / count for at in range(count)]
    state = {"pruned": "paused", "censored": "paused"}.get(training.state, training.state)
    reached = training.epochs if state == "reached" else None
    return SeenTraining(
        number,
        step.global_batch_size,
        step.settings,
        number,
        epochs,
        training.losses,
        state,
        reached,
    )


def _tuned(task: Task) -> tuple[ScaledSetting, ...]:
    rate = ScaledSetting("learning_rate", "log", *task.rates)
    if task.momentum is not None:
        return (rate,)
    return rate, ScaledSetting("momentum", "linear", 0.0, 1 - MOST_LAG)


def _others(task: Task) -> dict[str, Any]:
    return {"optimizer": "sgd"} | ({} if task.momentum is None else {"momentum": task.momentum})
