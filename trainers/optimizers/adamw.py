"""AdamW, Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2).

    w = w - rate * weight_decay * w - rate * direction          the direction of moments.py

The decay is multiplied by the learning rate, as in PyTorch; in the paper it is multiplied only by the schedule's
factor.
"""

from __future__ import annotations

from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.moments import STATE_NAMES, fused_direction, move_by_moments_
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch


class AdamWRule(GroupOptimizer):
    """Adam with the weight decay kept separate from the moments."""

    state_names = STATE_NAMES

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        move_by_moments_(
            batch,
            batch.gradients(),
            self.settings,
            count=self.count,
            rate=learning_rate,
            weight_decay=batch.weight_decay,
            decoupled=True,
        )

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:  # noqa: ARG004 - as all rules
        """Update several training runs at once."""
        weights, rate = update.memory.parameters, update.elements("rate")
        weights.addcmul_(rate * update.decay_of_elements, weights, value=-1)
        weights.addcmul_(rate, fused_direction(update, update.gradients), value=-1)
