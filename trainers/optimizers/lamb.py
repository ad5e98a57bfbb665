"""LAMB, layer-wise adaptive moments for batch training (You et al., arXiv:1904.00962, algorithm 2).

    r = direction of Adam, with or without ``bias_correction``                  per element (moments.py)
    u = r + weight_decay * w
    ratio = phi(||w||) / (||u|| + trust_epsilon)        phi(x) = min(x, weight_norm_limit), or x without a limit
    w = w - rate * ratio * u                            per tensor

The decay is decoupled from the moments but included in the trust ratio. The paper has no trust_epsilon, so its default
is 0. A tensor with ||w|| = 0 or ||u|| = 0 has ratio 1.

Biases and normalization parameters have ratio 1 and do not decay unless ``adapt_norm_and_bias`` and
``decay_norm_and_bias`` are set; apex's FusedLAMB likewise adapts only parameters that decay. NVLAMB is LAMB with
``adapt_norm_and_bias`` true, ``bias_correction`` true and ``gradient_clip_norm`` 1.0; the training loop clips the
gradient before it enters the moments. FusedLAMB's defaults are epsilon 1e-6, betas 0.9 and 0.999, and weight_decay
0.01.
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.moments import STATE_NAMES, fused_direction, negative_directions
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, add_scaled_
from trainers.optimizers.trust_ratio import tensor_norms


class LAMBRule(GroupOptimizer):
    """LAMB for the adapted parameters, AdamW for the others."""

    state_names = STATE_NAMES

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        weights = batch.parameters
        moves = negative_directions(batch, batch.gradients(), self.settings, count=self.count)
        if not batch.adapted:
            add_scaled_(weights, moves, learning_rate)
        elif batch.on_cpu:
            for weight, move, rate in zip(
                weights, moves, (learning_rate * self._ratios(weights, moves)).tolist(), strict=True
            ):
                weight.add_(move, alpha=rate)
        else:
            torch._foreach_mul_(moves, list(self._ratios(weights, moves).unbind()))
            add_scaled_(weights, moves, learning_rate)

    def _ratios(self, weights: list[Tensor], moves: list[Tensor]) -> Tensor:
        weight_norms, move_norms = tensor_norms(weights, moves)
        limited = (
            weight_norms.clamp(max=self.settings.weight_norm_limit)
            if self.settings.weight_norm_limit is not None
            else weight_norms
        )
        ratios = limited / (move_norms + self.settings.trust_epsilon)
        return torch.where((weight_norms > 0) & (move_norms > 0), ratios, 1.0)

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:  # noqa: ARG004 - as all rules
        """Update several training runs at once."""
        memory, weights = update.memory, update.memory.parameters
        direction = fused_direction(update, update.gradients)
        moves = torch.addcmul(direction, update.decay_of_elements, weights)
        weight_norms, move_norms = memory.norms(weights, moves)
        limited = torch.minimum(weight_norms, update.blocks("weight_norm_limit"))
        ratios = limited / (move_norms + update.blocks("trust_epsilon"))
        defined = (weight_norms > 0) & (move_norms > 0) & update.adapted
        rates = update.blocks("rate") * torch.where(defined, ratios, 1.0)
        weights.addcmul_(update.spread(rates), moves, value=-1)
