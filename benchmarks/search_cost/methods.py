"""The searches that are compared; each yields what it has spent and what it would use at the target batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search_cost.simulation import (
    EVALUATIONS_PER_EPOCH,
    LADDER,
    MOST_LAG,
    TARGET_BATCH,
    Task,
    Training,
)
from hpo.extrapolation.evidence import Evidence, Observation, ScaledSetting
from hpo.extrapolation.posterior import fit
from hpo.extrapolation.recommend import recommend
from hpo.tuning.acquisition.chooser import Acquisition
from hpo.tuning.acquisition.curves import predict_crossing


@dataclass(frozen=True)
class Moment:
    """After a trial: samples spent in all and at the target batch, and how good the settings now recommended are."""

    samples: float
    samples_at_target: float
    factor: float


Search = Callable[[Task, int, float], Iterator[Moment]]
"""A search of one task with a seed, until it has spent so many samples."""


class _Ledger:
    """What was spent, and the moments that come of it."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.samples = self.at_target = 0.0

    def spend(self, batch: int, training: Training) -> None:
        self.samples += training.samples
        self.at_target += training.samples if batch == TARGET_BATCH else 0.0

    def moment(self, learning_rate: float | None, momentum: float | None) -> Moment:
        factor = np.inf if learning_rate is None else self._task.factor(learning_rate, momentum or 0.0)
        return Moment(self.samples, self.at_target, factor)


def random_search(task: Task, seed: int, most: float) -> Iterator[Moment]:
    """Settings drawn evenly, each trained at the target batch until its target or its budget."""
    rng, ledger, best = np.random.default_rng((seed, 1)), _Ledger(task), (np.inf, None, None)
    limit = task.budget(TARGET_BATCH)
    while ledger.samples < most:
        rate = float(np.exp(rng.uniform(*np.log(task.rates))))
        momentum = task.momentum if task.momentum is not None else 1 - float(np.exp(rng.uniform(np.log(MOST_LAG), 0)))
        training = task.train(TARGET_BATCH, rate, momentum, limit, rng)
        ledger.spend(TARGET_BATCH, training)
        if training.state == "reached" and training.epochs < best[0]:
            best = training.epochs, rate, momentum
        yield ledger.moment(*best[1:])


def tpe_with_halving(task: Task, seed: int, most: float) -> Iterator[Moment]:
    """Optuna's TPE and SuccessiveHalvingPruner (the rule of ASHA), both with their defaults, at the target batch."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rng, ledger, best = np.random.default_rng((seed, 2)), _Ledger(task), (np.inf, None, None)
    limit = task.budget(TARGET_BATCH)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=4, reduction_factor=4)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner, direction="minimize")
    while ledger.samples < most:
        trial = study.ask()
        rate, momentum = _suggest(trial, task)
        halved: set[int] = {0}

        def stop(epochs: list[float], losses: list[float], trial: Any = trial, halved: Any = halved) -> bool:
            # 64 resources are the budget: rungs at 1/16 and 1/4 of it
            resource = int(64 * epochs[-1] / limit)
            if resource not in halved:
                trial.report(losses[-1], step=resource)
                halved.add(resource)
                return bool(trial.should_prune())
            return False

        training = task.train(TARGET_BATCH, rate, momentum, limit, rng, stop)
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


def forecast_with_target(task: Task, seed: int, most: float) -> Iterator[Moment]:
    """The acquisition over the ladder and the target batch itself."""
    return _acquired(task, seed, most, (*LADDER, TARGET_BATCH))


def forecast_on_ladder(task: Task, seed: int, most: float) -> Iterator[Moment]:
    """The acquisition over the ladder alone: nothing is trained at the target batch."""
    return _acquired(task, seed, most, LADDER)


TRACE = False
PATIENCE = 0.33             # of the limit, before a training may be called hopeless


def _acquired(task: Task, seed: int, most: float, rungs: tuple[int, ...]) -> Iterator[Moment]:
    from scipy.stats import qmc

    rng, ledger = np.random.default_rng((seed, 3)), _Ledger(task)
    tuned = _tuned(task)
    acquisition = Acquisition(rungs, TARGET_BATCH, tuned, resolution=1 / EVALUATIONS_PER_EPOCH, seed=seed)
    spread = qmc.Halton(len(tuned), scramble=True, seed=seed)
    budgets = {batch: task.budget(batch) for batch in rungs}
    others = {"optimizer": "sgd"} | ({} if task.momentum is None else {"momentum": task.momentum})
    while ledger.samples < most:
        if acquisition.ready:
            choice = acquisition.choose(others)
            batch, settings, limit = choice.global_batch_size, choice.settings, choice.limit_epochs
        else:
            batch, settings = LADDER[0], _placed(tuned, spread.random(1)[0])
            limit = acquisition.limit_epochs(batch) or budgets[batch]
        limit = min(limit, budgets[batch])
        settings = {**others, **settings}
        training = task.train(batch, settings["learning_rate"], settings["momentum"], limit, rng,
                              _hopeless(task.target_loss, limit))
        ledger.spend(batch, training)
        acquisition.tell(_observation(batch, settings, training))
        if not acquisition.ready:
            yield ledger.moment(None, None)
            continue
        found = {**others, **acquisition.recommend(others)}
        moment = ledger.moment(found["learning_rate"], found["momentum"])
        if TRACE:
            print(f"{batch:5d} lr {settings['learning_rate']:.4f} m {settings['momentum']:.2f} limit {limit:.1f} "
                  f"{training.state} {training.epochs:.2f} -> {found['learning_rate']:.4f} {found['momentum']:.3f} "
                  f"factor {moment.factor:.3f}")
        yield moment


def _hopeless(threshold: float, limit: float) -> Callable[[list[float], list[float]], bool]:
    def stop(epochs: list[float], losses: list[float]) -> bool:
        if epochs[-1] < PATIENCE * limit or len(epochs) % 2:
            return False
        crossing = predict_crossing(epochs, losses, threshold)
        return crossing is not None and crossing.low > limit
    return stop


def _observation(batch: int, settings: dict[str, Any], training: Training) -> Observation:
    return Observation(batch, training.state, training.epochs, settings, 0,
                       min(training.resolution_epochs, training.epochs), training.noise_scale)


def _tuned(task: Task) -> list[ScaledSetting]:
    tuned = [ScaledSetting("learning_rate", "log", *task.rates)]
    return tuned if task.momentum is not None else [*tuned, ScaledSetting("momentum", "linear", 0.0, 1 - MOST_LAG)]


def _placed(tuned: list[ScaledSetting], point: Any) -> dict[str, float]:
    rate = tuned[0]
    assert rate.low is not None and rate.high is not None
    found = {"learning_rate": rate.low * (rate.high / rate.low) ** float(point[0])}
    return found if len(tuned) == 1 else {**found, "momentum": 1 - MOST_LAG ** float(point[1])}
