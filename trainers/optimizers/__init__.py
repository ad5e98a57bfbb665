"""Optimizers by the rules of their papers, one file each."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from search_spaces.settings import TrainingSettings
from trainers.optimizers.adam import Adam
from trainers.optimizers.adamw import AdamW
from trainers.optimizers.lamb import LAMB
from trainers.optimizers.larc import LARC
from trainers.optimizers.lars import LARS
from trainers.optimizers.masters import REDUCED, MasterOptimizer
from trainers.optimizers.optimizer import GroupOptimizer, Optimizer
from trainers.optimizers.parameter_groups import parameter_groups
from trainers.optimizers.rmsprop_warmup import RMSpropWarmup
from trainers.optimizers.sgd import SGD
from trainers.optimizers.shampoo import Shampoo

__all__ = ["OPTIMIZERS", "Optimizer", "make_optimizer"]

OPTIMIZERS: dict[str, type[GroupOptimizer]] = {
    "sgd": SGD,
    "lars": LARS,
    "larc": LARC,
    "lamb": LAMB,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop_warmup": RMSpropWarmup,
    "shampoo": Shampoo,
}


def make_optimizer(parameters: Iterable[nn.Parameter], settings: TrainingSettings) -> Optimizer:
    """The optimizer that ``settings.optimizer`` names, over the parameters that are trained.

    Where some are bf16 or fp16 it runs on fp32 masters of them.
    """
    def build(trained: Iterable[nn.Parameter]) -> Optimizer:
        return OPTIMIZERS[settings.optimizer](parameter_groups(trained, settings), settings)

    parameters = list(parameters)
    if any(parameter.requires_grad and parameter.dtype in REDUCED for parameter in parameters):
        return MasterOptimizer(parameters, build)
    return build(parameters)
