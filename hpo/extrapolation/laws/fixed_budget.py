"""The shortfall of training runs with a fixed number of epochs: the law of the epochs, inverted.

A batch size or settings that need f times the epochs to reach a target get as far in N epochs as the best ones do in N
/ f. Along a learning curve, the shortfall falls roughly as a power of the number of samples, S ~ n^-r (Hestness et al.
2017, arXiv:1712.00409; Kaplan et al. 2020, arXiv:2001.08361), so that after N epochs

    log S = log S_min + r log f(batch, settings)

where f is as in the laws of the epochs to target, and r is an unknown. S is a loss, or the odds (1 - m) / m against a
metric m (:class:`trainers.job.Question`). An irreducible part of the loss makes r smaller; it is not modelled
separately, because runs of a single length cannot separate the two.

If the evidence holds several lengths, it shows how S depends on them (``scales``), and r is not an unknown: a run that
the batch size makes f times too slow is as good as one of n = N / f samples at a small batch size, and r is the slope
of log S there. The critical batch size in f grows as the power c of n, not of N, because it depends on the loss reached
(McCandlish et al. 2018, arXiv:1812.06162, section 2.3; Zhang et al. 2024, arXiv:2410.21676, for a power of the length):

    n = N / f(B / B_crit(n))        B_crit(n) = B_crit(N) (n / N)^c

Far above the critical batch size, f is proportional to B / n^c, so n is a power of the number of updates N / B alone,
whatever the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
MOST_FEEDBACK = 0.9  # largest c times the exponent of f, so that n has exactly one solution
STEP = 0.01  # of a log batch size, for slopes
NEWTON_STEPS = 4


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


def log_shortening(
    log_growth: Callable[[Array], Array], log_batch: Array, critical_by_length: Array
) -> Array:
    """Return the log of N / n, the solution of N / n = f(B / B_crit(n)): (particles, places).

    ``log_growth`` maps log batch sizes (particles, places) to log f for the critical batch size of the full length N;
    ``critical_by_length`` (particles,) is c, at most ``MOST_FEEDBACK`` over the exponent of f.
    """
    start = np.atleast_2d(log_batch)
    power = np.asarray(critical_by_length)[:, None]
    shorter = log_growth(start + np.zeros_like(power))
    for _ in range(NEWTON_STEPS):
        here = log_growth(start + power * shorter)
        above = log_growth(start + power * shorter + STEP)
        shorter = shorter + (here - shorter) / (1 - power * (above - here) / STEP)
    return np.asarray(shorter)
