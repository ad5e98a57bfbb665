"""The law of descent of SGD: epochs to target by learning rate, batch size and momentum, for all trials of a ladder.

    E(r, B, m) = (E_free^q + E_floor^q)^(1/q)            E_floor = c B / (N (1 - m)),  N samples in an epoch
    E_free = A (1 - m) B / (r (1 - x)^(1/b))             x = F r / ((1 - m) B (1 - (r / r_max)^k)),  r_max ~ 1 + m

An update moves by r / (1 - m) times the gradient. The loss above its noise floor falls as the distance travelled to the
power -b, and must fall to the target minus the share x of the target that is noise. That share is proportional to the
temperature r / ((1 - m) B) (Smith and Le 2017, arXiv:1710.06451), and increases near the stability limit r_max: by a
factor of exactly 1 / (1 - r / r_max) for one mode of a quadratic (k = 1), and by less for a whole spectrum. Heavy-ball
momentum is stable up to a rate of 2 (1 + m) over the largest curvature (Polyak 1964), and decays no faster than
m^(t/2), so reducing a loss by a factor G takes about log G / (1 - m) updates at any rate.

At small batches the best noise share is b / (1 + b): the best rate is proportional to (1 - m) B, and the epochs are
E_min for any batch and momentum (Zhang et al. 2019, arXiv:1907.04164). At large batches the rate approaches r_max, and
the epochs grow in proportion to the batch size: to E_min B / B_crit with B_crit ~ (1 + m) / (1 - m), or E_floor. On
noisy quadratics, whose epochs are known exactly, the law holds to within 2 % (rms) over all rungs and rates of a
ladder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.laws.parameters import LawParameter
from hpo.extrapolation.laws.priors import NormalPrior
from hpo.extrapolation.laws.response import MOST
from hpo.extrapolation.laws.setting_laws import momentum_lag

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

DECAY, WALL = NormalPrior(math.log(1.4), 0.6), NormalPrior(math.log(1.9), 0.5)  # log b and log k
FEWEST_LAGS = NormalPrior(math.log(3.0), 0.5)  # log c: the loss must fall by a factor of 4 to 900
EXPONENT = NormalPrior(
    -0.02, 0.05
)  # log of the power of the growth: 1 if one recipe suits every rung
CORNER = NormalPrior(math.log(2.3), 0.25)  # log q
NEAR = 0.98  # noise share beyond which the cost is extended linearly, to stay finite
MOST_LAG = 5.3  # -log(1 - m) of the highest momentum considered
LAGS = 16


@dataclass(frozen=True)
class DescentLaw:
    """The law for the trials of one ladder; every method returns natural logarithms, shape (particles, places).

    ``momentum`` is the momentum to which B_crit and r_max refer; ``log_anchor`` is the log batch size whose best rate
    is a parameter. ``log_samples`` is log N, or None if N is unknown, in which case there is no floor.
    """

    momentum: float
    log_anchor: float
    log_samples: float | None
    tuned: bool

    def parameters(self) -> list[LawParameter]:
        """Return the unknowns other than E_min, B_crit and the best rate at the anchor."""
        named = [("log_decay", DECAY), ("log_wall", WALL)]
        if self.log_samples is not None:
            named += [("log_fewest_lags", FEWEST_LAGS), ("log_corner", CORNER)]
        return [LawParameter(f"descent.{name}", prior.mean, prior.sd) for name, prior in named]

    @property
    def lags(self) -> Array:
        """The value of -log(1 - m) for ``momentum``: (1,)."""
        return momentum_lag(np.array([self.momentum]))

    @property
    def log_speedup(self) -> float:
        """The log of (1 + m) / (1 - m), the factor by which ``momentum`` increases B_crit."""
        return float(log_speedup(self.lags)[0])

    def log_noise_scale(self, values: Values) -> Array:
        """Return the log of the batch size at which the best rate levels off, B_n in r_max / (1 + B_n / B)."""
        decay = np.exp(values["descent.log_decay"])
        return np.asarray(values["log_critical"] - np.log1p(decay) / decay)

    def log_best(self, values: Values, log_batch: Array, lags: Array) -> Array:
        """Return the log ratio of the best rate to r_max."""
        noise = self._log_noise(values, log_batch, lags)
        decay = np.broadcast_to(values["descent.log_decay"][:, None], noise.shape)
        wall = np.broadcast_to(values["descent.log_wall"][:, None], noise.shape)
        return log_best_share(noise, decay, wall)

    def log_ceiling(self, values: Values, lags: Array) -> Array:
        """Return log r_max, derived from the best rate at the anchor."""
        at_anchor = self.log_best(values, np.array([self.log_anchor]), self.lags)
        shift = np.log(2 - np.exp(-lags)) - math.log1p(self.momentum)
        return np.asarray(values["learning_rate.anchor"][:, None] - at_anchor + shift)

    def log_growth(self, values: Values, log_batch: Array, lags: Array) -> Array:
        """Return the log ratio of the epochs at the best rate to E_min."""
        return self.log_epochs(values, log_batch, lags, self.log_best(values, log_batch, lags))

    def log_epochs(self, values: Values, log_batch: Array, lags: Array, log_share: Array) -> Array:
        """Return the log ratio of the epochs to E_min, at the rate r for which ``log_share`` = log(r / r_max)."""
        decay = np.exp(values["descent.log_decay"])[:, None]
        wall = np.exp(values["descent.log_wall"])[:, None]
        noise = self._log_noise(values, log_batch, lags) + log_share
        left = -np.expm1(np.minimum(wall * log_share, -1e-3))
        spent = np.exp(np.minimum(noise, 20.0)) / left
        slow = -np.log1p(-np.minimum(spent, NEAR)) + np.maximum(spent - NEAR, 0.0) / (1 - NEAR)
        # beyond r_max no rate is faster
        free = (
            np.minimum(_log_least(decay) + slow / decay, MOST) - noise + np.maximum(log_share, 0.0)
        )
        if self.log_samples is None:
            return np.asarray(free)
        floor = (
            (values["descent.log_fewest_lags"] - values["log_min_epochs"])[:, None]
            + log_batch
            + lags
            - self.log_samples
        )
        corner = np.exp(values["descent.log_corner"])[:, None]
        return np.asarray(np.logaddexp(corner * free, corner * floor) / corner)

    def best_lags(self, values: Values, log_batch: Array) -> Array:
        """Return -log(1 - m) for the momentum with the fewest epochs at each batch size: (particles, batches)."""
        grid = np.linspace(0.0, MOST_LAG, LAGS)
        cost = self.log_growth(values, np.repeat(log_batch, LAGS), np.tile(grid, len(log_batch)))
        cost = cost.reshape(len(cost), len(log_batch), LAGS)
        at = np.clip(np.argmin(cost, axis=2), 1, LAGS - 2)[:, :, None]
        before, here, after = (
            np.take_along_axis(cost, at + step, axis=2)[:, :, 0] for step in (-1, 0, 1)
        )
        bend = np.maximum(before - 2 * here + after, 1e-9)
        moved = np.clip((before - after) / (2 * bend), -1.0, 1.0)
        return np.asarray((at[:, :, 0] + moved) * (grid[1] - grid[0]))

    def _log_noise(self, values: Values, log_batch: Array, lags: Array) -> Array:
        """Return log F r_max / ((1 - m) B): the noise share at r_max without the stability limit's factor."""
        decay = np.exp(values["descent.log_decay"])[:, None]
        return np.asarray(
            values["log_critical"][:, None]
            - log_batch
            + log_speedup(lags)
            - self.log_speedup
            + _log_least(decay)
        )


