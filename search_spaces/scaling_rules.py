"""How settings move when the global batch size changes, as published.

A rule takes settings that work at ``from_batch`` samples per update and returns those to try at
``to_batch``; ``k = to_batch / from_batch``. Rules are pure, change nothing at ``k = 1``, and compose: going
from 256 to 8192 directly or by way of 1024 gives the same settings. All durations are in epochs, so one that
a rule leaves alone covers ``1 / k`` as many updates. They are the baselines that a fitted law must beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from search_spaces.settings import TrainingSettings

ScalingRule = Callable[[TrainingSettings, int, int], TrainingSettings]


def unchanged(settings: TrainingSettings, from_batch: int, to_batch: int) -> TrainingSettings:
    """The same settings at any batch: the baseline that shows what scaling is worth."""
    _ratio(from_batch, to_batch)
    return settings


def linear(settings: TrainingSettings, from_batch: int, to_batch: int) -> TrainingSettings:
    """``learning_rate * k``, all else equal.

    Goyal et al. 2017 (arXiv:1706.02677, section 2.1, the linear scaling rule): while weights move little,
    one update at ``k B`` samples equals ``k`` updates at ``B``. For large ``k`` it needs the gradual warmup
    of section 2.2, which is the settings' own ``warmup_epochs`` and stays as it is (5 epochs there).
    """
    return settings.replace(learning_rate=settings.learning_rate * _ratio(from_batch, to_batch))


def square_root(settings: TrainingSettings, from_batch: int, to_batch: int) -> TrainingSettings:
    """``learning_rate * sqrt(k)``, all else equal.

    Krizhevsky 2014 (arXiv:1404.5997) and Hoffer et al. 2017 (arXiv:1705.08741): it
    keeps the variance of an update constant, because the mean of ``k`` times as many gradients has ``1 / k``
    of the variance.
    """
    return settings.replace(learning_rate=settings.learning_rate * math.sqrt(_ratio(from_batch, to_batch)))


def legw(settings: TrainingSettings, from_batch: int, to_batch: int) -> TrainingSettings:
    """``learning_rate * sqrt(k)`` and ``warmup_epochs * k``: the warmup keeps its number of updates.

    You et al. 2019, linear-epoch gradual warmup (arXiv:1901.08256). A warmup that outgrows ``decay_epochs``
    raises :class:`search_spaces.settings.SettingError`.
    """
    k = _ratio(from_batch, to_batch)
    return settings.replace(learning_rate=settings.learning_rate * math.sqrt(k),
                            warmup_epochs=settings.warmup_epochs * k)


SCALING_RULES: dict[str, ScalingRule] = {
    "none": unchanged,
    "linear": linear,
    "sqrt": square_root,
    "legw": legw,
}


def _ratio(from_batch: int, to_batch: int) -> float:
    if from_batch <= 0 or to_batch <= 0:
        raise ValueError(f"global batch sizes must be above 0, but got {from_batch} and {to_batch}")
    return to_batch / from_batch
