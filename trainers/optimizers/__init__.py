"""Optimizers that follow their papers, one file each, and are also available as PyTorch optimizers for any loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from search_spaces.settings import TrainingSettings
from trainers.distributed.communicator import Communicator
from trainers.numerics.parametrization import TensorGrowth
from trainers.optimizers.masters import REDUCED, MasterOptimizer
from trainers.optimizers.optimizer import Optimizer, optimizer_rule_named
from trainers.optimizers.parameter_groups import parameter_groups
from trainers.optimizers.parameter_kinds import Kind, parameter_kinds
from trainers.optimizers.torch_optimizers import RuleOptimizer, optimizer_class

__all__ = [
    "Kind",
    "Optimizer",
    "RuleOptimizer",
    "make_optimizer",
    "parameter_kinds",
]


def __getattr__(title: str) -> type[RuleOptimizer]:
    """Return an optimizer class for other training loops by the title of its description, such as ``LARS``."""
    found = None if title.startswith("_") else optimizer_class(title)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {title!r}")
    return found


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    settings: TrainingSettings,
    kinds: Mapping[nn.Parameter, Kind] | None = None,
    communicator: Communicator | None = None,
    growths: Mapping[nn.Parameter, TensorGrowth] | None = None,
) -> Optimizer:
    """Create the optimizer named by ``settings.optimizer`` for the trained parameters.

    ``kinds`` gives the kind of each parameter (:func:`~trainers.optimizers.parameter_kinds.parameter_kinds`); without
    it the exclusions depend on rank. ``growths`` gives the growth of each parameter from its base shape, if the model
    is in ``mup`` or ``completep`` (:func:`~trainers.numerics.parametrization.maximal_update_`). A rule may divide its
    work among the workers of ``communicator``, which all do the same updates. If some parameters are bf16 or fp16, the
    optimizer runs on fp32 master copies of them.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    theirs = None if kinds is None else [kinds[parameter] for parameter in trained]
    grown = [(growths or {}).get(parameter, TensorGrowth()) for parameter in trained]

    def build(moved: Iterable[nn.Parameter]) -> Optimizer:
        groups = parameter_groups(moved, settings, theirs, grown)
        rule = optimizer_rule_named(settings.optimizer)(groups, settings)
        rule.communicator = communicator
        return rule

    if any(parameter.dtype in REDUCED for parameter in trained):
        return MasterOptimizer(trained, build)
    return build(trained)
