"""The learning rate as a pure function of progress in epochs.

During ``warmup_epochs`` the rate rises to the peak from s = ``warmup_start_factor`` times the peak. As t goes from 0 to
1 over the warmup, the rate is the peak times

    gradual      s + (1 - s) t           a constant increment per update: Goyal et al., arXiv:1706.02677, section 2.2
    constant     s                       "constant warmup" in the same section
    exponential  s^(1 - t)               a constant factor per update
    quadratic    s + (1 - s) t^2         NVCaffe's ramp-up

Then, as t goes from 0 at the end of the warmup to 1 at ``decay_epochs``, with e = ``end_learning_rate_factor``, the
rate is the peak times

    constant     1
    step         decay_factor^(milestones passed)
    piecewise    decay_values[milestones passed]      Akiba et al., arXiv:1711.04325, "slow start": 0.5, 0.075, 0.01
                                                      and 0.001 with milestones at 40, 70 and 85 epochs
    polynomial   e + (1 - e) (1 - t)^decay_power      You et al., arXiv:1708.03888; MLPerf: power 2
    cosine       e + (1 - e) (1 + cos(pi t)) / 2      Loshchilov and Hutter, arXiv:1608.03983
    linear       e + (1 - e) (1 - t)                  Bergsma et al., arXiv:2502.15938: to zero
    wsd          c                                    Hu et al., arXiv:2404.06395; Haegele et al., arXiv:2405.18392
    inverse_sqrt c / sqrt(1 + epochs since the warmup / inverse_sqrt_epochs)      Zhai et al., arXiv:2106.04560
    power        c max(1, epochs / power_start_epochs)^-power_exponent            Shen et al., arXiv:2408.13359

where c is 1 until the last ``cooldown_share`` of training, over which u goes from 0 to 1 and c falls according to
``cooldown_shape``:

    linear         e + (1 - e) (1 - u)
    cosine         e + (1 - e) (1 + cos(pi u)) / 2
    one_less_sqrt  e + (1 - e) (1 - sqrt(u))          arXiv:2405.18392, equation 1

If the batch size changes, :func:`trainers.schedules.batch_size.batch_rate_factor` is applied as well.
"""

# every formula of a kind takes the same arguments, used or not
# ruff: noqa: ARG001

from __future__ import annotations

import math
from collections.abc import Callable

from search_spaces.settings import TrainingSettings
from trainers.schedules.arithmetic import NUMBERS, Arithmetic, Value
from trainers.schedules.batch_size import batch_rate_factor, step_factors
from trainers.schedules.formulas import chosen_formula


def learning_rate(settings: TrainingSettings, epochs: float, budget_epochs: float) -> float:
    """Return the rate of the update that starts after ``epochs`` epochs.

    ``budget_epochs`` is the end of a polynomial or cosine decay whose ``decay_epochs`` is None.
    """
    return learning_rate_by(NUMBERS, settings, epochs, budget_epochs)


def learning_rate_by(
    by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, budget_epochs: float
) -> Value:
    """Return the rate in the arithmetic of the progress: if that is a scalar on a device, so is the rate."""

    def decayed() -> Value:
        decay: Callable[..., Value] = chosen_formula("decay", settings)
        return decay(by, settings, epochs, settings.decay_epochs or budget_epochs)

    def warming() -> Value:
        shape: Callable[..., Value] = chosen_formula("warmup_shape", settings)
        return shape(by, settings, epochs / settings.warmup_epochs)

    peak = settings.learning_rate * batch_rate_factor(by, settings, epochs)
    if settings.warmup_epochs > 0:
        return peak * by.choose(epochs < settings.warmup_epochs, warming, decayed)
    return peak * decayed()


def gradual(by: Arithmetic[Value], settings: TrainingSettings, t: Value) -> Value:
    """Return the factor on a line from the start to the peak."""
    start = settings.warmup_start_factor
    return start + (1 - start) * t


def constant_warmup(by: Arithmetic[Value], settings: TrainingSettings, t: Value) -> Value:
    """Return the start factor throughout the warmup."""
    return by.constant(settings.warmup_start_factor, t)


def exponential(by: Arithmetic[Value], settings: TrainingSettings, t: Value) -> Value:
    """Return a power of the start factor."""
    return by.exponential(settings.warmup_start_factor, 1 - t)


def quadratic(by: Arithmetic[Value], settings: TrainingSettings, t: Value) -> Value:
    """Return the factor on a parabola from the start to the peak."""
    return gradual(by, settings, t * t)


def constant(
    by: Arithmetic[Value],
    settings: TrainingSettings,
    epochs: Value,
    end: float,
) -> Value:
    """Return 1, as the rate stays at the peak."""
    return by.constant(1.0, epochs)


def step(by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float) -> Value:
    """Return ``decay_factor`` to the power of the number of milestones passed."""
    return by.by_milestones(epochs, settings.decay_milestones, step_factors(settings, 1))


def piecewise(
    by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float
) -> Value:
    """Return one of ``decay_values``."""
    return by.by_milestones(epochs, settings.decay_milestones, settings.decay_values)


def polynomial(
    by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float
) -> Value:
    """Return the factor as a power of the remaining share."""
    left = 1 - share_passed(by, settings, epochs, end)
    return _down_to(settings, by.power(left, settings.decay_power))


def cosine(by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float) -> Value:
    """Return the factor as half a period of a cosine."""
    t = share_passed(by, settings, epochs, end)
    return _down_to(settings, (1 + by.cosine(math.pi * t)) / 2)


def linear(by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float) -> Value:
    """Return the factor as a linear function of the remaining share."""
    return _down_to(settings, 1 - share_passed(by, settings, epochs, end))


def wsd(by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float) -> Value:
    """Return the factor of the cooldown alone."""
    return _cooldown(by, settings, epochs, end)


def inverse_sqrt(
    by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float
) -> Value:
    """Return the inverse square root of 1 plus the scaled time since the warmup, times the cooldown."""
    since = by.at_least_zero(epochs - settings.warmup_epochs)
    body = by.power(1 + since / settings.value("inverse_sqrt_epochs"), -0.5)
    return body * _cooldown(by, settings, epochs, end)


def power(by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float) -> Value:
    """Return a power of the time relative to ``power_start_epochs``, times the cooldown."""
    start = settings.value("power_start_epochs")
    times = 1 + by.at_least_zero(epochs - start) / start
    body = by.power(times, -settings.value("power_exponent"))
    return body * _cooldown(by, settings, epochs, end)


def _cooldown(
    by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float
) -> Value:
    """Return 1, falling to the end value over the last ``cooldown_share`` of training (after the warmup)."""
    share, shape = settings.value("cooldown_share"), settings.value("cooldown_shape")
    start = max(settings.warmup_epochs, (1 - share) * end)
    if start >= end:
        return by.constant(1.0, epochs)
    t = by.share((epochs - start) / (end - start))
    if shape == "linear":
        return _down_to(settings, 1 - t)
    if shape == "cosine":
        return _down_to(settings, (1 + by.cosine(math.pi * t)) / 2)
    return _down_to(settings, 1 - by.power(t, 0.5))


def share_passed(
    by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float
) -> Value:
    """Return t, which goes from 0 at the end of the warmup to 1 at ``end``."""
    return by.share((epochs - settings.warmup_epochs) / (end - settings.warmup_epochs))


def _down_to(settings: TrainingSettings, factor: Value) -> Value:
    last = settings.end_learning_rate_factor
    return last + (1 - last) * factor
