"""The learning rate as a pure function of progress in epochs.

During ``warmup_epochs`` the rate rises to the peak from s = ``warmup_start_factor`` times the peak; with t from 0
to 1 over the warmup it is the peak times

    gradual      s + (1 - s) t           a constant more each update: Goyal et al., arXiv:1706.02677, section 2.2
    constant     s                       the same, "constant warmup"
    exponential  s^(1 - t)               a constant factor more each update
    quadratic    s + (1 - s) t^2         NVCaffe's ramp-up

Then, with t from 0 at the end of the warmup to 1 at ``decay_epochs`` and e = ``end_learning_rate_factor``, it is
the peak times

    constant     1
    step         decay_factor^(milestones passed)
    piecewise    decay_values[milestones passed]      Akiba et al., arXiv:1711.04325, "slow start": 0.5, 0.075, 0.01
                                                      and 0.001 with milestones at 40, 70 and 85 epochs
    polynomial   e + (1 - e) (1 - t)^decay_power      You et al., arXiv:1708.03888; MLPerf: power 2
    cosine       e + (1 - e) (1 + cos(pi t)) / 2      Loshchilov and Hutter, arXiv:1608.03983

Where the batch size changes, :func:`trainers.schedules.batch_size.rate_factor` comes on top.
"""

from __future__ import annotations

import math

from search_spaces.settings import TrainingSettings
from trainers.schedules.arithmetic import NUMBERS, Arithmetic, Value
from trainers.schedules.batch_size import rate_factor, step_factors


def learning_rate(settings: TrainingSettings, epochs: float, budget_epochs: float) -> float:
    """The rate of the update that starts after ``epochs`` epochs.

    ``budget_epochs`` is where a polynomial or cosine decay ends whose ``decay_epochs`` is None.
    """
    return learning_rate_by(NUMBERS, settings, epochs, budget_epochs)


def learning_rate_by(
    by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, budget_epochs: float
) -> Value:
    """The same of a progress of any kind, by its arithmetic: a scalar on a device gives the rate there."""

    def decayed() -> Value:
        return _decay_factor(by, settings, epochs, budget_epochs)

    def warming() -> Value:
        return _warmup_factor(by, settings, epochs / settings.warmup_epochs)

    peak = settings.learning_rate * rate_factor(by, settings, epochs)
    if settings.warmup_epochs > 0:
        return peak * by.choose(epochs < settings.warmup_epochs, warming, decayed)
    return peak * decayed()


def _warmup_factor(by: Arithmetic[Value], settings: TrainingSettings, t: Value) -> Value:
    start = settings.warmup_start_factor
    if settings.warmup_shape == "constant":
        return by.constant(start, t)
    if settings.warmup_shape == "exponential":
        return by.exponential(start, 1 - t)
    return start + (1 - start) * (t * t if settings.warmup_shape == "quadratic" else t)


def _decay_factor(
    by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, budget_epochs: float
) -> Value:
    if settings.decay == "constant":
        return by.constant(1.0, epochs)
    if settings.decay == "piecewise":
        return by.by_milestones(epochs, settings.decay_milestones, settings.decay_values)
    if settings.decay == "step":
        return by.by_milestones(epochs, settings.decay_milestones, step_factors(settings, 1))
    end, last = settings.end_learning_rate_factor, settings.decay_epochs or budget_epochs
    t = by.share((epochs - settings.warmup_epochs) / (last - settings.warmup_epochs))
    if settings.decay == "polynomial":
        return end + (1 - end) * by.power(1 - t, settings.decay_power)
    return end + (1 - end) * (1 + by.cosine(math.pi * t)) / 2
