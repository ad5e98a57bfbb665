"""Stochastic gradient descent with momentum, with the learning rate outside or inside the buffer.

With d = g + weight_decay * w, ``momentum_form`` is

    outside     v = momentum * v + d                  w = w - rate * v          PyTorch's rule, and the default
    inside      v = momentum * v + rate * d           w = w - v                 Caffe's rule
    corrected   v = momentum * v * rate / last rate + rate * d      w = w - v   inside, with momentum correction

With Nesterov momentum, the step is w - rate * (d + momentum * v) outside, and w - momentum * v - rate * d inside. With
the rate inside, the buffer must be corrected whenever the rate changes (Goyal et al., arXiv:1706.02677, section 3,
remark 2). The corrected form equals the outside form (momentum.py).
"""

from __future__ import annotations

from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.momentum import fused_momentum, momentum_move_
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch


class SGDRule(GroupOptimizer):
    """SGD by the rule of ``momentum_form``, with heavy-ball or Nesterov momentum."""

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        settings = self.settings
        momentum_move_(
            batch,
            batch.gradients(),
            settings.momentum_form or "outside",
            learning_rate,
            settings.momentum,
            nesterov=settings.nesterov,
        )

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:
        """Update several training runs at once."""
        fused_momentum(update, settings, settings.momentum_form or "outside")
