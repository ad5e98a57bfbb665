"""Trainings at the target batch itself, one at a time: where it can gain most on the laws as trials there correct them.

The search that is scored here goes on until the settings are good to a few percent, so that it trains at the target
batch one configuration after the other; a study does it once, in a race of a few (:mod:`hpo.extrapolation.raced`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo.extrapolation import discrepancy
from hpo.extrapolation.laws.setting_laws import RATE, coordinates
from hpo.extrapolation.recommend import LOST
from hpo.tuning.acquisition import prediction
from hpo.tuning.acquisition.chooser import Acquisition

Array: TypeAlias = NDArray[np.float64]
Settings: TypeAlias = Mapping[str, Any]

AROUND = (
    1.0,
    0.6,
    0.75,
    0.87,
    1.15,
    1.35,
)  # times the best rates of particles: candidates at the target batch
LOWER_RATES = (0.9, 0.8, 0.65)
MOST_MISS = (
    0.4  # no more of a predicted miss, in log epochs, is believed: the laws are what is tested
)
LEAST_STEP = (
    0.05  # from every trial before: nearer settings differ by less than two trainings scatter
)


@dataclass(frozen=True)
class Confirmation:
    """At the target batch: settings to ``use`` now, settings to ``try_next``, and what that may gain in log epochs.

    ``gain`` is infinite before any training there has reached its target.
    """

    use: dict[str, float]
    try_next: dict[str, float]
    gain: float


def recommended(
    acquisition: Acquisition, target: int, others: Settings | None = None
) -> dict[str, float]:
    """The settings for the target batch with the least expected epochs, of those that particles hold best.

    Also of those with a lower learning rate: too high a rate may diverge, and too low a one is only slow.
    """
    posterior, weights = acquisition.belief()
    choices = prediction.best_settings(posterior, target)
    choices += [
        {**each, RATE: each[RATE] * factor}
        for each in choices
        for factor in LOWER_RATES
        if RATE in each
    ]
    loss = prediction.lost(posterior, target, [{**(others or {}), **each} for each in choices])
    return choices[int(np.argmin(weights @ loss))]


def confirm(acquisition: Acquisition, target: int, others: Settings | None = None) -> Confirmation:
    """What trials at the target batch leave to be gained there, and the settings to try next, or to use."""
    others = others or {}
    posterior, weights = acquisition.belief()
    held_best = prediction.best_settings(posterior, target)
    choices = [recommended(acquisition, target, others)] + [
        {**each, **({RATE: each[RATE] * factor} if RATE in each else {})}
        for each in held_best[::2]
        for factor in AROUND
    ]
    tried = [item for item in acquisition.observations if item.global_batch_size == target]
    settings = [{**others, **each} for each in choices]
    if not any(item.state == "reached" for item in tried):
        return Confirmation(choices[0], _lower(choices[0], len(tried)), np.inf)
    everything = settings + [dict(item.settings) for item in tried]
    place = np.stack([coordinates(law, everything) for law in posterior.model.laws], axis=1)
    missed, risks = prediction.miss(posterior, target, everything)
    prior, risk = weights @ np.minimum(missed, MOST_MISS), weights @ risks
    least = min(item.epochs for item in tried if item.state == "reached")
    seen = [np.log(discrepancy.counted(item.state, item.epochs, least)) for item in tried]
    count = len(choices)
    scatter = float(np.exp(weights @ posterior.values["log_trial_scatter"]))
    corrected = discrepancy.correct(prior, place, place[count:], prior[count:], seen, scatter)
    gained = improvement(corrected, float(corrected.mean[count:].min()))[:count]
    gained *= (1 - risk[:count]) * _apart(place[:count], place[count:])
    # what was tried and did not diverge has shown that it does not
    at = int(
        np.argmin(corrected.mean + np.log(LOST) * np.append(risk[:count], np.zeros(len(tried))))
    )
    use = (
        choices[at]
        if at < count
        else {name: float(tried[at - count].settings[name]) for name in choices[0]}
    )
    return Confirmation(use, choices[int(np.argmax(gained))], float(gained.max()))


def improvement(corrected: discrepancy.Corrected, least: float) -> Array:
    """Expected improvement of each candidate on ``least``, in log epochs: (candidates,)."""
    sd = np.maximum(corrected.sd, 1e-9)
    white = (least - corrected.mean) / sd
    normal = NormalDist()
    density = np.exp(-0.5 * white**2) / np.sqrt(2 * np.pi)
    return np.asarray(
        sd * (white * np.array([normal.cdf(float(each)) for each in white]) + density)
    )


def _lower(settings: dict[str, float], times: int) -> dict[str, float]:
    """Trials at the target that missed or diverged: a lower rate next."""
    return {name: value * 0.7**times if name == RATE else value for name, value in settings.items()}


def _apart(coordinates: Array, tried: Array) -> NDArray[np.bool_]:
    """Which candidates are far enough from every trial to tell something new: (candidates,)."""
    away = ((coordinates[:, None, :] - tried[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(away.min(axis=1) >= LEAST_STEP**2)
