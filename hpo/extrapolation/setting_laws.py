"""How the best value of each tuned setting moves with the batch, and what missing it costs.

Settings on a log scale are handled by their logarithm, the others as they are: that is their coordinate. The
learning rate follows the saturating law, lr_ref ((1 + N/B_ref) / (1 + N/B))^a with N the noise scale; every
other setting a power law in the batch: p = 1 for warmup in epochs is LEGW.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence import Evidence, ScaledSetting
from hpo.extrapolation.parameters import Parameter
from hpo.extrapolation.priors import Normal
from search_spaces.settings import Range, names, range_of

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

RATE = "learning_rate"
# p in value ~ B^p: for the warmup LEGW says 1 and Goyal et al. 0; others hardly move in published recipes
GROWTH = {"warmup_epochs": Normal(0.5, 0.4)}
GROWTH_ELSE = Normal(0.0, 0.2)
# a in (1 + N/B)^-a: 1 for SGD, 0.5 to 1 for Adam (arXiv:1812.06162)
RATE_EXPONENT = Normal(0.75, 0.2)
# the noise scale is an order-of-magnitude predictor of the critical batch (arXiv:1812.06162, section 4)
NOISE_OVER_CRITICAL = Normal(0.0, 1.5)
DIVERGED_BY_CHANCE = 0.02
DIVERGENCE_WIDTH = 0.3


@dataclass(frozen=True)
class SettingLaw:
    """One tuned setting: the scale it is handled on, where it was tried, the batch its law is anchored at."""

    setting: ScaledSetting
    centre: float
    spread: float
    tried: tuple[float, float]
    log_anchor: float

    @property
    def name(self) -> str:
        """The setting's name."""
        return self.setting.name

    def coordinate(self, values: Array) -> Array:
        """Values in the coordinate of the law; values that a log cannot take count as the smallest tried."""
        if self.setting.scale == "linear":
            return np.asarray(values, dtype=float)
        return np.asarray(np.log(np.maximum(values, np.exp(self.tried[0]) * 1e-3)))

    def value(self, coordinate: Array) -> Array:
        """Back from the coordinate to the setting's own unit, inside its bounds."""
        values = np.exp(coordinate) if self.setting.scale == "log" else np.asarray(coordinate)
        legal = (range_of(self.name) if self.name in names() else None) or Range()
        high = legal.high * (1 - 1e-6) if legal.high_open and np.isfinite(legal.high) else legal.high
        return np.asarray(np.clip(values, legal.low, high))

    def parameters(self, *, response: bool) -> list[Parameter]:
        """The unknowns of this law; with ``response`` also those of what a miss costs."""
        found = [Parameter(f"{self.name}.anchor", self.centre, self.spread)]
        if self.name == RATE:
            found += [Parameter("learning_rate.exponent", RATE_EXPONENT.mean, RATE_EXPONENT.sd),
                      Parameter("learning_rate.log_noise_over_critical", NOISE_OVER_CRITICAL.mean,
                                NOISE_OVER_CRITICAL.sd)]
        else:
            growth = GROWTH.get(self.name, GROWTH_ELSE)
            found += [Parameter(f"{self.name}.growth", growth.mean, growth.sd)]
        if not response:
            return [*found, Parameter(f"{self.name}.log_scatter", float(np.log(0.35)), 0.6)]
        if self.name == RATE:
            return [*found, Parameter("learning_rate.log_width_below", float(np.log(0.7)), 0.5),
                    Parameter("learning_rate.log_width_above", float(np.log(0.5)), 0.5),
                    Parameter("learning_rate.log_stability_margin", float(np.log(1.5)), 0.5)]
        return [*found, Parameter(f"{self.name}.log_curvature", float(np.log(0.1)), 1.0)]

    def has_scatter(self, values: Values) -> bool:
        """Whether the values hold the scatter of tuned settings, and not what a miss costs."""
        return f"{self.name}.log_scatter" in values

    def scatter(self, values: Values) -> Array:
        """Scatter of tuned settings around the best coordinate: (particles,)."""
        unit = 1.0 if self.setting.scale == "log" else self.spread
        return np.asarray(unit * np.exp(values[f"{self.name}.log_scatter"]))

    def best(self, values: Values, log_batch: Array) -> Array:
        """Best coordinate at each batch: (particles, batches)."""
        away = np.asarray(log_batch)[None, :] - self.log_anchor
        anchor = values[f"{self.name}.anchor"][:, None]
        if self.name == RATE:
            log_noise = (values["log_critical"] + values["learning_rate.log_noise_over_critical"])[:, None]
            at_anchor = log_noise - self.log_anchor
            damping = np.logaddexp(0, at_anchor) - np.logaddexp(0, at_anchor - away)
            return np.asarray(anchor + values["learning_rate.exponent"][:, None] * damping)
        growth = values[f"{self.name}.growth"][:, None] * away
        return np.asarray(anchor + growth if self.setting.scale == "log" else anchor * np.exp(growth))

    def cost(self, values: Values, miss: Array) -> Array:
        """Log of the factor on the epochs for a coordinate ``miss`` above the best; shapes (particles, ...).

        Below the best learning rate progress is proportional to the rate, so the cost tends to |miss|; above
        it grows quadratically until training diverges. Other settings cost quadratically near their best, in
        units of their spread, and ever less beyond, where the law of a setting is too vague to be held against it.
        """
        if self.name == RATE:
            below = _column(np.exp(values["learning_rate.log_width_below"]), miss)
            above = _column(np.exp(values["learning_rate.log_width_above"]), miss)
            slow = below * (np.sqrt(1 + (np.minimum(miss, 0) / below) ** 2) - 1)
            return np.asarray(slow + np.maximum(miss, 0) ** 2 / (2 * above))
        unit = 1.0 if self.setting.scale == "log" else self.spread
        curvature = _column(np.exp(values[f"{self.name}.log_curvature"]), miss)
        return np.asarray(curvature * 4 * np.log1p((miss / unit) ** 2 / 4))

    def divergence(self, values: Values, miss: Array) -> Array:
        """Probability that a learning rate ``miss`` above the best (in log) diverges; it follows the best."""
        margin = _column(np.exp(values["learning_rate.log_stability_margin"]), miss)
        steep = 1 / (1 + np.exp(np.clip((margin - miss) / DIVERGENCE_WIDTH, -50, 50)))
        return np.asarray(DIVERGED_BY_CHANCE + (1 - 2 * DIVERGED_BY_CHANCE) * steep)


def make_laws(evidence: Evidence) -> list[SettingLaw]:
    """One law for each tuned setting of which the evidence holds a value."""
    log_anchor = float(np.log(evidence.batches[-1]))
    laws = []
    for setting in evidence.tuned:
        values = np.array(evidence.setting_values(setting.name))
        if setting.scale == "log":
            values = np.log(values[values > 0])
        if len(values):
            low, high = float(values.min()), float(values.max())
            least = 0.7 if setting.scale == "log" else max(0.25 * abs(high), 1e-3)
            spread = max((high - low) / 2, least)
            laws.append(SettingLaw(setting, (low + high) / 2, spread, (low, high), log_anchor))
    return laws


def coordinates(law: SettingLaw, settings: Sequence[Mapping[str, object]]) -> Array:
    """Coordinates of one setting in many settings; NaN where it is not told."""
    told = [item.get(law.name) for item in settings]
    values = np.array([float(value) if isinstance(value, (int, float)) else np.nan for value in told])
    return law.coordinate(values)


def _column(values: Array, like: Array) -> Array:
    return np.asarray(values).reshape(-1, *([1] * (like.ndim - 1)))
