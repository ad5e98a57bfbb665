"""Momentum tuned together with the learning rate: it moves the critical batch, and costs nothing far below it.

    B_crit(m) = B_crit / cosh(log((1 - m) / (1 - m*)))

At the best learning rate every momentum serves alike at small batches (Shallue et al. 2018, arXiv:1811.03600, section
4; Zhang et al. 2019, arXiv:1907.04164): there lr / (1 - m) counts. At large ones the fewest updates are a sum of two
terms: the ceiling of the rate asks for about (1 - m) of plain SGD's, and momentum answers only after 1 / (1 - m)
updates. The sum is least at m*, and grows on both sides as the hyperbolic cosine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpo.extrapolation.laws.laws import log_critical_by_momentum, log_growth
from hpo.extrapolation.laws.parameters import Parameter
from hpo.extrapolation.laws.priors import Normal
from hpo.extrapolation.laws.response import Index, Response
from hpo.extrapolation.laws.setting_laws import MOMENTUM, Array, SettingLaw, Values

# m* = 0.87, between 0.7 and 0.95: what large batches are trained with; a small ladder hardly tells
BEST = Normal(2.0, 0.5)


@dataclass(frozen=True)
class MomentumLaw(SettingLaw):
    """The law of momentum; its coordinate is -log(1 - m)."""

    def parameters(self, *, response: bool) -> list[Parameter]:
        """The best coordinate at large batches; without a response those of any setting."""
        if not response:
            return super().parameters(response=False)
        return [Parameter(f"{MOMENTUM}.anchor", BEST.mean, BEST.sd)]

    def best(self, values: Values, log_batch: Array, momentum: Array | None = None) -> Array:
        """Best coordinate at each batch, the same at all: (particles, batches)."""
        if f"{MOMENTUM}.growth" in values:
            return super().best(values, log_batch, momentum)
        return np.repeat(values[f"{MOMENTUM}.anchor"][:, None], np.shape(log_batch)[-1], axis=1)

    def response(self, values: Values, log_batch: Array, momentum: Array | None = None) -> Response:  # noqa: ARG002
        """What another momentum than the best one costs at each batch."""
        away = np.atleast_2d(log_batch) - values["log_critical"][:, None]
        return MomentumResponse(
            self.best(values, log_batch),
            np.zeros(()),
            1.0,
            away,
            np.exp(values["log_sharpness"])[:, None],
            np.exp(values["log_exponent"])[:, None],
        )


@dataclass(frozen=True)
class MomentumResponse(Response):
    """``away`` is the logarithm of the batch over the critical one; the epochs grow as in ``laws.log_growth``."""

    away: Array
    sharpness: Array
    exponent: Array

    def at(self, index: Index) -> MomentumResponse:
        """The response at some of the places, repeated or not."""
        return MomentumResponse(
            self.best[:, index],
            self.curvature,
            self.unit,
            self.away[:, index],
            self.sharpness,
            self.exponent,
        )

    def cost(self, coordinate: Array, lowered: Array | None = None) -> Array:  # noqa: ARG002
        """Logarithm of the factor on the epochs: (particles, places)."""
        best, momentum = -np.expm1(-self.best), -np.expm1(-coordinate)
        shift = log_critical_by_momentum(momentum, best)
        return log_growth(self.away - shift, 0.0, self.sharpness, self.exponent) - log_growth(
            self.away, 0.0, self.sharpness, self.exponent
        )
