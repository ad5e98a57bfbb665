"""Optimizers by the rules of their papers, one file each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
from trainers.optimizers.parameter_kinds import Kind, parameter_kinds
from trainers.optimizers.rmsprop_warmup import RMSpropWarmup
from trainers.optimizers.sgd import SGD
from trainers.optimizers.shampoo import Shampoo

__all__ = ["OPTIMIZERS", "Kind", "Optimizer", "make_optimizer", "parameter_kinds"]

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


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    settings: TrainingSettings,
    kinds: Mapping[nn.Parameter, Kind] | None = None,
) -> Optimizer:
    """The optimizer that ``settings.optimizer`` names, over the parameters that are trained.

    ``kinds`` says what each parameter is (:func:`~trainers.optimizers.parameter_kinds.parameter_kinds`); without it
    the exclusions go by rank. Where some parameters are bf16 or fp16 it runs on fp32 masters of them.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    theirs = None if kinds is None else [kinds[parameter] for parameter in trained]

    def build(moved: Iterable[nn.Parameter]) -> Optimizer:
        return OPTIMIZERS[settings.optimizer](parameter_groups(moved, settings, theirs), settings)

    if any(parameter.dtype in REDUCED for parameter in trained):
        return MasterOptimizer(trained, build)
    return build(trained)
