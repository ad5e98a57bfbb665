"""Warm restarts (Loshchilov and Hutter, arXiv:1608.03983, equation 5).

As t goes from 0 to 1 between two restarts, with e = ``end_learning_rate_factor``, the rate is the peak times
e + (1 - e) (1 + cos(pi t)) / 2.
"""

import math

from search_spaces.settings import TrainingSettings
from trainers.schedules.arithmetic import Arithmetic, Value


def restarts(by: Arithmetic[Value], settings: TrainingSettings, epochs: Value, end: float) -> Value:
    """Return the learning rate as a fraction of its peak; ``by`` computes with numbers or with scalars on a device."""
    last = settings.end_learning_rate_factor
    since = (epochs - settings.warmup_epochs) % settings.value("restart_epochs")
    t = since / settings.value("restart_epochs")
    return last + (1 - last) * (1 + by.cosine(math.pi * t)) / 2
