"""RMSprop warm-up (Akiba, Suzuki and Fukuda, arXiv:1711.04325): RMSprop that becomes SGD.

    m = beta2 * m + (1 - beta2) * g^2
    D = momentum * D - (a_sgd + a_rms / (sqrt(m) + epsilon)) * g
    w = w + rate * D                                                the rate stands outside the buffer
    a_rms = (1 - a_sgd) * rmsprop_learning_rate / rate

The share a_sgd grows with the epochs, exponentially up to 1/2 at ``rmsprop_center_epochs`` and then linearly to 1,
which it reaches half of ``rmsprop_period_epochs`` later. The gradient g includes the decay, weight_decay * w. At rate 0
nothing moves, and a_rms counts as 0.

Center 10 and period 5 are from a summary of the paper, whose text was not available; beta2 0.99, momentum 0.9 and
rmsprop_learning_rate 3e-4 are from memory, as is the absence of another warmup. For the linear part, that summary gives
1/2 + 2 (epochs - center) / period, which has a kink at the center and would exceed 1. In the form used here, value and
slope are continuous, and 1 is reached on time.
"""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.optimizer import GroupOptimizer
from trainers.optimizers.parameter_groups import ParameterBatch, add_scaled_


@overload
def sgd_share(epochs: float, center_epochs: float, period_epochs: float) -> float: ...
@overload
def sgd_share(epochs: Tensor, center_epochs: float, period_epochs: float) -> Tensor: ...
def sgd_share(epochs: float | Tensor, center_epochs: float, period_epochs: float) -> float | Tensor:
    """Return a_sgd after ``epochs`` epochs, which is 1/2 exp(2 (epochs - center) / period), then linear up to 1."""
    if isinstance(epochs, Tensor):
        periods = (epochs - center_epochs) / period_epochs
        return torch.where(periods < 0, 0.5 * (2 * periods).exp(), (0.5 + periods).clamp(max=1.0))
    if epochs < center_epochs:
        return 0.5 * math.exp(2 * (epochs - center_epochs) / period_epochs)
    return min(0.5 + (epochs - center_epochs) / period_epochs, 1.0)


class RMSpropWarmupRule(GroupOptimizer):
    """RMSprop that gives way to momentum SGD over the first epochs."""

    state_names = ("momentum", "second_moment")
    reads_epochs = True

    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update one batch."""
        settings, gradients = self.settings, batch.gradients_with_decay()
        buffers, moments = batch.states["momentum"], batch.states["second_moment"]
        torch._foreach_mul_(moments, settings.beta2)
        torch._foreach_addcmul_(moments, gradients, gradients, value=1 - settings.beta2)
        torch._foreach_mul_(buffers, settings.momentum)
        torch._foreach_sub_(buffers, self._directions(gradients, moments, learning_rate))
        add_scaled_(batch.parameters, buffers, learning_rate)

    def _directions(
        self, gradients: list[Tensor], moments: list[Tensor], learning_rate: float | Tensor
    ) -> list[Tensor]:
        settings = self.settings
        share = sgd_share(
            self.epochs, settings.rmsprop_center_epochs, settings.rmsprop_period_epochs
        )
        if isinstance(share, float) and share == 1:
            return gradients
        factors = list(torch._foreach_sqrt(moments))
        torch._foreach_add_(factors, settings.epsilon)
        torch._foreach_reciprocal_(factors)
        adaptive = (1 - share) * settings.rmsprop_learning_rate
        if isinstance(learning_rate, Tensor):
            adaptive = torch.where(learning_rate == 0, 0.0, adaptive / learning_rate)
        else:
            adaptive = adaptive / learning_rate if learning_rate else 0.0
        # as lists, because the host would read a single scalar tensor to add it as a plain number
        for operation, number in ((torch._foreach_mul_, adaptive), (torch._foreach_add_, share)):
            if isinstance(number, Tensor):
                operation(factors, [number.to(factors[0].dtype)] * len(factors))
            else:
                operation(factors, number)
        torch._foreach_mul_(factors, gradients)
        return factors

    @staticmethod
    def fused_numbers(settings: TrainingSettings, rate: float, epochs: float) -> dict[str, float]:
        """Return a_sgd and a_rms for an update of one training run."""
        share = sgd_share(epochs, settings.rmsprop_center_epochs, settings.rmsprop_period_epochs)
        adaptive = (1 - share) * settings.rmsprop_learning_rate / rate if rate else 0.0
        return {"sgd_share": share, "rmsprop_share": adaptive}

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:  # noqa: ARG004 - as all rules
        """Update several training runs at once."""
        weights, terms = update.memory.parameters, update.gradients_with_decay()
        buffer, moment = (update.memory.states[name] for name in ("momentum", "second_moment"))
        moment.mul_(update.elements("beta2"))
        moment.addcmul_(update.elements("second_part") * terms, terms)
        factors = update.elements("rmsprop_share") / (
            moment.sqrt().add_(update.elements("epsilon"))
        )
        factors += update.elements("sgd_share")
        buffer.mul_(update.elements("momentum")).addcmul_(factors, terms, value=-1)
        weights.addcmul_(update.elements("rate"), buffer)
