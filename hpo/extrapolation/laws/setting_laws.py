"""How the best value of each tuned setting changes with the batch size, and the cost of other values.

A law works in a coordinate of its setting: the logarithm for a setting on a log scale, -log(1 - m) for momentum (the
logarithm of the number of gradients that it averages over), and the value itself for other settings. This module has
the law of every setting except the learning rate (``rate_law``): a power law in the batch size. For warmup in epochs, p
= 1 is LEGW.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.evidence.evidence import ScaledSetting
from hpo.extrapolation.laws.parameters import LawParameter
from hpo.extrapolation.laws.priors import NormalPrior
from hpo.extrapolation.laws.response import SettingResponse
from search_spaces.settings import Range, names, range_of
from search_spaces.techniques import own_setting_named

Array: TypeAlias = NDArray[np.float64]
Values: TypeAlias = Mapping[str, Array]

RATE, MOMENTUM = "learning_rate", "momentum"
MOST_MOMENTUM = 1 - 1e-4
MOST_LOG = 700.0  # the log of the largest value that may be forecast for a setting on a log scale
# p in value ~ B^p: for the warmup it is 1 in LEGW and 0 in Goyal et al.; in published recipes, other settings hardly
# change
GROWTH = {"warmup_epochs": NormalPrior(0.5, 0.4)}
GROWTH_ELSE = NormalPrior(0.0, 0.2)


@dataclass(frozen=True)
class SettingLaw:
    """One tuned setting: its scale, the range that was tried, and the batch at which its law is anchored.

    The law is anchored at the largest batch; ``log_first`` is the smallest one. ``slack`` is how much farther outside
    the tried range the best value may lie at the full size and length.
    """

    setting: ScaledSetting
    centre: float
    spread: float
    tried: tuple[float, float]
    log_anchor: float
    log_first: float
    slack: float = field(default=0.0, kw_only=True)

    @property
    def name(self) -> str:
        """The setting's name."""
        return self.setting.name

    @property
    def is_log(self) -> bool:
        """Whether the coordinate is a logarithm, so that steps in it are factors."""
        return is_log(self.setting)

    def coordinate(self, values: Array) -> Array:
        """Convert values to the law's coordinate; values without a logarithm count as 1/1000 of the smallest tried."""
        if self.name == MOMENTUM:
            return momentum_lag(values)
        if not self.is_log:
            return np.asarray(values, dtype=float)
        return np.asarray(np.log(np.maximum(values, np.exp(self.tried[0]) * 1e-3)))

    def value(self, coordinate: Array) -> Array:
        """Convert the coordinate back to the setting's own unit, inside its bounds."""
        if self.name == MOMENTUM:
            return np.asarray(np.clip(-np.expm1(-np.asarray(coordinate)), 0.0, MOST_MOMENTUM))
        values = np.asarray(coordinate)
        values = np.exp(np.minimum(values, MOST_LOG)) if self.is_log else values
        legal = legal_range(self.name)
        high = (
            legal.high * (1 - 1e-6) if legal.high_open and np.isfinite(legal.high) else legal.high
        )
        return np.asarray(np.clip(values, legal.low, high))

    def parameters(self, *, response: bool) -> list[LawParameter]:
        """Return the unknowns of this law; ``response`` adds those of the cost of other values."""
        growth = GROWTH.get(self.name, GROWTH_ELSE)
        found = [
            LawParameter(f"{self.name}.anchor", self.centre, self.spread),
            LawParameter(f"{self.name}.growth", growth.mean, growth.sd),
        ]
        if not response:
            return [*found, self.scatter_parameter()]
        return [*found, LawParameter(f"{self.name}.log_curvature", float(np.log(0.1)), 1.0)]

    def scatter_parameter(self, *, response: bool = False) -> LawParameter:
        """Return the scatter of tuned settings around the best ones, in units of the coordinate or of the spread.

        It has another name beside the parameters of the ``response``, which trials add to the rows of a table.
        """
        name = "log_row_scatter" if response else "log_scatter"
        return LawParameter(f"{self.name}.{name}", float(np.log(0.35)), 0.6)

    def has_scatter(self, values: Values) -> bool:
        """Return whether the values hold the scatter of tuned settings rather than the cost of other values."""
        return f"{self.name}.log_scatter" in values

    def scatter(self, values: Values) -> Array | None:
        """Return the scatter of tuned settings around the best coordinate, (particles,); None if no row tells it."""
        unit = 1.0 if self.is_log else self.spread
        for response in (False, True):
            name = self.scatter_parameter(response=response).name
            if name in values:
                return np.asarray(unit * np.exp(values[name]))
        return None

    def best(self, values: Values, log_batch: Array, momentum: Array | None = None) -> Array:  # noqa: ARG002
        """Return the best coordinate at each batch size: (particles, batches).

        ``momentum`` (batches,) only affects the learning rate. ``log_batch`` is (batches,), or (particles, batches) if
        it differs by particle.
        """
        away = np.atleast_2d(log_batch) - self.log_anchor
        anchor = values[f"{self.name}.anchor"][:, None]
        growth = values[f"{self.name}.growth"][:, None] * away
        return np.asarray(anchor + growth if self.is_log else anchor * np.exp(growth))

    def response(
        self, values: Values, log_batch: Array, momentum: Array | None = None
    ) -> SettingResponse:
        """Return the cost of deviating from the best value at each batch size."""
        unit = 1.0 if self.is_log else self.spread
        curvature = np.exp(values[f"{self.name}.log_curvature"])[:, None]
        return SettingResponse(self.best(values, log_batch, momentum), curvature, unit)


def legal_range(name: str) -> Range:
    """Return the legal range of a setting, including settings of techniques and workloads."""
    if name in names():
        return range_of(name) or Range()
    own = own_setting_named(name)
    return (own.range if own else None) or Range()


def is_log(setting: ScaledSetting) -> bool:
    """Return whether a setting's coordinate is a logarithm."""
    return setting.scale == "log" or setting.name in (RATE, MOMENTUM)


def momentum_lag(momentum: Array) -> Array:
    """Return -log(1 - m), the logarithm of the number of gradients that momentum averages over."""
    return np.asarray(-np.log1p(-np.minimum(momentum, MOST_MOMENTUM)))


def setting_coordinates(law: SettingLaw, settings: Sequence[Mapping[str, object]]) -> Array:
    """Return the coordinate of one setting in each element of ``settings``; NaN where it is missing."""
    return law.coordinate(setting_values(law.name, settings))


def setting_values(name: str, settings: Sequence[Mapping[str, object]]) -> Array:
    """Return the value of one setting in each element of ``settings``; NaN where it is missing."""
    values = [item.get(name) for item in settings]
    return np.array(
        [float(value) if isinstance(value, (int, float)) else np.nan for value in values]
    )
