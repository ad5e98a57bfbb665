"""The arithmetic of the optimizers' reference codes, in float64, tensor by tensor, to compare 50 steps with.

Written after the codes named with each, which are not this project's; each takes the tensors, the gradients of every
step and its rate, and returns the tensors at the end. ``excluded`` says of each tensor whether the code's own skip list
names it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Gradients = Sequence[Sequence[Tensor]]
"""By step and tensor."""


def torch_sgd(
    weights: Sequence[Tensor],
    gradients: Gradients,
    rates: Sequence[float],
    *,
    momentum: float,
    decay: float,
    nesterov: bool = False,
) -> list[Tensor]:
    """PyTorch's own torch.optim.SGD."""
    moved = [weight.clone().requires_grad_() for weight in weights]
    optimizer = torch.optim.SGD(
        moved, momentum=momentum, weight_decay=decay, nesterov=nesterov, foreach=False
    )
    return _stepped(optimizer, moved, gradients, rates)


def apex_larc(
    weights: Sequence[Tensor],
    gradients: Gradients,
    rates: Sequence[float],
    *,
    momentum: float,
    decay: float,
    trust: float = 0.02,
    epsilon: float = 1e-8,
    clip: bool = True,
) -> list[Tensor]:
    """NVIDIA/apex, apex/parallel/LARC.py, commit 0bfb8308, around torch.optim.SGD."""
    moved = [weight.clone().requires_grad_() for weight in weights]
    optimizer = torch.optim.SGD(moved, momentum=momentum, weight_decay=0, foreach=False)

    def scaled(weight: Tensor, gradient: Tensor, rate: float) -> Tensor:
        weight_norm, gradient_norm = weight.norm(), gradient.norm()
        if weight_norm == 0 or gradient_norm == 0:
            return gradient
        adaptive = trust * weight_norm / (gradient_norm + weight_norm * decay + epsilon)
        return (gradient + decay * weight) * (min(adaptive / rate, 1) if clip else adaptive)

    def of_step(step: int) -> list[Tensor]:
        return [
            scaled(weight.detach(), gradient, rates[step])
            for weight, gradient in zip(moved, gradients[step], strict=True)
        ]

    return _stepped(optimizer, moved, gradients, rates, of_step)


def mlperf_lars(
    weights: Sequence[Tensor],
    gradients: Gradients,
    rates: Sequence[float],
    excluded: Sequence[bool],
    *,
    momentum: float,
    decay: float,
    nesterov: bool = False,
    eeta: float = 0.001,
    epsilon: float = 1e-7,
) -> list[Tensor]:
    """mlcommons/training, tensorflow2/lars_optimizer.py, commit aa344c7f: _resource_apply_dense."""
    moved = [weight.clone() for weight in weights]
    buffers = [torch.zeros_like(weight) for weight in weights]
    for step, rate in enumerate(rates):
        for at, raw in enumerate(gradients[step]):
            scaled_rate, gradient = rate, raw
            if not excluded[at]:
                scaled_rate *= _trust_ratio(moved[at], raw, eeta, decay, epsilon)
                gradient = raw + decay * moved[at]
            buffers[at] = buffers[at] * momentum - gradient * scaled_rate
            if nesterov:
                moved[at] = moved[at] + buffers[at] * momentum - gradient * scaled_rate
            else:
                moved[at] = moved[at] + buffers[at]
    return moved


def nvidia_lars(
    weights: Sequence[Tensor],
    gradients: Gradients,
    rates: Sequence[float],
    excluded: Sequence[bool],
    *,
    momentum: float,
    decay: float,
    eta: float = 0.001,
    epsilon: float = 0.0,
) -> list[Tensor]:
    """mlcommons/training_results_v1.0, NVIDIA's fit.py, SGDwFASTLARS, with MXNet's sgd_mom_update.

    Excluded parameters have no decay, by MXNet's set_wd_mult.
    """
    moved = [weight.clone() for weight in weights]
    buffers = [torch.zeros_like(weight) for weight in weights]
    last_rate = rates[0]
    for step, rate in enumerate(rates):
        corrected = momentum * (rate / last_rate)
        last_rate = rate
        for at, gradient in enumerate(gradients[step]):
            own_decay = 0.0 if excluded[at] else decay
            own_rate = (
                rate
                if excluded[at]
                else rate * _trust_ratio(moved[at], gradient, eta, decay, epsilon)
            )
            buffers[at] = corrected * buffers[at] - own_rate * (gradient + own_decay * moved[at])
            moved[at] = moved[at] + buffers[at]
    return moved


