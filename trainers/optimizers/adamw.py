"""AdamW, Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2).

    w = w - rate * weight_decay * w - rate * direction          the direction of moments.py

The decay is multiplied by the learning rate, as in PyTorch; in the paper by the schedule's factor alone.
"""

from __future__ import annotations

from torch import Tensor

from trainers.optimizers.moments import STATE_NAMES, move_by_moments_
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch


class AdamWRule(GroupOptimizer):
    """Adam with the decay beside the moments."""

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
