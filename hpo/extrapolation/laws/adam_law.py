"""The law of Adam and AdamW: the best rate stops growing, and may fall, near the batch that needs the fewest epochs.

    growth(B) = (1 + (B / B_crit)^s)^(p / s) (1 + B_low / B)^q        fewest epochs near B* = sqrt(B_crit B_low)
    best(B)   = lr_peak (1 + (N / B)^t)^(-a / t) (1 + (B / N)^t)^(-f / t)         N near B*

With beta2 fixed, small batches need more epochs: the average of the squared gradients spans too few samples, so it is
as noisy as the gradient that it normalizes (arXiv:2410.21676 finds no excess when beta2 is tuned).
Below N the best rate grows as the power a of the batch. Beyond N it depends on f: with f = 0 it is flat (McCandlish et
al. 2018, arXiv:1812.06162), a = f = 1/2 gives the surge of Li et al. 2024 (arXiv:2405.14578, equation 21), and f = -a
one power throughout (1/2 in Malladi et al. 2022, arXiv:2205.10287). These candidates are points of one prior, so that
every fit weighs them by its own evidence. Normalized updates tolerate a wrong rate better than plain ones: on both
sides the epochs grow less than proportionally, as a power of the deviation.
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
# field of AdamPriors -> the unknown whose prior it is
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
    """Return the unknowns whose priors are the fields ``names``."""
    return [
        LawParameter(UNKNOWN[name], getattr(priors, name).mean, getattr(priors, name).sd)
        for name in names
    ]


def adam_epochs_parameters(priors: AdamPriors) -> list[LawParameter]:
    """Return the unknowns of the growth and of the excess at small batches."""
    return make_parameters(priors, OF_EPOCHS)


def log_excess(values: Values, log_batch: Array) -> Array | float:
    """Return the excess of small batches in log epochs: (particles, batches); 0 if another optimizer is modelled."""
    if LOW not in values:
        return 0.0
    log_low = values["log_critical"] + values[LOW]
    return log_small_batch_excess(
        np.atleast_2d(log_batch),
        log_low[:, None],
        np.exp(values["adam.log_low_power"])[:, None],
    )


def log_best_batch(values: Values) -> Array:
    """Return the log of the batch with the fewest epochs, for B_low far below and B_crit far above it: (particles,)."""
    sharpness = np.exp(values["log_sharpness"])
    away = values[LOW] + values["adam.log_low_power"] - values["log_exponent"]
    return np.asarray(values["log_critical"] + away / (1 + sharpness))


@dataclass(frozen=True, kw_only=True)
class AdamRate(RateLaw):
    """The learning rate of Adam and AdamW."""

    priors: AdamPriors = field(default_factory=AdamPriors)

    def parameters(self, *, response: bool) -> list[LawParameter]:
        """Return the unknowns of the rate; with ``response`` also those of its cost and of the stability limit."""
        anchor = LawParameter(f"{RATE}.anchor", self.centre, self.spread)
        if not response:
            return [anchor, *make_parameters(self.priors, OF_RATE), self.scatter_parameter()]
        return [
            anchor,
            *make_parameters(self.priors, [name for name in UNKNOWN if name not in OF_EPOCHS]),
        ]

    def log_noise(self, values: Values) -> Array:
        """Return the logarithm of the batch N where the rate stops growing, in samples: (particles,)."""
        return log_best_batch(values) + values["learning_rate.log_noise_over_best_batch"]

    def response(
        self, values: Values, log_batch: Array, momentum: Array | None = None
    ) -> AdamResponse:
        """Return the cost of a rate other than the best one at each batch."""
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
    """The cost of a wrong rate: quadratic within ``round`` of the best, and a power of the deviation beyond it.

    ``below`` and ``above`` are the powers on either side; all are (particles, 1), ``round`` in log rate.
    """

    below: Array
    above: Array
    round: Array

    def at(self, index: Index) -> AdamResponse:
        """Return the response at the places that ``index`` selects; it may select one more than once."""
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
        """Return the logarithm of the factor on the epochs: (particles, places)."""
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
    """Return whether the settings use Adam, AdamW, or another optimizer whose rate is known to follow the same law."""
    described = described_optimizer(settings.get("optimizer"))
    return described is not None and described.rate_law == "adam"
