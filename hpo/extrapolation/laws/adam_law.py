"""The law of Adam and AdamW: the best rate stops growing, and may fall, near the batch size with the fewest epochs.

    growth(B) = (1 + (B / B_crit)^s)^(p / s) (1 + B_low / B)^q        fewest epochs near B* = sqrt(B_crit B_low)
    best(B)   = lr_peak (1 + (N / B)^t)^(-a / t) (1 + (B / N)^t)^(-f / t)         N near B*

With beta2 fixed, small batches need more epochs: the average of the squared gradients spans too few samples, so it is
as noisy as the gradient that it normalizes (arXiv:2410.21676 finds no excess when beta2 is tuned).
Below N, the best rate grows as the batch size to the power a. Beyond N, it depends on f: f = 0 keeps it flat
(McCandlish et al. 2018, arXiv:1812.06162), a = f = 1/2 gives the surge of Li et al. 2024 (arXiv:2405.14578, equation
21), and f = -a gives a single power law (of power 1/2 in Malladi et al. 2022, arXiv:2205.10287). All of these are
points of one prior, so each fit weighs them by its own evidence. Normalized updates tolerate a wrong learning rate
better than plain ones: on both sides, the epochs grow less than proportionally, as a power of the deviation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from hpo.extrapolation.laws.laws import log_small_batch_excess
from hpo.extrapolation.laws.parameters import LawParameter, logistic
from hpo.extrapolation.laws.priors import AdamPriors
from hpo.extrapolation.laws.rate_law import RateLaw
from hpo.extrapolation.laws.response import BoundedResponse, Index
from hpo.extrapolation.laws.setting_laws import RATE, Array, Values
from search_spaces.techniques import described_optimizer

LOW = "adam.log_low_over_critical"
# field of AdamPriors -> the unknown that has this prior
UNKNOWN = {
    "growth_log_sharpness": "log_sharpness",
    "growth_log_exponent": "log_exponent",
    "log_low_over_critical": LOW,
    "log_low_power": "adam.log_low_power",
    **{
        name: f"{RATE}.{name}"
        for name in (
            "exponent",
            "log_noise_over_best_batch",
            "log_sharpness",
            "fall",
            "log_below",
            "log_above",
            "log_round",
            "log_margin",
            "follow",
            "log_divergence_width",
        )
    },
}
OF_EPOCHS = (
    "growth_log_sharpness",
    "growth_log_exponent",
    "log_low_over_critical",
    "log_low_power",
)
OF_RATE = ("exponent", "log_noise_over_best_batch", "log_sharpness", "fall")


def make_parameters(priors: AdamPriors, names: Iterable[str]) -> list[LawParameter]:
    """Return the unknowns that have the fields ``names`` as their priors."""
    return [
        LawParameter(UNKNOWN[name], getattr(priors, name).mean, getattr(priors, name).sd)
        for name in names
    ]


def adam_epochs_parameters(priors: AdamPriors) -> list[LawParameter]:
    """Return the unknowns that describe the growth of the epochs and the excess at small batches."""
    return make_parameters(priors, OF_EPOCHS)


def log_excess(values: Values, log_batch: Array) -> Array | float:
    """Return the excess log epochs of small batches, shape (particles, batches), or 0 if it is not modelled."""
    if LOW not in values:
        return 0.0
    log_low = values["log_critical"] + values[LOW]
    return log_small_batch_excess(
        np.atleast_2d(log_batch),
        log_low[:, None],
        np.exp(values["adam.log_low_power"])[:, None],
    )


def log_best_batch(values: Values) -> Array:
    """Return the log batch size with the fewest epochs, assuming B_low far below and B_crit far above it."""
    sharpness = np.exp(values["log_sharpness"])
    away = values[LOW] + values["adam.log_low_power"] - values["log_exponent"]
    return np.asarray(values["log_critical"] + away / (1 + sharpness))


@dataclass(frozen=True, kw_only=True)
class AdamRate(RateLaw):
    """The law of the learning rate of Adam and AdamW."""

    priors: AdamPriors = field(default_factory=AdamPriors)

    def parameters(self, *, response: bool) -> list[LawParameter]:
        """Return the unknowns of the rate; ``response`` adds the unknowns of its cost and of the stability limit."""
        anchor = LawParameter(f"{RATE}.anchor", self.centre, self.spread)
        if not response:
            return [anchor, *make_parameters(self.priors, OF_RATE), self.scatter_parameter()]
        return [
            anchor,
            *make_parameters(self.priors, [name for name in UNKNOWN if name not in OF_EPOCHS]),
        ]

    def log_noise(self, values: Values) -> Array:
        """Return the log of the batch size N, in samples, at which the rate stops growing: (particles,)."""
        return log_best_batch(values) + values["learning_rate.log_noise_over_best_batch"]

    def response(
        self, values: Values, log_batch: Array, momentum: Array | None = None
    ) -> AdamResponse:
        """Return the cost of deviating from the best rate at each batch size."""
        named = {
            name: np.exp(values[f"{RATE}.log_{name}"])[:, None]
            for name in ("below", "above", "round", "margin", "divergence_width")
        }
        ceiling, damping = (
            self.ceiling(values, momentum),
            self._damping(values, np.asarray(log_batch), momentum),
        )
        follow = logistic(values["learning_rate.follow"])[:, None]
        return AdamResponse(
            ceiling - damping,
            np.zeros(()),
            1.0,
            ceiling + named["margin"] - follow * damping,
            named["divergence_width"],
            named["below"],
            named["above"],
            named["round"],
        )

    def _damping(self, values: Values, log_batch: Array, momentum: Array | None) -> Array:  # noqa: ARG002
        away = self.log_noise(values)[:, None] - np.atleast_2d(log_batch)
        sharpness = np.exp(values["learning_rate.log_sharpness"])[:, None]
        rises, falls = (
            values["learning_rate.exponent"][:, None],
            values["learning_rate.fall"][:, None],
        )
        return np.asarray(
            (rises * np.logaddexp(0, sharpness * away) + falls * np.logaddexp(0, -sharpness * away))
            / sharpness
        )


@dataclass(frozen=True)
class AdamResponse(BoundedResponse):
    """The cost of a wrong rate: quadratic within ``round`` of the best rate, and a power of the deviation beyond that.

    ``below`` and ``above`` are the powers on either side, and ``round`` is in log rate; all three have shape
    (particles, 1).
    """

    below: Array
    above: Array
    round: Array

    def at(self, index: Index) -> AdamResponse:
        """Return the response at the places selected by ``index``, in which a place may occur more than once."""
        return AdamResponse(
            self.best[:, index],
            self.curvature,
            self.unit,
            self.limit[:, index],
            self.width,
            self.below,
            self.above,
            self.round,
        )

    def cost(self, coordinate: Array, lowered: Array | None = None) -> Array:
        """Return the log of the factor that multiplies the epochs: (particles, places)."""
        miss = coordinate - self.best
        slow, fast = (
            np.minimum(miss, 0.0),
            np.maximum(miss if lowered is None else miss + lowered, 0.0),
        )
        return np.asarray(
            self.below * (np.sqrt(self.round**2 + slow**2) - self.round)
            + self.above * (np.sqrt(self.round**2 + fast**2) - self.round)
        )


def is_adam(settings: Mapping[str, object]) -> bool:
    """Return whether the settings use Adam, AdamW, or another optimizer whose rate follows the same law."""
    described = described_optimizer(settings.get("optimizer"))
    return described is not None and described.rate_law == "adam"
