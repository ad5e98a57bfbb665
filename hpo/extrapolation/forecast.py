"""Forecasts: settings and epochs to target at a batch never swept, with 90 % intervals and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.errors import EvidenceError
from hpo.extrapolation.posterior import Posterior
from hpo.extrapolation.setting_laws import SettingLaw
from hpo.extrapolation.trust import Trust, judge

Array: TypeAlias = NDArray[np.float64]

LEVELS = (0.5, 0.05, 0.95)
NORMAL_NODES = np.array([NormalDist().inv_cdf((node + 0.5) / 25) for node in range(25)])
# a diverged full-scale run is counted as the loss of three runs' epochs
DIVERGENCE_COST = float(np.log(3.0))


@dataclass(frozen=True)
class Interval:
    """A median (or recommendation) and the ends of its 90 % interval."""

    median: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """The interval as plain values."""
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Forecast:
    """What is expected at ``global_batch_size`` with the recommended settings.

    ``epochs_to_target`` is the predictive interval for the mean of a new configuration's runs, in the unit
    of the evidence. In ``settings``, ``median`` is the value to use: that with the least expected log epochs.
    ``laws`` holds the intervals of the fitted parameters, by law and parameter.
    """

    global_batch_size: int
    epochs_to_target: Interval
    settings: Mapping[str, Interval]
    trust: Trust
    reason: str
    laws: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The forecast as plain values for JSON, in the form that ``hpo extrapolate`` prints."""
        return {"global_batch_size": self.global_batch_size, "epochs_to_target": self.epochs_to_target.to_dict(),
                "settings": {name: interval.to_dict() for name, interval in self.settings.items()},
                "trust": self.trust, "reason": self.reason}

    def laws_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """The fitted parameters as plain values: law, then parameter, then the ends of the interval."""
        return {law: {name: interval.to_dict() for name, interval in parameters.items()}
                for law, parameters in self.laws.items()}


@dataclass(frozen=True)
class Band:
    """A curve over ``batches`` with its 90 % band, for plots; all arrays have one shape."""

    batches: Array
    median: Array
    low: Array
    high: Array


def forecast(posterior: Posterior, global_batch_size: int) -> Forecast:
    """Settings, epochs to target and trust at ``global_batch_size``; needs no random numbers."""
    log_batch = _log_batch(global_batch_size)
    choices = {law.name: _recommend(posterior, law, log_batch) for law in posterior.model.laws}
    epochs = _epochs(posterior, log_batch, {name: choice for name, (choice, _) in choices.items()})
    settings = {name: interval for name, (_, interval) in choices.items()}
    trust, reason = judge(posterior, global_batch_size, epochs.low, epochs.high)
    return Forecast(global_batch_size, epochs, settings, trust, reason, _laws(posterior))


def epochs_band(posterior: Posterior, batches: Sequence[float] | Array) -> Band:
    """Epochs to target over ``batches``, as :func:`forecast` gives them."""
    intervals = []
    for batch in batches:
        log_batch = _log_batch(batch)
        choices = {law.name: _recommend(posterior, law, log_batch)[0] for law in posterior.model.laws}
        intervals.append(_epochs(posterior, log_batch, choices))
    return _band(batches, intervals)


def setting_band(posterior: Posterior, name: str, batches: Sequence[float] | Array) -> Band:
    """The best value of a tuned setting over ``batches``; :class:`EvidenceError` if it was not tuned."""
    law = posterior.law(name)
    return _band(batches, [_recommend(posterior, law, _log_batch(batch))[1] for batch in batches])


def _epochs(posterior: Posterior, log_batch: float, choices: Mapping[str, float]) -> Interval:
    mean, sd = posterior.log_epochs(log_batch)
    for name, choice in choices.items():
        law = posterior.law(name)
        if posterior.knows_cost(name):
            miss = choice - law.best(posterior.values, np.array([log_batch]))[:, 0]
            mean = mean + law.cost(posterior.values, miss)
    # the cap only keeps numbers finite where nothing is known
    return Interval(*(float(np.exp(min(value, 200.0))) for value in _quantiles(mean, sd)))


def _quantiles(mean: Array, sd: Array) -> Array:
    """Quantiles of an equal mixture of normals, each stood for by 25 of its own quantiles."""
    return np.asarray(np.quantile(mean[:, None] + sd[:, None] * NORMAL_NODES, LEVELS))


def _recommend(posterior: Posterior, law: SettingLaw, log_batch: float) -> tuple[float, Interval]:
    """The coordinate to use and, in the setting's unit, its interval."""
    best = law.best(posterior.values, np.array([log_batch]))[:, 0]
    middle, low, high = np.quantile(best, LEVELS)
    choice = float(middle)
    if posterior.knows_cost(law.name) and high > low:
        grid = np.linspace(low, high, 101)
        miss = grid[None, :] - best[:, None]
        diverged = posterior.risk_of_divergence(law.name, miss)
        risk = law.cost(posterior.values, miss) + DIVERGENCE_COST * diverged
        choice = float(grid[np.argmin(risk.mean(axis=0))])
    choice = float(np.clip(choice, *_sane(law, log_batch)))
    ends = (choice, min(low, choice), max(high, choice))
    return choice, Interval(*(float(law.value(np.array(end))) for end in ends))


def _sane(law: SettingLaw, log_batch: float) -> tuple[float, float]:
    """Beyond the values tried only as far as the batch is beyond those seen: the linear rule is the limit."""
    beyond = max(log_batch - law.log_anchor, 0.0)
    low, high = law.tried
    if law.setting.scale == "log":
        return low - np.log(2) - beyond, high + np.log(2) + beyond
    slack = 0.25 * abs(high)
    return low - slack, (high + slack) * float(np.exp(beyond))


def _laws(posterior: Posterior) -> dict[str, dict[str, Interval]]:
    values = posterior.values
    laws = {"epochs_to_target": {"E_min": _interval(np.exp(values["log_min_epochs"])),
                                 "B_crit": _interval(np.exp(values["log_critical"])),
                                 "sharpness": _interval(np.exp(values["log_sharpness"])),
                                 "exponent": _interval(np.exp(values["log_exponent"])),
                                 "recipe_scatter": _interval(np.exp(values["log_recipe_scatter"]))}}
    for law in posterior.model.laws:
        found = {"at_largest_rung": _interval(law.value(law.best(values, np.array([law.log_anchor]))[:, 0]))}
        if f"{law.name}.growth" in values:
            found["growth"] = _interval(values[f"{law.name}.growth"])
        else:
            noise = values["log_critical"] + values["learning_rate.log_noise_over_critical"]
            found["B_noise"] = _interval(np.exp(noise))
            found["exponent"] = _interval(values["learning_rate.exponent"])
        laws[law.name] = found
    return laws


def _interval(samples: Array) -> Interval:
    return Interval(*(float(value) for value in np.quantile(samples, LEVELS)))


def _band(batches: Sequence[float] | Array, intervals: Sequence[Interval]) -> Band:
    ends = [np.array([getattr(interval, end) for interval in intervals]) for end in ("median", "low", "high")]
    return Band(np.asarray(batches, dtype=float), *ends)


def _log_batch(batch: float) -> float:
    if not (np.isfinite(batch) and batch > 0):
        raise EvidenceError(f"global_batch_size must be a finite number above 0, but got {batch}")
    return float(np.log(batch))
