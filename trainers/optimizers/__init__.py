"""Optimizers by the rules of their papers, one file each."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from search_spaces.settings import TrainingSettings
from trainers.optimizers.lars import LARS
from trainers.optimizers.optimizer import Optimizer, ParameterGroup
from trainers.optimizers.sgd import SGD

__all__ = ["LARS", "SGD", "Optimizer", "ParameterGroup", "make_optimizer", "parameter_groups"]

_OPTIMIZERS: dict[str, type[SGD] | type[LARS]] = {"sgd": SGD, "lars": LARS}


def make_optimizer(parameters: Iterable[nn.Parameter], settings: TrainingSettings) -> Optimizer:
    """The optimizer that ``settings.optimizer`` names, over the parameters that are trained."""
    return _OPTIMIZERS[settings.optimizer](*parameter_groups(parameters, settings), settings)


def parameter_groups(parameters: Iterable[nn.Parameter], settings: TrainingSettings
                     ) -> tuple[ParameterGroup, ParameterGroup]:
    """The parameters that decay, and those that do not: biases and normalization parameters (1-dimensional).

    Goyal et al. (arXiv:1706.02677, section 5.1) do not decay the latter; ``decay_norm_and_bias`` treats all
    alike.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    decayed = [parameter for parameter in trained if parameter.ndim > 1 or settings.decay_norm_and_bias]
    plain = [parameter for parameter in trained if parameter.ndim <= 1 and not settings.decay_norm_and_bias]
    return ParameterGroup(decayed), ParameterGroup(plain)
