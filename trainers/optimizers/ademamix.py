"""AdEMAMix, AdamW with a second, slow average of the gradient (Pagliardini et al., arXiv:2409.03137, algorithm 1).

    m = beta1 * m + (1 - beta1) * g         s = b * s + (1 - b) * g         v = beta2 * v + (1 - beta2) * g^2
    w = w - rate * weight_decay * w - rate * (m / (1 - beta1^t) + a * s) / (sqrt(v / (1 - beta2^t)) + epsilon)

The slow average s has no bias correction. Over ``ademamix_warmup_epochs``, as p goes from 0 to 1, a rises linearly from
0 to ``ademamix_alpha``, and b rises from beta1 to ``ademamix_beta3`` such that the half-life of the average rises
linearly (section 3.1):

    b = exp(ln beta1 ln beta3 / ((1 - p) ln beta3 + p ln beta1))

The paper counts p in updates, from 1. Here p is the progress before the update divided by the length of the warmup, so
that its meaning does not depend on the batch size. Without a warmup a and b are constant.
"""

from __future__ import annotations

import math
from typing import Any, overload

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.moments import STATE_NAMES, bias_correction, fused_direction
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, add_scaled_


@overload
def mix(settings: TrainingSettings, epochs: float) -> tuple[float, float]: ...
@overload
def mix(settings: TrainingSettings, epochs: float | Tensor) -> tuple[Any, Any]: ...
def mix(settings: TrainingSettings, epochs: float | Tensor) -> tuple[Any, Any]:
    """Return a and b after ``epochs`` epochs, as tensors on the device if only the device knows the epochs."""
    alpha, slow = settings.value("ademamix_alpha"), settings.value("ademamix_beta3")
    warmup, fast = settings.value("ademamix_warmup_epochs"), settings.beta1
    if warmup == 0 or (not isinstance(epochs, Tensor) and epochs >= warmup):
        return alpha, slow
    share = epochs / warmup
    if isinstance(share, Tensor):
        share = share.clamp(max=1.0)
    if fast == 0 or slow == 0:  # an average over a single gradient
        return alpha * share, slow
    first, last = math.log(fast), math.log(slow)
    exponent = first * last / ((1 - share) * last + share * first)
    keep = exponent.exp() if isinstance(exponent, Tensor) else math.exp(exponent)
    return alpha * share, keep


class AdEMAMixRule(GroupOptimizer):
    """AdamW with a mix of a fast and a slow average."""

    state_names = (*STATE_NAMES, "slow_moment")

    @property
    def reads_epochs(self) -> bool:
        """Whether the slow average is phased in over a warmup."""
        return bool(self.settings.value("ademamix_warmup_epochs") > 0)

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        settings, gradients = self.settings, batch.gradients()
        first, second, slow = (batch.states[name] for name in self.state_names)
        beta1, beta2 = settings.beta1, settings.beta2
        alpha, keep = mix(settings, self.epochs)
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(slow, keep)
        add_scaled_(slow, gradients, 1 - keep)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        moves = list(torch._foreach_div(first, bias_correction(beta1, self.count, settings)))
        add_scaled_(moves, slow, alpha)
        roots = list(torch._foreach_div(second, bias_correction(beta2, self.count, settings)))
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, settings.epsilon * batch.epsilon)
        torch._foreach_div_(moves, roots)
        if batch.weight_decay:
            torch._foreach_mul_(batch.parameters, 1 - learning_rate * batch.weight_decay)
        add_scaled_(batch.parameters, moves, -learning_rate)

    @staticmethod
    def fused_numbers(settings: TrainingSettings, rate: float, epochs: float) -> dict[str, float]:  # noqa: ARG004
        """Return a and 1 - b for an update of one training run."""
        alpha, keep = mix(settings, epochs)
        return {"slow_share": alpha, "slow_part": 1 - keep}

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:  # noqa: ARG004 - as all rules
        """Update several training runs at once."""
        weights, rate = update.memory.parameters, update.elements("rate")
        slow, second = (update.memory.states[name] for name in ("slow_moment", "second_moment"))
        weights.addcmul_(rate * update.decay_of_elements, weights, value=-1)
        moves = fused_direction(update, update.gradients)
        slow.lerp_(update.gradients, update.elements("slow_part"))
        roots = (second / update.elements("second_correction")).sqrt_()
        moves += update.elements("slow_share") * slow / roots.add_(update.elements("epsilon"))
        weights.addcmul_(rate, moves, value=-1)
