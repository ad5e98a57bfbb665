"""Published rules that adapt settings to another global batch size.

A rule takes settings that work at ``from_batch`` samples per update and returns settings to try at
``to_batch``; ``k = to_batch / from_batch``. Rules are pure, change nothing at ``k = 1``, and compose: going
from 256 to 8192 directly or through 1024 gives the same settings. All durations are in epochs, so a duration
that a rule leaves unchanged covers ``1 / k`` as many updates. The rules are the baselines that a fitted law must
beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from search_spaces.settings import TrainingSettings

ScalingRule = Callable[[TrainingSettings, int, int], TrainingSettings]


def unchanged(settings: TrainingSettings, from_batch: int, to_batch: int) -> TrainingSettings:
    """Keep the settings unchanged at any batch size: the baseline that shows the benefit of scaling."""
    _ratio(from_batch, to_batch)
    return settings


def linear(settings: TrainingSettings, from_batch: int, to_batch: int) -> TrainingSettings:
    """Multiply ``learning_rate`` by ``k`` and leave all other settings unchanged.

    Goyal et al. 2017 (arXiv:1706.02677, section 2.1, the linear scaling rule): while the weights change little,
    one update at ``k B`` samples equals ``k`` updates at ``B``. For large ``k`` the rule needs the gradual warmup
    of section 2.2 (5 epochs there), which is the setting ``warmup_epochs`` and is left unchanged.
    """
    return settings.replace(learning_rate=settings.learning_rate * _ratio(from_batch, to_batch))


def square_root(settings: TrainingSettings, from_batch: int, to_batch: int) -> TrainingSettings:
    """Multiply ``learning_rate`` by ``sqrt(k)`` and leave all other settings unchanged.

    Krizhevsky 2014 (arXiv:1404.5997) and Hoffer et al. 2017 (arXiv:1705.08741): this keeps the variance of an
    update constant, because the mean of ``k`` times as many gradients has ``1 / k`` of the variance.
    """
    return settings.replace(
        learning_rate=settings.learning_rate * math.sqrt(_ratio(from_batch, to_batch))
    )


def legw(settings: TrainingSettings, from_batch: int, to_batch: int) -> TrainingSettings:
    """Multiply ``learning_rate`` by ``sqrt(k)`` and ``warmup_epochs`` by ``k``: the warmup keeps its number of updates.

    You et al. 2019, linear-epoch gradual warmup (arXiv:1901.08256). A warmup longer than ``decay_epochs``
    raises :class:`search_spaces.settings.SettingError`.
    """
    k = _ratio(from_batch, to_batch)
    return settings.replace(
        learning_rate=settings.learning_rate * math.sqrt(k),
        warmup_epochs=settings.warmup_epochs * k,
    )


def adascale(settings: TrainingSettings, from_batch: int, to_batch: int) -> TrainingSettings:
    """Set ``adascale_batch_size`` to ``from_batch`` and nothing else: the gain is measured during training.

    Johnson et al. 2020 (arXiv:2007.05105). Settings that already have a base batch size keep it.
    """
    _ratio(from_batch, to_batch)
    if from_batch == to_batch or settings.adascale_batch_size is not None:
        return settings
    return settings.replace(adascale_batch_size=from_batch)


def smith_momentum(settings: TrainingSettings, from_batch: int, to_batch: int) -> TrainingSettings:
    """Divide ``1 - momentum`` by ``k`` and nothing else: this keeps the noise scale at the same learning rate.

    Smith et al. 2018 (arXiv:1711.00489): B grows in proportion to learning_rate / (1 - momentum). They find that
    this costs accuracy, whereas scaling the learning rate (:func:`linear`) does not. If the batch shrinks so much that
    the momentum would fall below 0, :class:`search_spaces.settings.SettingError` is raised.
    """
    k = _ratio(from_batch, to_batch)
    return settings if k == 1 else settings.replace(momentum=1 - (1 - settings.momentum) / k)


SCALING_RULES: dict[str, ScalingRule] = {
    "none": unchanged,
    "linear": linear,
    "sqrt": square_root,
    "legw": legw,
    "adascale": adascale,
    "smith_momentum": smith_momentum,
}


def _ratio(from_batch: int, to_batch: int) -> float:
    if from_batch <= 0 or to_batch <= 0:
        raise ValueError(f"global batch sizes must be above 0, but got {from_batch} and {to_batch}")
    return to_batch / from_batch
