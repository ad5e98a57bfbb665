"""Forecasts: settings and epochs to target at a batch that was never swept, with 90 % intervals and a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.errors import EvidenceError
from hpo.extrapolation.calibration import ForecastCalibration, PastForecast, calibrate_forecasts
from hpo.extrapolation.evidence.evidence import TrainingObservation
from hpo.extrapolation.inference.intervals import LEVELS, BestMetric, Interval
from hpo.extrapolation.inference.kept import SURE, ConstraintOutlook, KeptConstraints
from hpo.extrapolation.inference.posterior import Posterior
from hpo.extrapolation.laws.rate_law import RateLaw
from hpo.extrapolation.laws.setting_laws import RATE
from hpo.extrapolation.laws.warmup_law import WARMUP
from hpo.extrapolation.prospects import (
    BUDGETS,
    NORMAL_NODES,
    Chance,
    Sensitivity,
    budget_chances,
    epochs_interval,
    rate_sensitivity,
)
from hpo.extrapolation.raced import RaceEvidence, settings_after_race
from hpo.extrapolation.recommend import constraint_outlooks, recommend
from hpo.extrapolation.trust import Trust, judge_forecast, law_disagreement, scaling_regime
from storage.figures import MOST_WHOLE
from trainers.job import Question

__all__ = [
    "Band",
    "Forecast",
    "Interval",
    "band_at_sizes",
    "check_batch_size",
    "epochs_band",
    "forecast",
    "setting_band",
    "setting_band_at_sizes",
]

Array: TypeAlias = NDArray[np.float64]

SHORTFALL = "shortfall"
"""Name of the law of the shortfall after a fixed budget."""

SHAPES = {
    "sharpness": "log_sharpness",
    "decay": "descent.log_decay",
    "wall": "descent.log_wall",
    "fewest_lags": "descent.log_fewest_lags",
}  # parameters of the epoch laws: name in a forecast -> unknown of the model


@dataclass(frozen=True)
class Forecast:
    """The forecast at ``global_batch_size`` with the recommended settings.

    ``epochs_to_target`` is the predictive interval for the mean over several runs of a new configuration, in the unit
    of the evidence. In ``settings``, ``median`` is the value to use, the middle of the values with the fewest expected
    epochs.
    ``laws`` holds the intervals of the fitted parameters, by law and parameter. ``disagreement`` is the factor between
    the epochs that equally good laws predict. ``divergence`` is the risk of divergence with the recommended settings,
    None if unknown. ``chances`` holds the chances of reaching the target within several budgets of epochs.
    ``sensitivity`` describes the effect of a wrong learning rate. ``raced`` describes the runs at this batch size
    itself, or is None without a race.
    With a fixed budget, ``best`` is the predicted best metric within it, and the median and both ends of
    ``epochs_to_target`` equal that budget; the factors of ``disagreement`` and ``sensitivity`` then apply to the
    shortfall of the metric.
    ``full_scale`` holds the model size and training length if the evidence has several. ``constraints`` holds
    the prediction for each constraint of the study that any run reported.
    """

    global_batch_size: int
    epochs_to_target: Interval
    settings: Mapping[str, Interval]
    trust: Trust
    reason: str
    laws: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    regime: str = ""
    disagreement: float = 1.0
    divergence: float | None = None
    chances: tuple[Chance, ...] = ()
    sensitivity: tuple[Sensitivity, ...] = ()
    calibration: ForecastCalibration = field(default_factory=ForecastCalibration)
    raced: RaceEvidence | None = None
    best: BestMetric | None = None
    full_scale: Mapping[str, float] = field(default_factory=dict)
    constraints: tuple[ConstraintOutlook, ...] = ()

    @property
    def recommended(self) -> bool:
        """Whether the settings are recommended: each constraint of the study is satisfied with at least even odds."""
        return all(each.likely for each in self.constraints)

    @property
    def critical_batch(self) -> Interval | None:
        """The critical batch size, beyond which returns diminish, with its 90 % interval."""
        law = self.laws.get("epochs_to_target") or self.laws.get(SHORTFALL) or {}
        return law.get("B_crit")

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as plain values for JSON, as printed by ``hpo extrapolate``."""
        return {
            "global_batch_size": self.global_batch_size,
            **({"full_scale": dict(self.full_scale)} if self.full_scale else {}),
            "epochs_to_target": None if self.best else self.epochs_to_target.to_dict(),
            **({"best": self.best.to_dict()} if self.best else {}),
            "settings": {name: interval.to_dict() for name, interval in self.settings.items()},
            "trust": self.trust,
            "reason": self.reason,
            "regime": self.regime,
            "law_disagreement": self.disagreement,
            "divergence": self.divergence,
            "chance_of_reaching": [each.to_dict() for each in self.chances],
            "sensitivity": {
                "learning_rate": [each.to_dict(lacks=bool(self.best)) for each in self.sensitivity]
            }
            if self.sensitivity
            else {},
            "calibration": self.calibration.to_dict(),
            **({"race": dataclasses.asdict(self.raced)} if self.raced else {}),
            **(
                {
                    "constraints": [each.to_dict() for each in self.constraints],
                    "recommended": self.recommended,
                }
                if self.constraints
                else {}
            ),
        }

    def laws_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return the fitted parameters as plain values, by law, parameter, and end of the interval."""
        return {
            law: {name: interval.to_dict() for name, interval in parameters.items()}
            for law, parameters in self.laws.items()
        }


@dataclass(frozen=True)
class Band:
    """A curve over ``batches`` with its 90 % band, for plots; all arrays have the same shape."""

    batches: Array
    median: Array
    low: Array
    high: Array


def forecast(
    posterior: Posterior,
    global_batch_size: int,
    *,
    budgets: Sequence[float] = (),
    past: Sequence[PastForecast] = (),
    race: Sequence[TrainingObservation] = (),
    searched: bool = False,
    kept: KeptConstraints | None = None,
) -> Forecast:
    """Forecast settings, epochs to target and trust at ``global_batch_size``, without random numbers.

    ``budgets`` lists numbers of epochs for which to give the chance of reaching the target, in addition to multiples of
    the median. ``past`` forecasts with their outcomes widen or narrow the interval. ``race`` holds the runs in the
    posterior's evidence that compared a few settings at this batch size, or ``searched`` for settings there. If
    ``kept`` predicts that the settings would violate a constraint of the study, they are not recommended, and the
    reason says so. Raises :class:`EvidenceError` for a batch size below 1 or above 2^31 - 1.
    """
    for budget in budgets:
        if not (np.isfinite(budget) and budget > 0):
            raise EvidenceError(
                f"a budget of epochs must be a finite number above 0, but got {budget}"
            )
    choices, raced = settings_after_race(
        posterior,
        recommend(posterior, _log_batch(global_batch_size), kept),
        global_batch_size,
        race,
        searched=searched,
    )
    asked = posterior.evidence.question
    calibration = calibrate_forecasts(past if asked is None else ())
    need = epochs_interval(posterior, choices, calibration.scale)
    epochs, best = need, None
    if asked is not None and asked.epochs is not None:
        epochs = Interval(asked.epochs, asked.epochs, asked.epochs)
        best = BestMetric(asked.target.metric, asked.epochs, told_interval(asked, need))
    settings = {name: choice.interval for name, choice in choices.items()}
    rate = settings[RATE].median if RATE in settings and posterior.knows_cost(RATE) else None
    trust, reason = judge_forecast(
        posterior, global_batch_size, need.low, need.high, calibration, rate, raced
    )
    held = constraint_outlooks(kept, choices) if kept is not None else ()
    trust, reason = _with_constraints(held, global_batch_size, trust, reason)
    wrong = rate_sensitivity(posterior, choices)
    divergence = float(choices.risk(posterior).mean()) if wrong else None
    tried = sorted({*budgets, *(epochs.median * factor for factor in BUDGETS)})
    return Forecast(
        global_batch_size,
        epochs,
        settings,
        trust,
        reason,
        _laws(posterior),
        scaling_regime(posterior, global_batch_size),
        law_disagreement(posterior, global_batch_size),
        divergence,
        () if best else budget_chances(posterior, choices, tried, calibration.scale),
        wrong,
        calibration,
        raced,
        best,
        posterior.evidence.full_scale,
        held,
    )


def _with_constraints(
    held: Sequence[ConstraintOutlook], batch: int, trust: Trust, reason: str
) -> tuple[Trust, str]:
    """Return the verdict, lowered where constraints may be violated, and the reason."""
    broken = [str(each) for each in held if not each.likely]
    unsure = [str(each) for each in held if each.likely and each.chance < SURE]
    if broken:
        return "low", f"No recommendation at {batch}: {'; '.join(broken)}. {reason}"
    if unsure:
        return (
            "medium" if trust == "high" else trust,
            f"{reason} It is uncertain whether the constraints are satisfied: {'; '.join(unsure)}.",
        )
    return trust, reason


def told_interval(question: Question, need: Interval) -> Interval:
    """Convert an interval of the shortfall to the unit of the metric."""
    ends = sorted((question.told(need.low), question.told(need.high)))
    return Interval(question.told(need.median), *ends)


def epochs_band(
    posterior: Posterior, batches: Sequence[float] | Array, *, past: Sequence[PastForecast] = ()
) -> Band:
    """Return the epochs to target (or the best metric) over ``batches``, as :func:`forecast` does with this ``past``.

    Constraints of the study are ignored.
    """
    asked = posterior.evidence.question
    scale = calibrate_forecasts(past if asked is None else ()).scale
    needs = [
        epochs_interval(posterior, recommend(posterior, _log_batch(batch)), scale)
        for batch in batches
    ]
    return _band(
        batches, needs if asked is None else [told_interval(asked, need) for need in needs]
    )


def setting_band(posterior: Posterior, name: str, batches: Sequence[float] | Array) -> Band:
    """Return the best value of a tuned setting over ``batches``; raise :class:`EvidenceError` if it was not tuned."""
    if name not in posterior.tuned:
        posterior.law(name)  # raises an error that lists the tuned settings
    return _band(
        batches, [recommend(posterior, _log_batch(batch))[name].interval for batch in batches]
    )


def band_at_sizes(
    posterior: Posterior, batches: Sequence[float] | Array, sizes: Mapping[str, float]
) -> Band:
    """Return the epochs to target, or the best metric, of the best settings over ``batches`` at the given ``sizes``.

    ``sizes`` gives a value for every direction in which the evidence scales. The band follows the law at those sizes;
    :func:`forecast`, which is for the full scale, also includes the cost of settings that are not quite the best.
    """
    asked, away = posterior.evidence.question, _away(posterior, sizes)
    needs = []
    for batch in batches:
        mean, sd = posterior.log_epochs(_log_batch(batch), away=away)
        samples = mean[:, None] + sd[:, None] * NORMAL_NODES
        ends = np.exp(np.minimum(np.quantile(samples, LEVELS), 200.0))
        needs.append(Interval(*(float(end) for end in ends)))
    return _band(
        batches, needs if asked is None else [told_interval(asked, need) for need in needs]
    )


def setting_band_at_sizes(
    posterior: Posterior, name: str, batches: Sequence[float] | Array, sizes: Mapping[str, float]
) -> Band:
    """Return the best value of a tuned setting over ``batches`` at the given sizes of model and training.

    Raises :class:`EvidenceError` if the setting was not tuned.
    """
    law, away = posterior.law(name), _away(posterior, sizes)[None, :]
    scales, values = posterior.model.scales, posterior.values
    found = []
    for batch in batches:
        seen = scales.log_batch(values, np.array([_log_batch(batch)]), away)
        best = law.best(values, seen) + scales.shift(values, name, away)
        found.append(Interval(*(float(law.value(end)) for end in np.quantile(best, LEVELS))))
    return _band(batches, found)


def _away(posterior: Posterior, sizes: Mapping[str, float]) -> Array:
    """Return the log ratio of ``sizes`` to the sizes at full scale: (directions,)."""
    missing = [name for name in posterior.model.scales.names if name not in sizes]
    if missing:
        raise EvidenceError(
            f"sizes must have a value for every size of the evidence "
            f"({', '.join(posterior.model.scales.names)}), but "
            f"{missing[0]} is missing"
        )
    return np.asarray(posterior.model.scales.away([sizes])[0])


def _laws(posterior: Posterior) -> dict[str, dict[str, Interval]]:
    values = posterior.values
    fixed = posterior.model.budget is not None
    laws = {
        SHORTFALL if fixed else "epochs_to_target": {
            "S_min" if fixed else "E_min": _interval(np.exp(posterior.model.log_min(values))),
            "B_crit": _interval(np.exp(values["log_critical"])),
            "exponent": _interval(np.exp(values["log_exponent"])),
            "recipe_scatter": _interval(np.exp(values["log_recipe_scatter"])),
        }
    }
    if fixed:
        anchor = np.log([float(posterior.evidence.batches[-1])])
        laws[SHORTFALL]["gain"] = _interval(posterior.model.gain(values, anchor)[:, 0])
    laws[next(iter(laws))] |= {
        name: _interval(np.exp(values[parameter]))
        for name, parameter in SHAPES.items()
        if parameter in values
    }
    for law in posterior.model.laws:
        found = {
            "at_largest_rung": _interval(
                law.value(law.best(values, np.array([law.log_anchor]))[:, 0])
            )
        }
        if f"{law.name}.growth" in values:
            found["growth"] = _interval(values[f"{law.name}.growth"])
        if isinstance(law, RateLaw):
            found["B_noise"] = _interval(np.exp(law.log_noise(values)))
            if "learning_rate.exponent" in values:
                found["exponent"] = _interval(values["learning_rate.exponent"])
            if "learning_rate.fall" in values:
                found["fall"] = _interval(values["learning_rate.fall"])
            found["maximum"] = _interval(law.value(law.ceiling(values)[:, 0]))
            if posterior.knows_cost(law.name):
                limit = law.response(values, np.array([law.log_anchor])).limit[:, 0]
                found["stable_below"] = _interval(law.value(limit))
        laws[law.name] = found
    for name in posterior.model.scales.names:
        told = [each for each in values if each.startswith(f"{name}.")]
        if told:
            laws[name] = {
                each.removeprefix(f"{name}.").removeprefix("log_"): _interval(
                    np.exp(values[each])
                    if each.removeprefix(f"{name}.").startswith("log_")
                    else values[each]
                )
                for each in told
            }
    if posterior.model.warmup is not None:
        laws[WARMUP] = {
            "rate_factor_without": _interval(np.exp(-np.exp(values["warmup.log_hardness"]))),
            "updates": _interval(np.exp(values["warmup.log_updates"])),
            "delay": _interval(np.exp(values["warmup.log_delay"])),
        }
    return laws


def _interval(samples: Array) -> Interval:
    return Interval(*(float(value) for value in np.quantile(samples, LEVELS)))


def _band(batches: Sequence[float] | Array, intervals: Sequence[Interval]) -> Band:
    ends = [
        np.array([getattr(interval, end) for interval in intervals])
        for end in ("median", "low", "high")
    ]
    return Band(np.asarray(batches, dtype=float), *ends)


def check_batch_size(batch: float) -> None:
    """Raise :class:`EvidenceError` unless a forecast can be made at this global batch size."""
    if not 1 <= batch <= MOST_WHOLE:
        raise EvidenceError(
            f"global_batch_size must be a number from 1 to {MOST_WHOLE}, the largest batch size that a study or a "
            f"table may have, but got {batch}"
        )


def _log_batch(batch: float) -> float:
    check_batch_size(batch)
    return float(np.log(batch))
