"""The learning rate as a pure function of progress in epochs.

Gradual warmup (Goyal et al., arXiv:1706.02677, section 2.2): the rate rises by a constant each update from
``warmup_start_factor`` times the peak to the peak, which it reaches after ``warmup_epochs``. Then one of

    constant     peak
    step         peak * decay_factor^(milestones passed)
    polynomial   end + (peak - end) * (1 - t)^decay_power        You et al., arXiv:1708.03888; MLPerf: power 2
    cosine       end + (peak - end) * (1 + cos(pi t)) / 2        Loshchilov and Hutter, arXiv:1608.03983

with t from 0 at the end of the warmup to 1 at ``decay_epochs``, and end = ``end_learning_rate_factor`` *
peak.
"""

from __future__ import annotations

import math

from search_spaces.settings import TrainingSettings


def learning_rate(settings: TrainingSettings, epochs: float, budget_epochs: float) -> float:
    """The rate of the update that starts after ``epochs`` epochs.

    ``budget_epochs`` is where a polynomial or cosine decay ends whose ``decay_epochs`` is None.
    """
    if epochs < settings.warmup_epochs:
        start = settings.warmup_start_factor
        return settings.learning_rate * (start + (1 - start) * epochs / settings.warmup_epochs)
    return settings.learning_rate * _decay_factor(settings, epochs, budget_epochs)


def _decay_factor(settings: TrainingSettings, epochs: float, budget_epochs: float) -> float:
    if settings.decay == "constant":
        return 1.0
    if settings.decay == "step":
        passed = sum(epochs >= milestone for milestone in settings.decay_milestones)
        return math.pow(settings.decay_factor, passed)
    end, last = settings.end_learning_rate_factor, settings.decay_epochs or budget_epochs
    t = min(1.0, (epochs - settings.warmup_epochs) / (last - settings.warmup_epochs))
    if settings.decay == "polynomial":
        return end + (1 - end) * math.pow(1 - t, settings.decay_power)
    return end + (1 - end) * (1 + math.cos(math.pi * t)) / 2
