"""Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1), with the decay added to the gradient: g + weight_decay * w.

    w = w - rate * direction                            the direction of moments.py

When the batch grows by a factor k, the rate should grow by a factor between sqrt(k) and k. Adam itself includes
``bias_correction``.
"""

from __future__ import annotations

from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.moments import STATE_NAMES, fused_direction, move_by_moments_
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch


class AdamRule(GroupOptimizer):
    """Adam with L2 regularization."""

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
        )

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:  # noqa: ARG004 - as all rules
        """Update several training runs at once."""
        direction = fused_direction(update, update.gradients_with_decay())
        update.memory.parameters.addcmul_(update.elements("rate"), direction, value=-1)
