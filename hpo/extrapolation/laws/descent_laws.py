"""The laws of learning rate and momentum for trials whose epochs all follow one law of descent (``descent``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpo.extrapolation.laws.descent import DescentLaw
from hpo.extrapolation.laws.parameters import LawParameter, logistic
from hpo.extrapolation.laws.priors import NormalPrior
from hpo.extrapolation.laws.rate_law import RateLaw
from hpo.extrapolation.laws.response import MOST, BoundedResponse, Index, SettingResponse
from hpo.extrapolation.laws.setting_laws import Array, SettingLaw, Values, momentum_lag

RESPONSE = {
    "log_margin": NormalPrior(
        float(np.log(0.1)), 1.2
    ),  # a quadratic diverges at r_max, networks at up to twice r_max
    "follow": NormalPrior(-2.5, 1.5),  # logit of how far the stability limit follows the best rate
    "log_divergence_width": NormalPrior(float(np.log(0.03)), 1.0),
}


@dataclass(frozen=True, kw_only=True)
class DescentRate(RateLaw):
    """The law of SGD's learning rate: the best value and the cost of other values follow from the law of descent."""

    descent: DescentLaw

    def parameters(self, *, response: bool) -> list[LawParameter]:
        """Return the unknowns: the best rate at the largest rung, the law's, and the stability limit's."""
        assert response, "the law of descent needs single trials"
        return [
            LawParameter("learning_rate.anchor", self.centre, self.spread),
            *self.descent.parameters(),
            *(
                LawParameter(f"learning_rate.{name}", prior.mean, prior.sd)
                for name, prior in RESPONSE.items()
            ),
        ]

    def log_noise(self, values: Values) -> Array:
        """Return the log of the batch size, in samples, at which the best rate levels off: (particles,)."""
        return self.descent.log_noise_scale(values)

    def best(self, values: Values, log_batch: Array, momentum: Array | None = None) -> Array:
        """Return the log of the best rate at each batch size (and momentum): (particles, batches)."""
        log_batch, lags = np.asarray(log_batch), self._lags(momentum)
        return self.descent.log_best(values, log_batch, lags) + self.descent.log_ceiling(
            values, lags
        )

    def ceiling(self, values: Values, momentum: Array | None = None) -> Array:
        """Return the logarithm of the upper limit r_max of the rate at each momentum: (particles, 1 or momenta)."""
        return self.descent.log_ceiling(values, self._lags(momentum))

    def response(
        self, values: Values, log_batch: Array, momentum: Array | None = None
    ) -> DescentResponse:
        """Return the cost of deviating from the best rate at each batch size (and momentum).

        If momentum differs between trials but is not tuned, the cost of a suboptimal momentum is included.
        """
        log_batch, lags = np.asarray(log_batch), self._lags(momentum)
        share, ceiling = (
            self.descent.log_best(values, log_batch, lags),
            self.descent.log_ceiling(values, lags),
        )
        least = (
            self.descent.log_epochs(values, log_batch, lags, share)
            if self.descent.tuned or momentum is None
            else self.descent.log_growth(values, log_batch, self.descent.lags)
        )
        follow = logistic(values["learning_rate.follow"])[:, None]
        limit = ceiling + np.exp(values["learning_rate.log_margin"])[:, None] + follow * share
        width = np.exp(values["learning_rate.log_divergence_width"])[:, None]
        return DescentResponse(
            share + ceiling,
            np.zeros(()),
            1.0,
            limit,
            width,
            self.descent,
            values,
            np.broadcast_to(log_batch, share.shape[1]),
            np.broadcast_to(lags, share.shape[1]),
            np.broadcast_to(ceiling, share.shape),
            least,
        )

    def _lags(self, momentum: Array | None) -> Array:
        return (
            self.descent.lags
            if momentum is None or self.momentum is None
            else momentum_lag(np.asarray(momentum))
        )


@dataclass(frozen=True)
class DescentResponse(BoundedResponse):
    """The cost under the law of descent; ``log_batch`` and ``lags`` are (places,), other arrays (particles, places).

    ``least`` is the log ratio of the epochs to E_min at which the cost is zero; ``ceiling`` is the log of r_max.
    """

    descent: DescentLaw
    values: Values
    log_batch: Array
    lags: Array
    ceiling: Array
    least: Array

    def at(self, index: Index) -> DescentResponse:
        """Return the response at the places selected by ``index``, in which a place may occur more than once."""
        return DescentResponse(
            self.best[:, index],
            self.curvature,
            self.unit,
            self.limit[:, index],
            self.width,
            self.descent,
            self.values,
            self.log_batch[index],
            self.lags[index],
            self.ceiling[:, index],
            self.least[:, index],
        )

    def cost(self, coordinate: Array, lowered: Array | None = None) -> Array:  # noqa: ARG002
        """Return the log of the factor that multiplies the epochs: (particles, places)."""
        epochs = self.descent.log_epochs(
            self.values, self.log_batch, self.lags, coordinate - self.ceiling
        )
        return np.asarray(np.clip(epochs - self.least, -MOST, MOST))


@dataclass(frozen=True, kw_only=True)
class DescentMomentum(SettingLaw):
    """The law of SGD's momentum, tuned together with the learning rate; its coordinate is -log(1 - m)."""

    descent: DescentLaw

    def parameters(self, *, response: bool) -> list[LawParameter]:
        """Return no parameters, because the momentum shares those of the learning rate."""
        assert response, "the law of descent needs single trials"
        return []

    def best(self, values: Values, log_batch: Array, momentum: Array | None = None) -> Array:  # noqa: ARG002
        """Return the best coordinate at each batch size: (particles, batches)."""
        batches, at = np.unique(log_batch, return_inverse=True)
        return self.descent.best_lags(values, batches)[:, at]

    def response(
        self,
        values: Values,
        log_batch: Array,
        momentum: Array | None = None,  # noqa: ARG002
    ) -> DescentMomentumResponse:
        """Return the cost of deviating from the best momentum at each batch size, each momentum with its best rate."""
        best = self.best(values, log_batch)
        return DescentMomentumResponse(
            best,
            np.zeros(()),
            1.0,
            self.descent,
            values,
            np.asarray(log_batch),
            self.descent.log_growth(values, np.asarray(log_batch), best),
        )


@dataclass(frozen=True)
class DescentMomentumResponse(SettingResponse):
    """The cost of a momentum; ``log_batch`` is (places,), ``least`` the log ratio to E_min at the best momentum."""

    descent: DescentLaw
    values: Values
    log_batch: Array
    least: Array

    def at(self, index: Index) -> DescentMomentumResponse:
        """Return the response at the places selected by ``index``, in which a place may occur more than once."""
        return DescentMomentumResponse(
            self.best[:, index],
            self.curvature,
            self.unit,
            self.descent,
            self.values,
            self.log_batch[index],
            self.least[:, index],
        )

    def cost(self, coordinate: Array, lowered: Array | None = None) -> Array:  # noqa: ARG002
        """Return the log of the factor that multiplies the epochs: (particles, places)."""
        return (
            self.descent.log_growth(self.values, self.log_batch, np.maximum(coordinate, 0.0))
            - self.least
        )