def timm_lars(
    weights: Sequence[Tensor],
    gradients: Gradients,
    rates: Sequence[float],
    excluded: Sequence[bool],
    *,
    momentum: float,
    decay: float,
    nesterov: bool = False,
    trust: float = 0.001,
    epsilon: float = 1e-8,
) -> list[Tensor]:
    """huggingface/pytorch-image-models, timm/optim/lars.py, commit 5788a1af, without trust_clip.

    The ratio is on the gradient, before the buffer; the rate outside. A parameter that does not decay is not adapted
    (always_adapt is False), which is what timm's groups do to the excluded.
    """
    moved = [weight.clone() for weight in weights]
    buffers: list[Tensor | None] = [None] * len(moved)
    for step, rate in enumerate(rates):
        for at, raw in enumerate(gradients[step]):
            gradient, own_decay = raw, 0.0 if excluded[at] else decay
            if own_decay != 0:
                ratio = _trust_ratio(moved[at], raw, trust, own_decay, epsilon)
                gradient = (raw + own_decay * moved[at]) * ratio
            before = buffers[at]
            after = gradient if before is None else before * momentum + gradient
            buffers[at] = after
            moved[at] = moved[at] - rate * (gradient + momentum * after if nesterov else after)
    return moved


def tensorflow1_lars(
    weights: Sequence[Tensor],
    gradients: Gradients,
    rates: Sequence[float],
    excluded: Sequence[bool],
    *,
    momentum: float,
    decay: float,
    eeta: float = 0.001,
) -> list[Tensor]:
    """tensorflow/tpu, models/official/resnet/lars_optimizer.py, commit fcfae743, with the decay in the gradient.

    TensorFlow's apply_momentum: accumulation = momentum * accumulation + gradient; variable -= rate * accumulation.
    """
    moved = [weight.clone() for weight in weights]
    buffers = [torch.zeros_like(weight) for weight in weights]
    for step, rate in enumerate(rates):
        for at, raw in enumerate(gradients[step]):
            scaled_rate, gradient = rate, raw
            if not excluded[at]:
                scaled_rate *= _trust_ratio(moved[at], raw, eeta, decay, 0.0)
                gradient = raw + decay * moved[at]
            buffers[at] = momentum * buffers[at] + gradient
            moved[at] = moved[at] - scaled_rate * buffers[at]
    return moved


def apex_lamb(
    weights: Sequence[Tensor],
    gradients: Gradients,
    rates: Sequence[float],
    *,
    decay: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    largest_norm: float = 1.0,
    nvlamb: bool = False,
) -> list[Tensor]:
    """NVIDIA/apex, csrc/multi_tensor_lamb.cu and apex/optimizers/fused_lamb.py, commit 6424da3b, AdamW mode."""
    moved = [weight.clone() for weight in weights]
    first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    for step, rate in enumerate(rates, 1):
        norm = torch.sqrt(
            sum((gradient.square().sum() for gradient in gradients[step - 1]), torch.zeros(()))
        )
        clipped = norm / largest_norm if norm > largest_norm else 1.0
        for at, gradient in enumerate(gradients[step - 1]):
            scaled = gradient / clipped
            first[at] = first[at] * beta1 + (1 - beta1) * scaled
            second[at] = second[at] * beta2 + (1 - beta2) * scaled * scaled
            update = (first[at] / (1 - beta1**step)) / (
                (second[at] / (1 - beta2**step)).sqrt() + epsilon
            ) + decay * moved[at]
            ratio = rate
            if (nvlamb or decay != 0) and update.norm() != 0 and moved[at].norm() != 0:
                ratio = rate * float(moved[at].norm() / update.norm())
            moved[at] = moved[at] - ratio * update
    return moved


def _trust_ratio(
    weight: Tensor, gradient: Tensor, eta: float, decay: float, epsilon: float
) -> float:
    weight_norm, gradient_norm = float(weight.norm()), float(gradient.norm())
    if not (weight_norm > 0 and gradient_norm > 0):
        return 1.0
    return eta * weight_norm / (gradient_norm + decay * weight_norm + epsilon)


def _stepped(optimizer, moved, gradients, rates, of_step=None) -> list[Tensor]:
    for step, rate in enumerate(rates):
        found = gradients[step] if of_step is None else of_step(step)
        for weight, gradient in zip(moved, found, strict=True):
            weight.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    return [weight.detach() for weight in moved]