def log_speedup(lags: Array) -> Array:
    """Return log((1 + m) / (1 - m)) as a function of -log(1 - m)."""
    return np.asarray(np.log(2 * np.exp(lags) - 1))


def _log_least(decay: Array) -> Array:
    """Return the logarithm of x (1 - x)^(1/b) at x = b / (1 + b), the best noise share without a stability limit."""
    return np.asarray(np.log(decay) - (1 + 1 / decay) * np.log1p(decay))


def log_best_share(log_noise: Array, log_decay: Array, log_wall: Array) -> Array:
    """Return log(r / r_max) of the best rate, which maximizes r (1 - x)^(1/b); arguments and result have one shape.

    The value is interpolated in a table of its ratio to 1 / (1 + noise / (b / (1 + b))), its limit at both ends.
    """
    from scipy.ndimage import map_coordinates

    axes, table = _best_shares()
    at = [
        (value - axis[0]) / (axis[1] - axis[0])
        for value, axis in zip((log_noise, log_decay, log_wall), axes, strict=True)
    ]
    left = map_coordinates(table, at, order=1, mode="nearest")
    return np.asarray(left - np.logaddexp(0.0, log_noise + np.log1p(np.exp(-log_decay))))


@lru_cache(maxsize=1)
def _best_shares() -> tuple[tuple[Array, Array, Array], Array]:
    """Return axes and table of :func:`log_best_share`; the best rate solves x (1 + k u^k / (1 - u^k)) = b (1 - x)."""
    axes = np.linspace(-12.0, 12.0, 97), np.linspace(-2.0, 3.0, 21), np.linspace(-2.0, 3.0, 21)
    log_noise, decay, wall = np.meshgrid(axes[0], np.exp(axes[1]), np.exp(axes[2]), indexing="ij")
    bound = np.logaddexp(0.0, log_noise + np.log1p(1 / decay))
    low, high = -bound - 6.0, np.minimum(-bound + 2.0, -1e-12)
    for _ in range(50):
        middle = (low + high) / 2
        left = -np.expm1(wall * middle)
        spent = np.exp(np.minimum(log_noise + middle, 100.0)) / left
        beyond = spent * (1 + wall * (1 - left) / left) > decay * (1 - spent)
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return axes, (low + high) / 2 + bound
