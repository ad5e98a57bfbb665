"""NAdamW: AdamW with Nesterov's momentum (Dozat, ICLR workshop 2016), as in optax, AlgoPerf and Levanter.

    m = beta1 * m + (1 - beta1) * g         v = beta2 * v + (1 - beta2) * g^2
    n = beta1 * m / (1 - beta1^(t+1)) + (1 - beta1) * g / (1 - beta1^t)
    w = w - rate * weight_decay * w - rate * n / (sqrt(v / (1 - beta2^t)) + epsilon)

The momentum is beta1 throughout. In ``torch.optim.NAdam``, a different rule, it instead rises from beta1 / 2 on a
separate schedule (Dozat's psi). Without ``bias_correction`` the divisors are 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.moments import STATE_NAMES, bias_correction
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, add_scaled_


class NAdamWRule(GroupOptimizer):
    """Adam with Nesterov's momentum, and with weight decay kept separate from the moments."""

    state_names = STATE_NAMES

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        settings, gradients = self.settings, batch.gradients()
        first, second = (batch.states[name] for name in STATE_NAMES)
        beta1, beta2 = settings.beta1, settings.beta2
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        moves = list(
            torch._foreach_mul(first, beta1 / bias_correction(beta1, self.count + 1, settings))
        )
        add_scaled_(moves, gradients, (1 - beta1) / bias_correction(beta1, self.count, settings))
        roots = list(torch._foreach_div(second, bias_correction(beta2, self.count, settings)))
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, settings.epsilon * batch.epsilon)
        torch._foreach_div_(moves, roots)
        if batch.weight_decay:
            torch._foreach_mul_(batch.parameters, 1 - learning_rate * batch.weight_decay)
        add_scaled_(batch.parameters, moves, -learning_rate)

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:  # noqa: ARG004 - as all rules
        """Update several training runs at once."""
        weights, rate = update.memory.parameters, update.elements("rate")
        first, second = (update.memory.states[name] for name in STATE_NAMES)
        part, correction = update.elements("first_part"), update.elements("first_correction")
        first.lerp_(update.gradients, part)
        second.mul_(update.elements("beta2"))
        second.addcmul_(update.elements("second_part") * update.gradients, update.gradients)
        # 1 - beta1^(t+1) = (1 - beta1) + beta1 * (1 - beta1^t), and 1 if the correction is 1
        following = torch.where(correction == 1, 1.0, part + (1 - part) * correction)
        moves = (1 - part) * first / following + part * update.gradients / correction
        roots = (second / update.elements("second_correction")).sqrt_()
        moves /= roots.add_(update.elements("epsilon"))
        weights.addcmul_(rate * update.decay_of_elements, weights, value=-1)
        weights.addcmul_(rate, moves, value=-1)
