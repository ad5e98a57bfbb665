"""The learning rate where the progress is a number on the device, so that nobody waits for it.

The formulas are those of :mod:`trainers.schedules.learning_rate` and :mod:`trainers.schedules.batch_size`; conditions
are choices between values, and the constants are plain numbers, so that nothing is copied to the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings


def learning_rate_on_device(
    settings: TrainingSettings, epochs: Tensor, budget_epochs: float
) -> Tensor:
    """The rate of the update that starts after ``epochs`` epochs, a scalar of float64 on any device."""
    rate = _decay_factor(settings, epochs, budget_epochs)
    if settings.warmup_epochs > 0:
        warmup = _warmup_factor(settings, epochs / settings.warmup_epochs)
        rate = torch.where(epochs < settings.warmup_epochs, warmup, rate)
    return rate * _rate_factor(settings, epochs) * settings.learning_rate


def _warmup_factor(settings: TrainingSettings, t: Tensor) -> Tensor:
    start = settings.warmup_start_factor
    if settings.warmup_shape == "constant":
        return torch.full_like(t, start)
    if settings.warmup_shape == "exponential":
        return torch.pow(start, 1 - t)
    return start + (1 - start) * (t * t if settings.warmup_shape == "quadratic" else t)


def _decay_factor(settings: TrainingSettings, epochs: Tensor, budget_epochs: float) -> Tensor:
    if settings.decay == "constant":
        return torch.ones_like(epochs)
    if settings.decay == "piecewise":
        return _by_milestones(epochs, settings.decay_milestones, settings.decay_values)
    if settings.decay == "step":
        return _by_milestones(epochs, settings.decay_milestones, _step_factors(settings))
    end, last = settings.end_learning_rate_factor, settings.decay_epochs or budget_epochs
    # clamped at 0 for the choice of the warmup alone: a power of more than 1 would be no number
    t = ((epochs - settings.warmup_epochs) / (last - settings.warmup_epochs)).clamp(0.0, 1.0)
    if settings.decay == "polynomial":
        return end + (1 - end) * (1 - t).pow(settings.decay_power)
    return end + (1 - end) * (1 + torch.cos(math.pi * t)) / 2


def _rate_factor(settings: TrainingSettings, epochs: Tensor) -> Tensor | float:
    """What batch control multiplies the rate by."""
    if settings.batch_control == "grow":
        limit = settings.batch_limit_factor or math.inf
        sizes = [min(1 / factor, limit) for factor in _step_factors(settings)]
        grown = _by_milestones(epochs, settings.decay_milestones, sizes)
        return torch.where(epochs >= settings.warmup_epochs, grown, 1.0)
    if settings.batch_control == "piecewise" and settings.batch_rate_rule != "none":
        power = 1.0 if settings.batch_rate_rule == "linear" else 0.5
        factors = [1.0, *(factor**power for factor in settings.batch_factors)]
        return _by_milestones(epochs, settings.batch_milestones, factors)
    return 1.0


def _step_factors(settings: TrainingSettings) -> list[float]:
    return [
        math.pow(settings.decay_factor, passed)
        for passed in range(len(settings.decay_milestones) + 1)
    ]


def _by_milestones(epochs: Tensor, milestones: Sequence[float], values: Sequence[float]) -> Tensor:
    """``values[n]`` where n of the rising ``milestones`` are passed."""
    chosen = torch.full_like(epochs, values[0])
    for milestone, value in zip(milestones, values[1:], strict=True):
        chosen = torch.where(epochs >= milestone, value, chosen)
    return chosen
