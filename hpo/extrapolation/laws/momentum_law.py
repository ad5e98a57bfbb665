"""Momentum tuned together with the learning rate: it shifts the critical batch size and has no effect far below.

    B_crit(m) = B_crit / cosh(log((1 - m) / (1 - m*)))

At small batches every momentum is equally good with its best learning rate (Shallue et al. 2018, arXiv:1811.03600,
section 4; Zhang et al. 2019, arXiv:1907.04164): only lr / (1 - m) matters. At large batches, the minimum number of
updates is the sum of two terms: the limit on the rate requires about (1 - m) times the updates of plain SGD, and
momentum takes 1 / (1 - m) updates to respond. The sum is smallest at m*, and grows on both sides as the hyperbolic
cosine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpo.extrapolation.laws.laws import log_critical_by_momentum, log_growth
from hpo.extrapolation.laws.parameters import LawParameter
from hpo.extrapolation.laws.priors import NormalPrior
from hpo.extrapolation.laws.response import Index, SettingResponse
from hpo.extrapolation.laws.setting_laws import MOMENTUM, Array, SettingLaw, Values

# m* = 0.87, between 0.7 and 0.95, as in published large-batch recipes; a small ladder hardly constrains it
BEST = NormalPrior(2.0, 0.5)


@dataclass(frozen=True)
class MomentumLaw(SettingLaw):
    """The law of momentum; its coordinate is -log(1 - m)."""

    def parameters(self, *, response: bool) -> list[LawParameter]:
        """Return the best coordinate at large batches, or, without ``response``, any setting's parameters."""
        if not response:
            return super().parameters(response=False)
        return [LawParameter(f"{MOMENTUM}.anchor", BEST.mean, BEST.sd)]

    def best(self, values: Values, log_batch: Array, momentum: Array | None = None) -> Array:
        """Return the best coordinate, which is the same at every batch size: (particles, batches)."""
        if f"{MOMENTUM}.growth" in values:
            return super().best(values, log_batch, momentum)
        return np.repeat(values[f"{MOMENTUM}.anchor"][:, None], np.shape(log_batch)[-1], axis=1)

    def response(
        self,
        values: Values,
        log_batch: Array,
        momentum: Array | None = None,  # noqa: ARG002
    ) -> SettingResponse:
        """Return the cost of deviating from the best momentum at each batch size."""
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
class MomentumResponse(SettingResponse):
    """The cost of a momentum; ``away`` is the log ratio of the batch size to the critical one, as in ``log_growth``."""

    away: Array
    sharpness: Array
    exponent: Array

    def at(self, index: Index) -> MomentumResponse:
        """Return the response at the places selected by ``index``, in which a place may occur more than once."""
        return MomentumResponse(
            self.best[:, index],
            self.curvature,
            self.unit,
            self.away[:, index],
            self.sharpness,
            self.exponent,
        )

    def cost(self, coordinate: Array, lowered: Array | None = None) -> Array:  # noqa: ARG002
        """Return the log of the factor that multiplies the epochs: (particles, places)."""
        best, momentum = -np.expm1(-self.best), -np.expm1(-coordinate)
        shift = log_critical_by_momentum(momentum, best)
        return log_growth(self.away - shift, 0.0, self.sharpness, self.exponent) - log_growth(
            self.away, 0.0, self.sharpness, self.exponent
        )
