"""The searches that are compared; each yields what it has spent and what it would use at the target batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search_cost.confirming import confirm, recommended
from benchmarks.search_cost.halving import halving, new_study
from benchmarks.search_cost.simulation import (
    EVALUATIONS_PER_EPOCH,
    LADDER,
    MOST_LAG,
    TARGET_BATCH,
    Task,
    Training,
)
from hpo.extrapolation import discrepancy
from hpo.extrapolation.evidence.evidence import Observation, ScaledSetting
from hpo.tuning.acquisition.chooser import LIMITS, Acquisition
from hpo.tuning.acquisition.curves import hopeless


@dataclass(frozen=True)
class Moment:
    """After a trial: samples spent in all and at the target batch, and how good the settings now recommended are."""

    samples: float
    samples_at_target: float
    factor: float


FEWEST_ON_LADDER, MOST_ON_LADDER, MOST_TRIALS = 8, 30, 48
SWEEP_TRIALS = 40
NOTHING: tuple[float, float | None, float | None] = (
    np.inf,
    None,
    None,
)  # epochs and settings of the best so far

Search = Callable[[Task, int, float], Iterator[Moment]]
"""A search of one task with a seed, until it has spent so many samples."""


class _Ledger:
    """What was spent, and the moments that come of it."""

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
    """Settings drawn evenly, each trained at the target batch until its target or its budget."""
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
    """Optuna's TPE and SuccessiveHalvingPruner (the rule of ASHA), both with their defaults, at the target batch."""
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


def forecast_with_target(task: Task, seed: int, most: float) -> Iterator[Moment]:
    """The acquisition on the ladder, then confirming trials at the target batch.

    These begin when as much has been spent on the ladder as one of them is expected to cost, after at least
    ``FEWEST_ON_LADDER`` trials there, or when all that may be trained there has been.
    """
    return _acquired(task, seed, most, confirming=True)


def forecast_on_ladder(task: Task, seed: int, most: float) -> Iterator[Moment]:
    """The acquisition on the ladder alone: nothing is trained at the target batch."""
    return _acquired(task, seed, most, confirming=False)


def tpe_on_ladder(task: Task, seed: int, most: float) -> Iterator[Moment]:
    """The sweep of a study with ``sampler: tpe``, all of it, its forecast, and then the same confirming trials."""
    from benchmarks.search_cost.sweep import swept

    ledger, acquisition = _Ledger(task), _acquisition(task, seed)
    for batch, settings, training in swept(task, seed, SWEEP_TRIALS):
        ledger.spend(batch, training)
        acquisition.tell(_observation(batch, settings, training))
        yield ledger.moment(None, None)
    if not acquisition.ready:
        return
    yield _moment(task, acquisition, ledger)
    rng, others = np.random.default_rng((seed, 4)), _others(task)
    while ledger.samples < most and ledger.at_target_trials < MOST_TRIALS:
        settings = {**others, **confirm(acquisition, TARGET_BATCH, others).try_next}
        yield _trained(task, acquisition, ledger, TARGET_BATCH, settings, None, rng)


def _acquired(task: Task, seed: int, most: float, *, confirming: bool) -> Iterator[Moment]:
    from scipy.stats import qmc

    rng, ledger, acquisition, others = (
        np.random.default_rng((seed, 3)),
        _Ledger(task),
        _acquisition(task, seed),
        _others(task),
    )
    spread = qmc.Halton(len(_tuned(task)), scramble=True, seed=seed)
    for number in range(MOST_TRIALS if confirming else MOST_ON_LADDER):
        if ledger.samples >= most:
            return
        confirms = (
            confirming
            and number >= FEWEST_ON_LADDER
            and acquisition.ready
            and (
                number >= MOST_ON_LADDER
                or ledger.at_target_trials > 0
                or ledger.samples / task.problem.train_samples >= _expected_epochs(acquisition)
            )
        )
        limit = None
        if confirms:
            batch, settings = TARGET_BATCH, confirm(acquisition, TARGET_BATCH, others).try_next
        elif acquisition.ready:
            choice = acquisition.choose(others)
            batch, settings, limit = choice.global_batch_size, choice.settings, choice.limit_epochs
        else:
            batch, settings = LADDER[0], _placed(_tuned(task), spread.random(1)[0])
        yield _trained(task, acquisition, ledger, batch, {**others, **settings}, limit, rng)


def _trained(
    task: Task,
    acquisition: Acquisition,
    ledger: _Ledger,
    batch: int,
    settings: dict[str, Any],
    limit: float | None,
    rng: np.random.Generator,
) -> Moment:
    """Train, tell, and look at what is recommended then."""
    limit = min(
        limit or acquisition.limit_epochs(batch) or np.inf,
        task.budget(batch),
        discrepancy.WORTH * _fewest(acquisition, batch) if batch == TARGET_BATCH else np.inf,
    )
    training = task.train(
        batch,
        settings["learning_rate"],
        settings["momentum"],
        limit,
        rng,
        _hopeless(task.target_loss, limit),
    )
    ledger.spend(batch, training)
    acquisition.tell(_observation(batch, settings, training))
    return _moment(task, acquisition, ledger)


def _moment(task: Task, acquisition: Acquisition, ledger: _Ledger) -> Moment:
    if not acquisition.ready:
        return ledger.moment(None, None)
    others = _others(task)
    use = (
        confirm(acquisition, TARGET_BATCH, others).use
        if ledger.at_target_trials
        else recommended(acquisition, TARGET_BATCH, others)
    )
    found = {**others, **use}
    return ledger.moment(found["learning_rate"], found["momentum"])


def _fewest(acquisition: Acquisition, batch: int) -> float:
    return min(
        (
            item.epochs
            for item in acquisition.observations
            if item.state == "reached" and item.global_batch_size == batch
        ),
        default=np.inf,
    )


def _acquisition(task: Task, seed: int) -> Acquisition:
    return Acquisition(
        LADDER,
        TARGET_BATCH,
        _tuned(task),
        resolution=1 / EVALUATIONS_PER_EPOCH,
        seed=seed,
        samples_per_epoch=task.problem.train_samples,
    )


def _others(task: Task) -> dict[str, Any]:
    return {"optimizer": "sgd"} | ({} if task.momentum is None else {"momentum": task.momentum})


def _expected_epochs(acquisition: Acquisition) -> float:
    return (acquisition.limit_epochs(TARGET_BATCH) or np.inf) / LIMITS[-1]


def _hopeless(threshold: float, limit: float) -> Callable[[list[float], list[float]], bool]:
    return lambda epochs, losses: (
        len(epochs) % 2 == 0 and hopeless(epochs, losses, threshold, limit)
    )


def _observation(batch: int, settings: dict[str, Any], training: Training) -> Observation:
    return Observation(
        batch,
        training.state,
        training.epochs,
        settings,
        resolution_epochs=min(training.resolution_epochs, training.epochs),
        gradient_noise_scale=training.noise_scale,
    )


def _tuned(task: Task) -> list[ScaledSetting]:
    tuned = [ScaledSetting("learning_rate", "log", *task.rates)]
    return (
        tuned
        if task.momentum is not None
        else [*tuned, ScaledSetting("momentum", "linear", 0.0, 1 - MOST_LAG)]
    )


def _placed(tuned: list[ScaledSetting], point: Any) -> dict[str, float]:
    rate = tuned[0]
    assert rate.low is not None and rate.high is not None
    found = {"learning_rate": rate.low * (rate.high / rate.low) ** float(point[0])}
    return found if len(tuned) == 1 else {**found, "momentum": 1 - MOST_LAG ** float(point[1])}
