"""Predictions of the laws for configurations: the settings and batch sizes of trials that were run or may be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation.laws.rate_law import RateLaw, momentum_values
from hpo.extrapolation.laws.response import SettingResponse
from hpo.extrapolation.laws.scales import Scales
from hpo.extrapolation.laws.setting_laws import SettingLaw, setting_coordinates, setting_values
from hpo.extrapolation.laws.warmup_law import WARMUP, WarmupLaw, WarmupValues

Array: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.intp]
Values: TypeAlias = Mapping[str, Array]
Settings: TypeAlias = Mapping[str, object]


@dataclass(frozen=True)
class Configurations:
    """Settings at batch sizes: ``at`` (places,) indexes ``log_batch`` (batches,).

    ``coordinates`` holds one array (places,) for every law, NaN where a setting is missing; ``momentum`` is (places,).
    ``away`` (batches, directions) says how far the model size or the training length is from the full scale.
    """

    log_batch: Array
    at: Index
    coordinates: Sequence[Array]
    momentum: Array
    warmups: WarmupValues | None
    scales: Scales = field(default_factory=Scales)
    away: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True)
class SettingsOutlook:
    """Predictions for configurations, of shape (particles, places).

    ``cost`` is the log ratio of the epochs to those that the best settings need at the full rate throughout. ``risk``
    is the probability that a run is lost, or None if no law gives it.
    """

    cost: Array
    risk: Array | None


def make_configurations(
    log_batch: Array,
    at: Index,
    settings: Sequence[Settings],
    laws: Sequence[SettingLaw],
    warmup: WarmupLaw | None,
    scales: Scales | None = None,
    away: Array | None = None,
) -> Configurations:
    """Return the configurations of ``settings`` (places,), in the coordinates of ``laws``."""
    warmups = (
        None if warmup is None else warmup.warmups(setting_values(WARMUP, settings), log_batch[at])
    )
    seen = [setting_coordinates(law, settings) for law in laws]
    if scales is None or away is None:
        return Configurations(log_batch, at, seen, momentum_values(settings), warmups)
    return Configurations(log_batch, at, seen, momentum_values(settings), warmups, scales, away)


def settings_outlook(
    values: Values,
    laws: Sequence[SettingLaw],
    warmup: WarmupLaw | None,
    configurations: Configurations,
) -> SettingsOutlook:
    """Return the cost in epochs of suboptimal settings and the risk of losing the run, over all laws."""
    particles = len(next(iter(values.values())))
    cost, risk = np.zeros((particles, len(configurations))), None
    lowered = slowed = None
    if warmup is not None and configurations.warmups is not None:
        lowered = warmup.lowered(values, configurations.warmups)
        slowed = warmup.slowed(values, lowered)
    for law, seen in zip(laws, configurations.coordinates, strict=True):
        known = np.isfinite(seen)
        if not known.any():
            continue
        response = _response(values, law, configurations)
        place = np.where(known, seen, 0.0)
        if configurations.scales:
            moved = configurations.scales.shift(values, law.name, configurations.away)
            place = place - moved[:, configurations.at]
        cost += np.where(known, response.cost(place, slowed), 0.0)
        lost = response.risk(place, lowered)
        if lost is not None:
            risk = np.where(known, lost, 0.0)
    return SettingsOutlook(cost, risk)


def log_epochs(
    values: Values, warmup: WarmupLaw | None, configurations: Configurations, at_full_rate: Array
) -> Array:
    """Return log epochs to target (particles, places), given log epochs at the full rate, without warmup."""
    if warmup is None or configurations.warmups is None:
        return at_full_rate
    return warmup.log_delayed(values, at_full_rate, configurations.warmups)


def _response(values: Values, law: SettingLaw, configurations: Configurations) -> SettingResponse:
    log_batch = configurations.log_batch
    if configurations.scales:
        log_batch = configurations.scales.log_batch(values, log_batch, configurations.away)
    if isinstance(law, RateLaw) and law.momentum is not None:
        # configurations at one batch differ in momentum and therefore in their best learning rate
        return law.response(values, log_batch[..., configurations.at], configurations.momentum)
    return law.response(values, log_batch).at(configurations.at)
