"""The shortfall of training runs with a fixed number of epochs: the law of the epochs, inverted.

A batch size or settings that need f times the epochs to reach a target get as far in N epochs as the best ones do in N
/ f. Along a learning curve, the shortfall falls roughly as a power of the number of samples, S ~ n^-r (Hestness et al.
2017, arXiv:1712.00409; Kaplan et al. 2020, arXiv:2001.08361), so that after N epochs

    log S = log S_min + r log f(batch, settings)

where f is as in the laws of the epochs to target, and r is an unknown. S is a loss, or the odds (1 - m) / m against a
metric m (:class:`trainers.job.Question`). An irreducible part of the loss makes r smaller; it is not modelled
separately, because runs of a single length cannot separate the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.laws.parameters import LawParameter
from hpo.extrapolation.laws.priors import NormalPrior

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

# exponents of published learning curves lie between 0.07 and 0.5 for the whole loss; the error on small images falls
# roughly in proportion to the number of samples in a run
GAIN = NormalPrior(float(np.log(0.3)), 0.8)
# scatter of log S between tuned recipes and between seeds: about r times that of log epochs, with wide priors
RECIPE_SCATTER, TRIAL_SCATTER = (
    NormalPrior(float(np.log(0.01)), 1.0),
    NormalPrior(float(np.log(0.02)), 1.2),
)
LEAST_SCATTER = 0.002  # of log S between seeds: evaluations do not resolve finer differences


@dataclass(frozen=True)
class FixedBudget:
    """Training runs with a budget of ``epochs`` each."""

    epochs: float

    @property
    def log_epochs(self) -> float:
        """The log of the budget in epochs."""
        return float(np.log(self.epochs))

    def parameters(self) -> list[LawParameter]:
        """Return the unknown of this law, r."""
        return [LawParameter("log_gain", GAIN.mean, GAIN.sd)]

    def gain(self, values: Values) -> Array:
        """Return r, the slope of log S against the log of the factor on the epochs: (particles,)."""
        return np.asarray(np.exp(values["log_gain"]))
