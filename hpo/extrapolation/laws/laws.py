"""How the epochs and the best learning rate change with the batch size: formulas only, each with its source.

Every argument may be an array. Batch sizes are global batch sizes in samples; epochs are samples processed divided by
the size of the data set. The unknowns are inferred in :mod:`hpo.extrapolation.inference`; rules of thumb are in
:mod:`search_spaces.scaling_rules`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Number: TypeAlias = float | Array


def log_growth(
    log_batch: Number, log_critical: Number, sharpness: Number = 1.0, exponent: Number = 1.0
) -> Array:
    """Return the logarithm of E / E_min for the generalised hyperbola (1 + (B / B_crit)^s)^(p / s).

    ``sharpness`` s = 1 and ``exponent`` p = 1 give the hyperbola. A larger s makes the transition from perfect scaling
    (flat) to the large-batch limit E ~ B^p sharper. p = 1 is maximal data parallelism, where more samples per step save
    no steps (the three regimes of Shallue et al. 2018, arXiv:1811.03600); p < 1 describes a recipe that still gains
    when it is retuned. The computation cannot overflow.
    """
    away = np.asarray(log_batch) - log_critical
    return np.asarray(exponent * np.logaddexp(0.0, sharpness * away) / sharpness)


def log_small_batch_excess(log_batch: Number, log_low: Number, power: Number = 1.0) -> Array:
    """Return the logarithm of (1 + B_low / B)^q: the excess epochs of small batches under Adam with a fixed beta2.

    The excess vanishes far above B_low. Far below, the epochs grow as B^-q (q = 1: every batch needs the same updates).
    """
    return np.asarray(power * np.logaddexp(0.0, np.asarray(log_low) - log_batch))


def log_critical_by_momentum(momentum: Number, best_momentum: Number) -> Array:
    """Return log(B_crit(m) / B_crit(m*)) = -log(cosh(log((1 - m) / (1 - m*)))), for momentum tuned with the rate.

    The minimum number of updates is about a (1 - m) + b / (1 - m): the terms come from the limit on the rate and from
    the response time of momentum. The first term is known for heavy-ball momentum on a quadratic (Polyak 1964; Zhang et
    al. 2019, arXiv:1907.04164).
    """
    miss = np.log1p(-np.asarray(momentum)) - np.log1p(-np.asarray(best_momentum))
    return np.asarray(np.log(2) - np.logaddexp(miss, -miss))
