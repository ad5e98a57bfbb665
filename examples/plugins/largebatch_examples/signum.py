"""Signum (Bernstein et al., arXiv:1802.04434, algorithm 2): each step depends only on the sign of the momentum.

m = signum_momentum * m + (1 - signum_momentum) * g
w = w - rate * (sign(m) + weight_decay * w)
"""

import torch
from torch import Tensor

from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, add_scaled_


class SignumRule(GroupOptimizer):
    """The Signum update; it keeps one buffer per parameter, with the default name ``momentum``."""

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch: lists of flat tensors, changed in place."""
        buffers = batch.states["momentum"]
        torch._foreach_lerp_(buffers, batch.gradients(), 1 - self.settings.value("signum_momentum"))
        moves = list(torch._foreach_sign(buffers))
        torch._foreach_add_(moves, batch.parameters, alpha=batch.weight_decay)
        add_scaled_(batch.parameters, moves, -learning_rate)
