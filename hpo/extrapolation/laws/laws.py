"""The laws of large-batch training: formulas only, each with its source; every argument may be an array.

Batch sizes are global batch sizes in samples, epochs are samples processed over data-set size. No law here is
fitted; ``posterior`` does that.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Number: TypeAlias = float | Array


def epochs_hyperbola(batch: Number, min_epochs: Number, critical_batch: Number) -> Array:
    """Epochs to target, E = E_min (1 + B / B_crit): twice the epochs at the critical batch.

    McCandlish et al. 2018, arXiv:1812.06162, equation 2.11 with E = S B.
    """
    return np.asarray(min_epochs * (1 + np.asarray(batch) / critical_batch))


def log_growth(
    log_batch: Number, log_critical: Number, sharpness: Number = 1.0, exponent: Number = 1.0
) -> Array:
    """Logarithm of E / E_min for the generalised hyperbola (1 + (B / B_crit)^s)^(p / s).

    ``sharpness`` s = 1 and ``exponent`` p = 1 give the hyperbola. A larger s turns faster from perfect
    scaling (flat) to the large-batch limit E ~ B^p; p = 1 is maximal data parallelism, where more samples
    per step save no step (the three regimes of Shallue et al. 2018, arXiv:1811.03600), p < 1 a recipe that
    keeps gaining from its retuning. Computed without overflow.
    """
    away = np.asarray(log_batch) - log_critical
    return np.asarray(exponent * np.logaddexp(0.0, sharpness * away) / sharpness)


def epochs_generalised(
    batch: Number,
    min_epochs: Number,
    critical_batch: Number,
    sharpness: Number = 1.0,
    exponent: Number = 1.0,
) -> Array:
    """Epochs to target, E = E_min (1 + (B / B_crit)^s)^(p / s); see :func:`log_growth`."""
    growth = np.exp(log_growth(np.log(batch), np.log(critical_batch), sharpness, exponent))
    return np.asarray(min_epochs * growth)


def log_small_batch_excess(log_batch: Number, log_low: Number, power: Number = 1.0) -> Array:
    """Logarithm of (1 + B_low / B)^q: what small batches need more of Adam with a fixed beta2.

    Nothing far above B_low; far below it the epochs grow as B^-q, at q = 1 the updates are as many at every batch.
    """
    return np.asarray(power * np.logaddexp(0.0, np.asarray(log_low) - log_batch))


def epochs_power(batch: Number, epochs_at_one: Number, exponent: Number) -> Array:
    """Epochs to target, E = c B^p: no regime of perfect scaling; a baseline."""
    return np.asarray(epochs_at_one * np.asarray(batch, dtype=float) ** exponent)


def learning_rate_linear(batch: Number, base_rate: Number, base_batch: Number) -> Array:
    """The linear rule, lr = lr_0 B / B_0 (Goyal et al. 2017, arXiv:1706.02677, section 2.1)."""
    return np.asarray(base_rate * np.asarray(batch) / base_batch)


def learning_rate_sqrt(batch: Number, base_rate: Number, base_batch: Number) -> Array:
    """The square-root rule, lr = lr_0 sqrt(B / B_0).

    Krizhevsky 2014, arXiv:1404.5997; for Adam Malladi et al. 2022, arXiv:2205.10287.
    """
    return np.asarray(base_rate * np.sqrt(np.asarray(batch) / base_batch))


def learning_rate_saturating(
    batch: Number, max_rate: Number, noise_scale: Number, exponent: Number = 1.0
) -> Array:
    """The best rate, lr = lr_max / (1 + B_noise / B)^a: a power a of B far below the noise scale, then flat.

    a = 1 for SGD, between 0.5 and 1 for Adam (McCandlish et al. 2018, arXiv:1812.06162, equation 2.6).
    """
    return np.asarray(max_rate * (1 + noise_scale / np.asarray(batch)) ** (-np.asarray(exponent)))


def learning_rate_surge(batch: Number, max_rate: Number, noise_scale: Number) -> Array:
    """The best rate of Adam-like optimizers: lr_max / (0.5 (sqrt(B_noise / B) + sqrt(B / B_noise))).

    It grows like sqrt(B), peaks at the noise scale, and falls again (Li et al. 2024, arXiv:2405.14578).
    """
    root = np.sqrt(noise_scale / np.asarray(batch))
    return np.asarray(2 * max_rate / (root + 1 / root))


def learning_rate_legw(batch: Number, base_rate: Number, base_batch: Number) -> Array:
    """The rate of LARS by LEGW, lr = lr_0 sqrt(B / B_0), together with :func:`warmup_power` at p = 1.

    You et al. 2019, arXiv:1901.08256; the square root keeps the variance of an update.
    """
    return learning_rate_sqrt(batch, base_rate, base_batch)


def lars_layer_rate(
    trust_coefficient: Number,
    weight_norm: Number,
    gradient_norm: Number,
    weight_decay: Number = 0.0,
) -> Array:
    """The rate of one layer over the global one, eta |w| / (|g| + wd |w|) (You et al. 2017, arXiv:1708.03888, eq. 6).

    Times the global rate it makes an update of eta lr |w| whatever the gradient's size.
    """
    weight_norm = np.asarray(weight_norm)
    return np.asarray(
        trust_coefficient * weight_norm / (gradient_norm + weight_decay * weight_norm)
    )


def trust_coefficient_sqrt(batch: Number, base_coefficient: Number, base_batch: Number) -> Array:
    """The trust coefficient where the global rate is kept, eta = eta_0 sqrt(B / B_0).

    An update is eta lr |w|, so only the product counts, and LEGW lets that grow with the square root of the batch.
    """
    return np.asarray(base_coefficient * np.sqrt(np.asarray(batch) / base_batch))


def noise_temperature(
    learning_rate: Number, batch: Number, train_samples: Number, momentum: Number = 0.0
) -> Array:
    """Smith's noise scale of SGD, g = lr (N / B - 1) / (1 - m), about lr N / (B (1 - m)).

    Smith and Le 2017, arXiv:1710.06451; momentum in Smith et al. 2017, arXiv:1711.00489, section 2. Zero with the
    whole data set as one batch.
    """
    return np.asarray(
        learning_rate * (train_samples / np.asarray(batch) - 1) / (1 - np.asarray(momentum))
    )


def batch_by_control(batch: Number, rate_factor: Number) -> Array:
    """Batch-size control: instead of a rate times ``rate_factor``, a batch of B / rate_factor.

    It leaves lr N / (B (1 - m)) as the decay of the rate would (Smith et al. 2017, arXiv:1711.00489), as long as B is
    far below the data set and below the critical batch.
    """
    return np.asarray(np.asarray(batch) / rate_factor)


def momentum_by_control(batch: Number, base_momentum: Number, base_batch: Number) -> Array:
    """The momentum that keeps lr N / (B (1 - m)) at the same rate, 1 - m = (1 - m_0) B_0 / B; 0 where that is below it.

    Smith et al. 2017, arXiv:1711.00489, section 3.2.
    """
    lag = (1 - np.asarray(base_momentum)) * base_batch / np.asarray(batch)
    return np.asarray(np.maximum(1 - lag, 0.0))


def log_critical_by_momentum(momentum: Number, best_momentum: Number) -> Array:
    """Logarithm of B_crit(m) / B_crit(m*) = 1 / cosh(log((1 - m) / (1 - m*))), for momentum tuned with the rate.

    The fewest updates are about a (1 - m) + b / (1 - m): the ceiling of the rate, and how fast momentum answers. The
    first term is heavy ball's on a quadratic (Polyak 1964; Zhang et al. 2019, arXiv:1907.04164).
    """
    miss = np.log1p(-np.asarray(momentum)) - np.log1p(-np.asarray(best_momentum))
    return np.asarray(np.log(2) - np.logaddexp(miss, -miss))


def warmup_power(
    batch: Number, base_warmup_epochs: Number, base_batch: Number, exponent: Number = 1.0
) -> Array:
    """Warmup in epochs, w = w_0 (B / B_0)^p.

    p = 1 is LEGW (You et al. 2019, arXiv:1901.08256): the same number of warmup updates at every batch; p = 0
    keeps the epochs (Goyal et al. 2017).
    """
    return np.asarray(base_warmup_epochs * (np.asarray(batch) / base_batch) ** exponent)
