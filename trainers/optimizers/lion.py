"""Lion, which updates by the sign of an interpolated momentum (Chen et al., arXiv:2302.06675, algorithm 2).

    c = beta1 * m + (1 - beta1) * g
    w = w - rate * weight_decay * w - rate * sign(c)
    m = lion_beta2 * m + (1 - lion_beta2) * g

Every element moves by the learning rate itself, so a good rate is three to ten times smaller than for AdamW, and a good
decay three to ten times larger (section 5). Lion keeps one buffer instead of Adam's two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, add_scaled_


class LionRule(GroupOptimizer):
    """Lion with decoupled weight decay."""

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        settings, gradients, buffers = self.settings, batch.gradients(), batch.states["momentum"]
        moves = list(torch._foreach_lerp(buffers, gradients, 1 - settings.beta1))
        torch._foreach_sign_(moves)
        if batch.weight_decay:
            torch._foreach_mul_(batch.parameters, 1 - learning_rate * batch.weight_decay)
        add_scaled_(batch.parameters, moves, -learning_rate)
        torch._foreach_lerp_(buffers, gradients, 1 - settings.value("lion_beta2"))

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:
        """Update several training runs at once."""
        weights, buffer = update.memory.parameters, update.memory.states["momentum"]
        rate = update.elements("rate")
        weights.addcmul_(rate * update.decay_of_elements, weights, value=-1)
        moves = torch.lerp(buffer, update.gradients, update.elements("first_part")).sign_()
        weights.addcmul_(rate, moves, value=-1)
        buffer.lerp_(update.gradients, 1 - settings.value("lion_beta2"))
