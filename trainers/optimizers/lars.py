"""LARS, layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888, algorithm 1).

    ratio = trust_coefficient * ||w|| / (||g|| + weight_decay * ||w||)      per tensor, raw gradient g
    v = momentum * v + learning_rate * ratio * (g + weight_decay * w)       the rate stands inside the buffer
    w = w - v                                  (Nesterov: w - momentum * v - learning_rate * ratio * (...))

Biases and normalization parameters take part with ratio 1 and without decay, unless ``decay_norm_and_bias``
is set. A tensor whose weight or gradient norm is zero (the zero-initialised last gamma of a block) has
ratio 1. Apex's LARC and NVCaffe's variant are other rules: they keep the rate outside the buffer, or clip
the ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.optimizer import ParameterGroup, load_groups, save_groups

Tensors = tuple[Tensor, ...] | list[Tensor]


class LARS:
    """LARS over the ``scaled`` parameters, SGD with the rate inside the buffer over the ``plain`` ones."""

    def __init__(self, scaled: ParameterGroup, plain: ParameterGroup, settings: TrainingSettings) -> None:
        self.scaled, self.plain = scaled, plain
        self.momentum, self.nesterov = settings.momentum, settings.nesterov
        self.weight_decay, self.trust_coefficient = settings.weight_decay, settings.trust_coefficient

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update every parameter from its gradient."""
        if self.scaled.parameters:
            self._move(self.scaled, self._scaled_updates(learning_rate))
        if self.plain.parameters:
            self._move(self.plain, torch._foreach_mul(self.plain.gradients(), learning_rate))

    def _scaled_updates(self, learning_rate: float) -> Tensors:
        weights, gradients = self.scaled.parameters, self.scaled.gradients()
        ratios = trust_ratios(_norms(weights), _norms(gradients), self.trust_coefficient, self.weight_decay)
        updates = torch._foreach_add(gradients, weights, alpha=self.weight_decay)
        torch._foreach_mul_(updates, list((learning_rate * ratios).unbind()))
        return updates

    def _move(self, group: ParameterGroup, updates: Tensors) -> None:
        torch._foreach_mul_(group.momentum_buffers, self.momentum)
        torch._foreach_add_(group.momentum_buffers, updates)
        torch._foreach_sub_(group.parameters, group.momentum_buffers,
                            alpha=self.momentum if self.nesterov else 1)
        if self.nesterov:
            torch._foreach_sub_(group.parameters, updates)

    def state_dict(self) -> dict[str, Any]:
        """The momentum buffers."""
        return save_groups(self.scaled, self.plain)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        load_groups(state, self.scaled, self.plain)


def trust_ratios(weight_norms: Tensor, gradient_norms: Tensor, trust_coefficient: float,
                 weight_decay: float) -> Tensor:
    """The ratio of each tensor, from norms of shape ``(tensors,)``; 1 where either norm is zero."""
    ratios = trust_coefficient * weight_norms / (gradient_norms + weight_decay * weight_norms)
    return torch.where((weight_norms > 0) & (gradient_norms > 0), ratios, 1.0)


def _norms(tensors: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors))
