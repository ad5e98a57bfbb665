"""Heavy-ball and Nesterov momentum with the learning rate outside or inside the buffer.

``d`` is the gradient with its weight decay, ``v`` the buffer, ``w`` the parameter.

    outside:  v = momentum * v + d           w = w - rate * v      (Nesterov: w - rate * (d + momentum * v))
    inside:   v = momentum * v + rate * d    w = w - v             (Nesterov: w - momentum * v - rate * d)

The two differ whenever the rate changes (Goyal et al., arXiv:1706.02677, section 3, remark 2). PyTorch's fused
kernel of SGD reads and writes each tensor once; with ``1 - dampening`` as the rate it also serves the form inside.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.optimizers.parameter_groups import Batch


def move_outside_(batch: Batch, gradients: list[Tensor], rate: float, momentum: float, *, nesterov: bool,
                  weight_decay: float) -> None:
    """Move a batch with the rate outside the buffer; ``weight_decay`` is what the gradients do not hold yet."""
    _fused_sgd_(batch.parameters, gradients, batch.states["momentum"], weight_decay=weight_decay, momentum=momentum,
                rate=rate, dampening=0.0, nesterov=nesterov)


def move_inside_(batch: Batch, gradients: list[Tensor], rates: float | Tensor, momentum: float, *,
                 nesterov: bool) -> None:
    """Move a batch with the rate inside the buffer; ``gradients`` hold no decay yet, the batch's is added.

    ``rates`` is one rate, or one for each tensor, shape ``(tensors,)``.
    """
    if nesterov or not (isinstance(rates, float) or batch.on_cpu):
        _move_inside_by_passes_(batch, gradients, rates, momentum, nesterov=nesterov)
    elif isinstance(rates, float):
        _move_inside_fused_(batch.parameters, gradients, batch.states["momentum"], rates, momentum,
                            batch.weight_decay)
    else:
        for weight, gradient, buffer, rate in zip(batch.parameters, gradients, batch.states["momentum"],
                                                  rates.tolist(), strict=True):
            _move_inside_fused_([weight], [gradient], [buffer], rate, momentum, batch.weight_decay)


def _move_inside_fused_(weights: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], rate: float,
                        momentum: float, weight_decay: float) -> None:
    if momentum == 0:       # the kernel knows no dampening then
        _fused_sgd_(weights, gradients, buffers, weight_decay=weight_decay, momentum=0.0, rate=rate, dampening=0.0)
    else:
        _fused_sgd_(weights, gradients, buffers, weight_decay=weight_decay, momentum=momentum, rate=1.0,
                    dampening=1.0 - rate)


def _move_inside_by_passes_(batch: Batch, gradients: list[Tensor], rates: float | Tensor, momentum: float, *,
                            nesterov: bool) -> None:
    weights, buffers = batch.parameters, batch.states["momentum"]
    updates = torch._foreach_add(gradients, weights, alpha=batch.weight_decay)
    if isinstance(rates, float):
        torch._foreach_mul_(updates, rates)
    else:
        torch._foreach_mul_(updates, list(rates.unbind()))
    torch._foreach_mul_(buffers, momentum)
    torch._foreach_add_(buffers, updates)
    torch._foreach_sub_(weights, buffers, alpha=momentum if nesterov else 1.0)
    if nesterov:
        torch._foreach_sub_(weights, updates)


def _fused_sgd_(weights: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], *, weight_decay: float,
                momentum: float, rate: float, dampening: float, nesterov: bool = False) -> None:
    torch._fused_sgd_(weights, gradients, buffers if momentum else [], weight_decay=weight_decay, momentum=momentum,
                      lr=rate, dampening=dampening, nesterov=nesterov, maximize=False, is_first_step=False)
