"""LARC, layer-wise adaptive rate control, as in apex (NVIDIA/apex, apex/parallel/LARC.py, commit 0bfb8308).

    ratio = trust_coefficient * ||w|| / (||g|| + weight_decay * ||w|| + trust_epsilon)        per tensor
    factor = min(ratio / rate, 1)           ``larc_mode`` clip: the layer's rate is min(ratio, rate)
    factor = ratio                          ``larc_mode`` scale: the layer's rate is ratio * rate
    g' = factor * (g + weight_decay * w)    then one step of ``larc_optimizer`` with g' at the rate, without decay

Apex's defaults are trust_coefficient 0.02 and trust_epsilon 1e-8. ``sgd`` is PyTorch's SGD, with the rate outside the
buffer (unlike in LARS). ``adam`` is Adam, which cancels a constant factor of a tensor's gradient and so reacts only to
changes in the ratio; Kurth et al. (arXiv:1810.01993) train with LARC on Adam.

A tensor whose weight or gradient norm is zero keeps its gradient unchanged and skips its decay for that update, as
in apex. Apex adapts every tensor (``adapt_norm_and_bias`` and ``decay_norm_and_bias`` true). Here, biases and
normalization parameters are left to the inner optimizer unless these settings say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.moments import STATE_NAMES, fused_direction, move_by_moments_
from trainers.optimizers.momentum import move_fused_trainings, move_outside_
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, ParameterGroup
from trainers.optimizers.trust_ratio import tensor_norms, trust_ratios


class LARCRule(GroupOptimizer):
    """LARC applied before SGD or Adam."""

    def __init__(self, groups: Sequence[ParameterGroup], settings: TrainingSettings) -> None:
        self.on_adam = settings.larc_optimizer == "adam"
        self.state_names = STATE_NAMES if self.on_adam else ("momentum",)  # type: ignore[misc]
        super().__init__(groups, settings)

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        gradients = (
            self._scaled_gradients(batch, learning_rate)
            if batch.adapted
            else batch.gradients_with_decay()
        )
        if self.on_adam:
            move_by_moments_(batch, gradients, self.settings, count=self.count, rate=learning_rate)
        else:
            move_outside_(
                batch,
                gradients,
                learning_rate,
                self.settings.momentum,
                nesterov=self.settings.nesterov,
                weight_decay=0.0,
            )

    def _scaled_gradients(
        self, batch: ParameterBatch, learning_rate: float | Tensor
    ) -> list[Tensor]:
        settings, gradients = self.settings, batch.gradients()
        weight_norms, gradient_norms = tensor_norms(batch.parameters, gradients)
        defined = (weight_norms > 0) & (gradient_norms > 0)
        factors = trust_ratios(
            weight_norms,
            gradient_norms,
            settings.trust_coefficient,
            batch.weight_decay,
            settings.trust_epsilon,
        )
        if settings.larc_mode == "clip":
            factors = (factors / learning_rate).clamp(max=1.0)
        factors = torch.where(defined, factors, 1.0)
        scaled = list(torch._foreach_mul(gradients, list(factors.unbind())))
        if batch.weight_decay:
            decays = torch.where(defined, factors * batch.weight_decay, 0.0)
            torch._foreach_add_(scaled, torch._foreach_mul(batch.parameters, list(decays.unbind())))
        return scaled

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:
        """Update several training runs at once."""
        memory, weights = update.memory, update.memory.parameters
        weight_norms, gradient_norms = memory.norms(weights, update.gradients)
        factors = trust_ratios(
            weight_norms,
            gradient_norms,
            update.blocks("trust_coefficient"),
            update.decay_of_blocks,
            update.blocks("trust_epsilon"),
        )
        if settings.larc_mode == "clip":
            factors = (factors / update.blocks("rate")).clamp(max=1.0)
        defined = (weight_norms > 0) & (gradient_norms > 0)
        factors = torch.where(defined & update.adapted, factors, 1.0)
        decays = torch.where(defined | ~update.adapted, factors * update.decay_of_blocks, 0.0)
        terms = update.spread(factors) * update.gradients
        terms.addcmul_(update.spread(decays), weights)
        if settings.larc_optimizer == "adam":
            weights.addcmul_(update.elements("rate"), fused_direction(update, terms), value=-1)
        else:
            rate = update.blocks("rate")
            move_fused_trainings(update, terms, None, rate, nesterov=settings.nesterov)
