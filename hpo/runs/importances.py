"""Optuna's importances of the tuned settings, at each batch size and over all batch sizes.

- fANOVA (Hutter, Hoos and Leyton-Brown, ICML 2014): the share of the variance of the log epochs that a setting explains
  on its own, over the whole search space, according to a random forest.
- PED-ANOVA (Watanabe, Bansal and Hutter, arXiv:2304.10255): how much a setting's values in the best trials differ from
  its values in all trials. The best trials are the best tenth, but at least five, and all reached the target.

Both are computed by ``optuna.importance`` and add up to 1 over the settings. A trial that ended without reaching the
target counts with the epochs of the longest trial at its batch size, because its failure says something about its
settings. For a fixed budget, the logarithm of the metric's shortfall takes the place of the log epochs
(:meth:`trainers.job.Question.need`). Over all batch sizes, the batch size counts as a setting too; a setting whose best
value changes with the batch size then has a smaller share than at each single batch size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpo.runs.exports.optuna_study import optuna_study, quiet_optuna
from hpo.runs.results import StudyResult
from storage.records import TrialState
from trainers.job import LEAST_SHORTFALL, Question

if TYPE_CHECKING:
    import optuna

LEAST_TRIALS = 8
"""Minimum number of trials that must have ended at a batch size, two of them at the target, for importances to be
computed.
"""
LEAST_REACHED = 2
BEST_SHARE, LEAST_BEST = 0.1, 5
TREES, SEED = 32, 0
"""The size and seed of fANOVA's random forest; the same trials always give the same shares."""
MOST_TRIALS = 128
"""Maximum number of trials from which fANOVA is computed, evenly spaced in their order; 500 trials take ten seconds."""


@dataclass(frozen=True)
class Importances:
    """Importances of the tuned settings at one batch size; ``global_batch_size`` is None for all batch sizes together.

    ``fanova`` and ``ped_anova`` hold the share of each setting, between 0 and 1. The shares add up to 1, or are all 0
    if no setting made a difference. ``trials`` is the number of trials that they were computed from.
    """

    global_batch_size: int | None
    trials: int
    fanova: Mapping[str, float]
    ped_anova: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "global_batch_size": self.global_batch_size,
            "trials": self.trials,
            "fanova": dict(self.fanova),
            "ped_anova": dict(self.ped_anova),
        }


def importances(result: StudyResult) -> tuple[Importances, ...]:
    """Return the importances over all batch sizes, then at each one with enough trials; empty if no batch size has
    enough.

    Raises :class:`ExportError` if Optuna is not installed.
    """
    return tuple(_importances(result))


def importance_order(found: Sequence[Importances]) -> list[str]:
    """Return the settings, and the batch size if it counts as one, by decreasing fANOVA importance over all batch
    sizes.
    """
    order: dict[str, float] = {}
    for each in found:
        for name, share in each.fanova.items():
            order.setdefault(name, share)
    return sorted(order, key=lambda name: -order[name])


def _importances(result: StudyResult) -> Iterator[Importances]:
    if not result.spec.search.names:
        return
    batches = [batch for batch in _batches(result) if _enough(result, batch)]
    if not batches:
        return
    for batch in [None, *batches] if len(_batches(result)) > 1 else batches:
        study = optuna_study(
            result.study, result.spec, result.trials, global_batch_size=batch, count_missed=True
        )
        yield _of_study(study, batch, _answered(result, batch), result.spec.question)


def _of_study(
    study: optuna.Study, batch: int | None, answered: int, question: Question
) -> Importances:
    import optuna

    trials = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    needs = [_need(trial, question) for trial in trials]
    names = optuna.search_space.intersection_search_space(trials)
    if min(needs) == max(needs) or not names:
        nothing = dict.fromkeys(names, 0.0)
        return Importances(batch, len(trials), nothing, nothing)
    # trials that tie with the last of the best would count as best too, possibly all of them
    below = sum(need < max(needs) for need in needs)
    best = min(max(math.ceil(BEST_SHARE * len(trials)), LEAST_BEST), answered, below)
    fanova = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, seed=SEED)
    ped_anova = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=best / len(trials))
    return Importances(
        batch,
        len(trials),
        _shares(fanova.evaluate(_with_logarithms(_evenly(trials), question), [*names])),
        _shares(ped_anova.evaluate(study, [*names])),
    )


def _evenly(trials: Sequence[optuna.trial.FrozenTrial]) -> list[optuna.trial.FrozenTrial]:
    count = min(len(trials), MOST_TRIALS)
    return [trials[place * len(trials) // count] for place in range(count)]


def _need(trial: optuna.trial.FrozenTrial, question: Question) -> float:
    """Return a trial's epochs, or its metric's shortfall, from its value in Optuna."""
    value = float(trial.values[0])
    return (question.shortfall(value) or LEAST_SHORTFALL) if question.fixed else value


def _with_logarithms(
    trials: Sequence[optuna.trial.FrozenTrial], question: Question
) -> optuna.Study:
    """Return the trials with the logarithm of their need, and of the settings whose domain is logarithmic.

    Optuna's fANOVA integrates over a setting on a linear scale even if its distribution is logarithmic; for learning
    rates from 0.001 to 1, almost only those above 0.1 would count.
    """
    import optuna
    from optuna.distributions import FloatDistribution, IntDistribution

    with quiet_optuna():
        study = optuna.create_study(direction="minimize")
    for trial in trials:
        params, distributions = dict(trial.params), dict(trial.distributions)
        for name, each in trial.distributions.items():
            if isinstance(each, FloatDistribution | IntDistribution) and each.log:
                params[name] = math.log(params[name])
                distributions[name] = FloatDistribution(math.log(each.low), math.log(each.high))
        study.add_trial(
            optuna.trial.create_trial(
                params=params, distributions=distributions, value=math.log(_need(trial, question))
            )
        )
    return study


def _shares(found: Mapping[str, float]) -> dict[str, float]:
    whole = math.fsum(found.values())
    return {name: float(value) / whole if whole > 0 else 0.0 for name, value in found.items()}


def _batches(result: StudyResult) -> list[int]:
    return sorted({trial.global_batch_size for trial in result.trials})


def _enough(result: StudyResult, batch: int) -> bool:
    told = [
        trial
        for trial in result.trials
        if trial.global_batch_size == batch
        and trial.state.finished
        and trial.state is not TrialState.FAILED
    ]
    return len(told) >= LEAST_TRIALS and _answered(result, batch) >= LEAST_REACHED


def _answered(result: StudyResult, batch: int | None) -> int:
    return sum(
        result.spec.question.need(trial) is not None and batch in (None, trial.global_batch_size)
        for trial in result.trials
    )
