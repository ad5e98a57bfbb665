"""How the best learning rate and the stability limit change with the batch size and the momentum.

    best(B) = lr_max / (1 + (N / B)^s)^(a/s)          stable below  limit(B) = lr_max^(1-k) best(B)^k e^margin

The best rate grows as B to the power a far below the noise scale N, and is flat far above it; s = 1 is the published
form (McCandlish et al. 2018, arXiv:1812.06162, equation 2.6). The stability limit is a property of the curvature: with
k = 0 it is the same at every batch size, as on a quadratic, so that every trial at any rung, diverged or not, is
evidence about lr_max; with k = 1 it follows the best rate.
If trials differ in momentum, N ~ 1 / (1 - m) and lr_max ~ 1 + m: at small batches, lr / (1 - m) matters (Smith and Le
2017, arXiv:1710.06451), and at large ones, the heavy-ball limit lr h < 2 (1 + m) (Polyak 1964).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpo.extrapolation.laws.parameters import LawParameter, logistic
from hpo.extrapolation.laws.priors import NormalPrior
from hpo.extrapolation.laws.response import BoundedResponse, RateResponse
from hpo.extrapolation.laws.setting_laws import (
    MOMENTUM,
    Array,
    SettingLaw,
    Values,
    momentum_lag,
    setting_values,
)

# prior on a if none is published for the optimizer: between the square-root and the linear scaling rule
EXPONENT = NormalPrior(0.75, 0.2)
# the noise scale is an order-of-magnitude predictor of the critical batch (arXiv:1812.06162, section 4)
NOISE_OVER_CRITICAL = NormalPrior(0.0, 1.5)
# Adam's best rate stops growing at a smaller batch size than the one at which the epochs start to grow, by an unknown
# factor: on two language models (arXiv:2410.21676) one rate is best from 64 to 16,384 sequences, while the critical
# batch size is in the thousands
NOISE_OVER_CRITICAL_OF_ADAM = NormalPrior(-2.0, 3.0)
RESPONSE = {
    "log_sharpness": NormalPrior(
        0.2, 0.25
    ),  # of the transition from B^a to flat; 1 is the published form
    # networks are flatter than a quadratic
    "log_below": NormalPrior(float(np.log(1.5)), 0.8),
    "log_above": NormalPrior(float(np.log(0.8)), 0.6),
    "log_wall": NormalPrior(float(np.log(1.0)), 0.5),
    "log_margin": NormalPrior(
        float(np.log(0.8)), 0.6
    ),  # runs are lost at two to three times lr_max
    "follow": NormalPrior(0.0, 1.5),  # logit of k
    "log_divergence_width": NormalPrior(float(np.log(0.04)), 0.6),
}


@dataclass(frozen=True)
class RateLaw(SettingLaw):
    """The law of the learning rate, anchored at ``momentum``, which is None if all trials have the same momentum."""

    exponent: NormalPrior = EXPONENT
    momentum: float | None = None
    noise_over_critical: NormalPrior = NOISE_OVER_CRITICAL

    def parameters(self, *, response: bool) -> list[LawParameter]:
        """Return the unknowns of this law; ``response`` adds those of the rate's cost and stability limit."""
        found = [
            LawParameter("learning_rate.anchor", self.centre, self.spread),
            _parameter("learning_rate.exponent", self.exponent),
            _parameter("learning_rate.log_noise_over_critical", self.noise_over_critical),
        ]
        if not response:
            return [*found, self.scatter_parameter()]
        return [
            *found,
            *(_parameter(f"learning_rate.{name}", prior) for name, prior in RESPONSE.items()),
        ]

    def log_noise(self, values: Values) -> Array:
        """Return the logarithm of the noise scale at the anchor's momentum, in samples: (particles,)."""
        return np.asarray(values["log_critical"] + values["learning_rate.log_noise_over_critical"])

    def best(self, values: Values, log_batch: Array, momentum: Array | None = None) -> Array:
        """Return the log of the best rate at each batch size (and momentum): (particles, batches)."""
        return self.ceiling(values, momentum) - self._damping(
            values, np.asarray(log_batch), momentum
        )

    def ceiling(self, values: Values, momentum: Array | None = None) -> Array:
        """Return the logarithm of lr_max, the best rate without noise, at each momentum: (particles, 1 or momenta)."""
        at_anchor = self._damping(values, np.array([self.log_anchor]), None)
        shift = 0.0
        if momentum is not None and self.momentum is not None:
            shift = (np.log1p(momentum) - np.log1p(self.momentum))[None, :]
        return np.asarray(values["learning_rate.anchor"][:, None] + at_anchor + shift)

    def response(
        self, values: Values, log_batch: Array, momentum: Array | None = None
    ) -> BoundedResponse:
        """Return the cost of deviating from the best rate at each batch size (and momentum).

        Where noise limits the best rate, the response is rounded. The more the ceiling limits it, the straighter the
        slope below it and the steeper the wall above it, in proportion to (1 - k), the part of the stability limit that
        is set by the curvature. On noisy quadratics, both sides shrink as 1 - (best / lr_max)^2.
        """
        below, above, wall, width = (
            np.exp(values[f"learning_rate.{name}"])[:, None]
            for name in ("log_below", "log_above", "log_wall", "log_divergence_width")
        )
        ceiling, damping = (
            self.ceiling(values, momentum),
            self._damping(values, np.asarray(log_batch), momentum),
        )
        follow = logistic(values["learning_rate.follow"])[:, None]
        room = np.maximum(1 - ((1 - follow) * np.exp(np.minimum(-damping, 100.0))) ** 2, 0.02)
        limit = ceiling + np.exp(values["learning_rate.log_margin"])[:, None] - follow * damping
        return RateResponse(
            ceiling - damping, np.zeros(()), 1.0, limit, width, below, above, wall, room
        )

    def _damping(self, values: Values, log_batch: Array, momentum: Array | None) -> Array:
        """Return log(lr_max / best): (particles, batches)."""
        log_noise = self.log_noise(values)[:, None]
        if momentum is not None and self.momentum is not None:
            log_noise = (
                log_noise
                + (momentum_lag(momentum) - momentum_lag(np.array(self.momentum)))[None, :]
            )
        away = log_noise - np.atleast_2d(log_batch)
        exponent = values["learning_rate.exponent"][:, None]
        if "learning_rate.log_sharpness" not in values:
            return np.asarray(exponent * np.logaddexp(0, away))
        sharpness = np.exp(values["learning_rate.log_sharpness"])[:, None]
        return np.asarray(exponent / sharpness * np.logaddexp(0, sharpness * away))


def momentum_values(settings: Sequence[Mapping[str, object]]) -> Array:
    """Return the momentum in each element of ``settings``, 0 where it is missing."""
    return np.asarray(np.nan_to_num(setting_values(MOMENTUM, settings)))


def anchor_momentum(laws: Sequence[SettingLaw]) -> float:
    """Return the momentum to which the best learning rate of ``laws`` refers; 0 if all trials have the same momentum.

    Trials may differ in a momentum that is not scaled with the batch size, and so has no law of its own.
    """
    anchors = (law.momentum for law in laws if isinstance(law, RateLaw))
    return next((anchor for anchor in anchors if anchor is not None), 0.0)


def _parameter(name: str, prior: NormalPrior) -> LawParameter:
    return LawParameter(name, prior.mean, prior.sd)
