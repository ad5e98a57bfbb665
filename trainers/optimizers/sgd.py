"""Stochastic gradient descent with momentum, PyTorch's rule: the learning rate stands outside the buffer.

    d = g + weight_decay * w
    v = momentum * v + d
    w = w - learning_rate * v                       (Nesterov: w - learning_rate * (d + momentum * v))

Goyal et al. (arXiv:1706.02677, section 3, remark 2): with the rate inside the buffer the buffer must be
corrected when the rate changes; in this form there is nothing to correct.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from search_spaces.settings import TrainingSettings
from trainers.optimizers.optimizer import ParameterGroup, load_groups, save_groups


class SGD:
    """SGD over parameters that decay and parameters that do not."""

    def __init__(self, decayed: ParameterGroup, plain: ParameterGroup, settings: TrainingSettings) -> None:
        self.decayed, self.plain = decayed, plain
        self.momentum, self.nesterov = settings.momentum, settings.nesterov
        self.weight_decay = settings.weight_decay

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update every parameter from its gradient."""
        self._step(self.decayed, learning_rate, self.weight_decay)
        self._step(self.plain, learning_rate, 0.0)

    def _step(self, group: ParameterGroup, learning_rate: float, weight_decay: float) -> None:
        if not group.parameters:
            return
        direction = group.gradients()
        if weight_decay:
            direction = list(torch._foreach_add(direction, group.parameters, alpha=weight_decay))
        torch._foreach_mul_(group.momentum_buffers, self.momentum)
        torch._foreach_add_(group.momentum_buffers, direction)
        torch._foreach_add_(group.parameters, group.momentum_buffers,
                            alpha=-learning_rate * (self.momentum if self.nesterov else 1))
        if self.nesterov:
            torch._foreach_add_(group.parameters, direction, alpha=-learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """The momentum buffers."""
        return save_groups(self.decayed, self.plain)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        load_groups(state, self.decayed, self.plain)
