"""Predictions at a batch with the recommended settings: epochs, chances, and the cost of a wrong learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.inference.intervals import LEVELS, Interval
from hpo.extrapolation.inference.posterior import TYPICAL_RUNS, Posterior
from hpo.extrapolation.laws.setting_laws import RATE
from hpo.extrapolation.recommend import RecommendedSettings

Array: TypeAlias = NDArray[np.float64]

NORMAL_NODES = np.array([NormalDist().inv_cdf((node + 0.5) / 25) for node in range(25)])
BUDGETS = (0.8, 1.0, 1.25, 1.5, 2.0, 3.0)  # times the median epochs
WRONG_RATES = (0.5, 2.0)


@dataclass(frozen=True)
class Chance:
    """The probability that one run reaches the target within a budget of epochs."""

    epochs: float
    probability: float

    def to_dict(self) -> dict[str, float]:
        """Return the chance as a plain dictionary."""
        return {"epochs": self.epochs, "probability": self.probability}


@dataclass(frozen=True)
class Sensitivity:
    """The effect of a learning rate that is off by ``factor``: a factor on the epochs, and the risk of divergence.

    The factor applies to runs that do not diverge; it is capped at ``recommend.SLOW``, where a run is given up.
    """

    factor: float
    epochs_factor: Interval
    divergence: float

    def to_dict(self, *, lacks: bool = False) -> dict[str, Any]:
        """Return a plain dictionary; ``lacks`` says that the factor applies to the shortfall after a fixed budget."""
        return {
            "factor": self.factor,
            "shortfall_factor" if lacks else "epochs_factor": self.epochs_factor.to_dict(),
            "divergence": self.divergence,
        }


def epochs_interval(
    posterior: Posterior, choices: RecommendedSettings, scale: float = 1.0
) -> Interval:
    """Return the epochs to target of a new configuration with these settings: the mean of runs that do not diverge.

    With a fixed budget, return the shortfall instead.
    """
    samples = log_epochs_samples(posterior, choices, TYPICAL_RUNS, scale)
    # the cap only keeps numbers finite where nothing is known
    return Interval(*(float(np.exp(min(value, 200.0))) for value in np.quantile(samples, LEVELS)))


def budget_chances(
    posterior: Posterior, choices: RecommendedSettings, budgets: Sequence[float], scale: float = 1.0
) -> tuple[Chance, ...]:
    """Return the probability of reaching the target within each budget of epochs, divergence included."""
    samples = log_epochs_samples(posterior, choices, 1, scale)
    stays = 1 - choices.risk(posterior)[:, None]
    return tuple(
        Chance(float(budget), float(((samples <= np.log(budget)) * stays).mean()))
        for budget in budgets
    )


def rate_sensitivity(posterior: Posterior, choices: RecommendedSettings) -> tuple[Sensitivity, ...]:
    """Return the cost of a wrong learning rate; empty if the evidence does not give it, as with tuned table rows."""
    if RATE not in choices or not posterior.knows_cost(RATE):
        return ()
    right, found = choices.cost(posterior), []
    for factor in WRONG_RATES:
        cost, risk = choices.cost_and_risk(posterior, factor)
        ends = Interval(*(float(value) for value in np.quantile(np.exp(cost - right), LEVELS)))
        found.append(Sensitivity(factor, ends, float(risk.mean())))
    return tuple(found)


def log_epochs_samples(
    posterior: Posterior, choices: RecommendedSettings, runs: float, scale: float
) -> Array:
    """Return equally likely log epochs: 25 normal quantiles per particle, spread by ``scale`` about their median."""
    mean, sd = posterior.log_epochs(choices.log_batch, runs)
    samples = (mean + choices.cost(posterior))[:, None] + sd[:, None] * NORMAL_NODES
    middle = np.median(samples)
    return np.asarray(middle + scale * (samples - middle))
