"""Chooses the laws that suit a body of evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpo.extrapolation.evidence.evidence import Evidence, TrainingObservation
from hpo.extrapolation.laws.adam_law import AdamRate, is_adam
from hpo.extrapolation.laws.descent import DescentLaw
from hpo.extrapolation.laws.descent_laws import DescentMomentum, DescentRate
from hpo.extrapolation.laws.momentum_law import MomentumLaw
from hpo.extrapolation.laws.priors import AdamPriors, NormalPrior
from hpo.extrapolation.laws.rate_law import (
    EXPONENT,
    NOISE_OVER_CRITICAL,
    NOISE_OVER_CRITICAL_OF_ADAM,
    RateLaw,
    momentum_values,
)
from hpo.extrapolation.laws.scales import Scales
from hpo.extrapolation.laws.setting_laws import (
    MOMENTUM,
    RATE,
    SettingLaw,
    is_log,
    momentum_lag,
    setting_values,
)
from hpo.extrapolation.laws.warmup_law import WARMUP, WarmupLaw
from search_spaces.techniques import described_optimizer


def make_descent_law(
    evidence: Evidence, observations: Sequence[TrainingObservation]
) -> DescentLaw | None:
    """Return the law of descent if the trials tune the learning rate of SGD with heavy-ball momentum, else None.

    Momentum may be tuned too if the evidence gives the samples per epoch, because the floor is a number of updates.
    """
    tuned, samples = {setting.name for setting in evidence.tuned}, evidence.samples_per_epoch
    needed = {RATE, MOMENTUM} & tuned
    if (
        RATE not in tuned
        or not observations
        or (MOMENTUM in tuned and samples is None)
        or any(
            not _descends(item.settings.get("optimizer"))
            or item.settings.get("nesterov")
            or any(item.settings.get(name) is None for name in needed)
            for item in observations
        )
    ):
        return None
    return DescentLaw(
        float(np.median(momentum_values([item.settings for item in observations]))),
        math.log(evidence.batches[-1]),
        math.log(samples) if samples else None,
        MOMENTUM in tuned,
    )


def make_warmup_law(
    evidence: Evidence, observations: Sequence[TrainingObservation]
) -> WarmupLaw | None:
    """Return the law of the warmup if any trial had a warmup, else None."""
    epochs = setting_values(WARMUP, [item.settings for item in observations])
    if not (epochs > 0).any():
        return None
    epochs = epochs[np.isfinite(epochs)]
    return WarmupLaw(
        evidence.samples_per_epoch,
        math.log(evidence.batches[-1]),
        WARMUP in {setting.name for setting in evidence.tuned},
        float(np.median(epochs)),
        (float(epochs.min()), float(epochs.max())),
    )


def make_scales(evidence: Evidence) -> Scales:
    """Return the directions, besides the batch size, in which the evidence scales."""
    away = Scales(evidence.full_scale).away(evidence.settings)
    reach = np.maximum(-away.max(axis=0), 0.0)
    return Scales(evidence.full_scale, reach, evidence.question is not None, evidence.carried)


def make_laws(
    evidence: Evidence,
    observations: Sequence[TrainingObservation],
    descent: DescentLaw | None,
    adam: AdamPriors | None = None,
) -> list[SettingLaw]:
    """Return one law for each tuned setting that has a value in the evidence.

    ``descent`` is the trials' law of descent, if any; ``adam`` holds the priors of Adam's law if all trials used Adam.
    """
    log_first, log_anchor = (float(np.log(evidence.batches[index])) for index in (0, -1))
    scales = make_scales(evidence)
    laws: list[SettingLaw] = []
    for setting in evidence.tuned:
        values = np.array(evidence.setting_values(setting.name))
        if setting.name == MOMENTUM:
            values = momentum_lag(values)
        elif is_log(setting):
            values = np.log(values[values > 0])
        if not len(values):
            continue
        low, high = float(values.min()), float(values.max())
        least = 0.7 if is_log(setting) else 0.25 * max(abs(low), abs(high)) or 1e-3
        moved = scales.moves(setting.name)
        centre, spread = (low + high) / 2, max((high - low) / 2, least)
        if is_log(setting):
            centre, spread = centre + moved.mean, float(np.hypot(spread, moved.sd))
        place = setting, centre, spread, (low, high), log_anchor, log_first
        slack = abs(moved.mean) + 2 * moved.sd
        if descent is not None and setting.name == RATE:
            laws.append(
                DescentRate(
                    *place,
                    momentum=descent.momentum if descent.tuned else _momentum(observations),
                    descent=descent,
                )
            )
        elif descent is not None and setting.name == MOMENTUM:
            laws.append(DescentMomentum(*place, descent=descent))
        elif setting.name == RATE and adam is not None:
            laws.append(AdamRate(*place, priors=adam, slack=slack))
        elif setting.name == RATE:
            early = not observations and all(is_adam(each) for each in evidence.settings)
            laws.append(
                RateLaw(
                    *place,
                    _exponent(evidence),
                    _momentum(observations),
                    NOISE_OVER_CRITICAL_OF_ADAM if early else NOISE_OVER_CRITICAL,
                    slack=slack,
                )
            )
        elif setting.name == MOMENTUM and any(one.name == RATE for one in evidence.tuned):
            laws.append(MomentumLaw(*place, slack=slack))
        else:
            laws.append(SettingLaw(*place, slack=slack))
    return laws


def _descends(optimizer: object) -> bool:
    described = described_optimizer(optimizer)
    return described is not None and described.rate_law == "descent"


def _exponent(evidence: Evidence) -> NormalPrior:
    """Return the prior on the rate's exponent, which is the optimizer's own if all trials used the same optimizer."""
    optimizers = {str(settings.get("optimizer")) for settings in evidence.settings}
    described = described_optimizer(optimizers.pop()) if len(optimizers) == 1 else None
    if described is None or described.rate_exponent is None:
        return EXPONENT
    return NormalPrior(*described.rate_exponent)


def _momentum(observations: Sequence[TrainingObservation]) -> float | None:
    """Return the momentum at which the law is anchored: the median if trials differ in momentum, else None."""
    values = momentum_values([item.settings for item in observations])
    return float(np.median(values)) if len(set(values)) > 1 else None
