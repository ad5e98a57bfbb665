"""Adam's moments (Kingma and Ba, arXiv:1412.6980, algorithm 1), shared by Adam, AdamW, LARC on Adam, and LAMB.

    m = beta1 * m + (1 - beta1) * g         v = beta2 * v + (1 - beta2) * g^2
    direction = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)             t, ``count``, is 1 at first

Without ``bias_correction`` the two divisors are 1, their limit for large t, so the kernel receives a large t. PyTorch's
fused Adam kernel reads and writes each tensor once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.parameter_groups import ParameterBatch, kernel_rate

STATE_NAMES = ("first_moment", "second_moment")


def move_by_moments_(
    batch: ParameterBatch,
    gradients: list[Tensor],
    settings: TrainingSettings,
    *,
    count: float | Tensor,
    rate: float | Tensor,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> None:
    """Add ``gradients`` to the moments of a batch and move its parameters by ``-rate * direction``.

    Gradients, moments and parameters are flat, one tensor of shape ``(elements,)`` for each parameter; ``count`` is t,
    which is 1 at the first update. ``weight_decay * w`` is part of the gradient unless the decay is ``decoupled``, in
    which case the parameters first shrink by ``rate * weight_decay`` (Loshchilov and Hutter, arXiv:1711.05101).
    """
    _fused_(
        batch.parameters,
        batch,
        gradients,
        settings,
        count=count,
        rate=rate,
        weight_decay=weight_decay,
        decoupled=decoupled,
    )


def negative_directions(
    batch: ParameterBatch,
    gradients: list[Tensor],
    settings: TrainingSettings,
    *,
    count: float | Tensor,
) -> list[Tensor]:
    """Add ``gradients`` to the moments of a batch and return ``-(direction + weight_decay * w)`` for each parameter.

    The returned tensors are the batch's temporaries and have the shape of the gradients, ``(elements,)``.
    """
    moved = batch.temporaries()
    if batch.on_cpu and batch.weight_decay:
        # the kernel multiplies by 1 - rate * weight_decay, computed in float64; here this is -batch.weight_decay
        torch._foreach_copy_(moved, batch.parameters)
        _fused_(
            moved,
            batch,
            gradients,
            settings,
            count=count,
            rate=1.0,
            weight_decay=1 + batch.weight_decay,
            decoupled=True,
        )
        return moved
    torch._foreach_zero_(moved)
    _fused_(moved, batch, gradients, settings, count=count, rate=1.0)
    if batch.weight_decay:
        torch._foreach_sub_(moved, batch.parameters, alpha=batch.weight_decay)
    return moved


def bias_correction(
    beta: float, count: float | Tensor, settings: TrainingSettings
) -> float | Tensor:
    """Return ``1 - beta^count``, the divisor of an average that started at 0; 1 without ``bias_correction``."""
    if not settings.bias_correction:
        return 1.0
    return 1 - beta ** (count.double() if isinstance(count, Tensor) else count)


def fused_direction(update: FusedUpdate, gradients: Tensor) -> Tensor:
    """Update the moments of several training runs with the gradients; return the directions, ``(elements,)``."""
    first, second = (update.memory.states[name] for name in STATE_NAMES)
    first.lerp_(gradients, update.elements("first_part"))
    second.mul_(update.elements("beta2"))
    second.addcmul_(update.elements("second_part") * gradients, gradients)
    roots = (second / update.elements("second_correction")).sqrt_()
    return first / update.elements("first_correction") / roots.add_(update.elements("epsilon"))


def _fused_(
    moved: list[Tensor],
    batch: ParameterBatch,
    gradients: list[Tensor],
    settings: TrainingSettings,
    *,
    count: float | Tensor,
    rate: float | Tensor,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> None:
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    if not settings.bias_correction:
        count = math.inf
    if not isinstance(count, Tensor):
        count = torch.full((), count, dtype=torch.float32, device=moved[0].device)
    kernel(
        moved,
        gradients,
        batch.states["first_moment"],
        batch.states["second_moment"],
        [],
        [count] * len(moved),
        lr=kernel_rate(rate),
        beta1=settings.beta1,
        beta2=settings.beta2,
        weight_decay=weight_decay,
        eps=settings.epsilon * batch.epsilon,
        amsgrad=False,
        maximize=False,
    )
