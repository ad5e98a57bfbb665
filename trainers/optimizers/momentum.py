"""Heavy-ball and Nesterov momentum with the learning rate outside or inside the buffer.

``d`` is the gradient with its weight decay, ``v`` the buffer, ``w`` the parameter, and ``ratio`` the trust ratio of the
parameter's tensor, which is 1 in plain SGD. ``form`` is one of

    outside     v = momentum * v + d                                    w = w - rate * ratio * v
    inside      v = momentum * v + rate * ratio * d                     w = w - v
    corrected   v = momentum * v * rate / last rate + rate * ratio * d  w = w - v

Nesterov momentum applies the momentum to the new buffer and adds the new term again, which gives w - rate * ratio * (d
+ momentum * v) outside and w - momentum * v - rate * ratio * d inside. The forms differ whenever the rate or the ratio
changes. The corrected form (Goyal et al., arXiv:1706.02677, section 3, remark 2) stores v / rate, which follows
``momentum * v + ratio * d`` with the rate outside. This gives the same result wherever the correction is defined, and
is also defined after a rate of 0. Without ratios the corrected form therefore equals the outside form.

PyTorch's fused SGD kernel reads and writes each tensor once; its ``1 - dampening`` is the factor of ``d``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.parameter_groups import ParameterBatch, kernel_rate


def momentum_move_(
    batch: ParameterBatch,
    gradients: list[Tensor],
    form: str,
    rate: float | Tensor,
    momentum: float,
    *,
    nesterov: bool,
    ratios: float | Tensor = 1.0,
) -> None:
    """Move a batch by the rule of ``form``; ``gradients`` exclude weight decay, and the batch's decay is added.

    ``ratios`` is a single trust ratio, or one ratio for each tensor, shape ``(tensors,)``.
    """
    factors: dict[str, tuple[float | Tensor, float | Tensor]] = {
        "outside": (1.0, rate * ratios),
        "inside": (rate * ratios, 1.0),
        "corrected": (ratios, rate),
    }
    inner, outer = factors[form]
    fused = isinstance(inner, float) and (isinstance(outer, float) or outer.ndim == 0)
    if (nesterov and form != "outside") or not (fused or batch.on_cpu):
        _move_by_passes_(batch, gradients, inner, outer, momentum, nesterov=nesterov)
    elif isinstance(inner, float) and fused:
        _move_fused_(
            batch.parameters,
            gradients,
            batch.states["momentum"],
            inner,
            outer,
            momentum,
            batch.weight_decay,
            nesterov=nesterov,
        )
    else:
        for weight, gradient, buffer, mine, its in zip(
            batch.parameters,
            gradients,
            batch.states["momentum"],
            _listed(inner, batch),
            _listed(outer, batch),
            strict=True,
        ):
            _move_fused_(
                [weight],
                [gradient],
                [buffer],
                mine,
                its,
                momentum,
                batch.weight_decay,
                nesterov=nesterov,
            )


def move_outside_(
    batch: ParameterBatch,
    gradients: list[Tensor],
    rate: float | Tensor,
    momentum: float,
    *,
    nesterov: bool,
    weight_decay: float,
) -> None:
    """Move a batch with the rate outside the buffer: ``m = momentum * m + g``, then ``w = w - rate * m``.

    ``gradients`` are flat, shape ``(elements,)`` each; ``weight_decay`` times the parameters is still added to them.
    """
    _move_fused_(
        batch.parameters,
        gradients,
        batch.states["momentum"],
        1.0,
        rate,
        momentum,
        weight_decay,
        nesterov=nesterov,
    )


def fused_momentum(
    update: FusedUpdate, settings: TrainingSettings, form: str, ratios: Tensor | None = None
) -> None:
    """Do :func:`momentum_move_` for several training runs; ``ratios`` are given per tensor and run, None means 1."""
    rate = update.blocks("rate")
    rated = rate if ratios is None else rate * ratios
    inner, outer = {
        "outside": (None, rated),
        "inside": (rated, None),
        "corrected": (ratios, rate),
    }[form]
    move_fused_trainings(
        update, update.gradients_with_decay(), inner, outer, nesterov=settings.nesterov
    )


def move_fused_trainings(
    update: FusedUpdate,
    terms: Tensor,
    inner: Tensor | None,
    outer: Tensor | None,
    *,
    nesterov: bool,
) -> None:
    """Set v = momentum * v + inner * term and w = w - outer * v; factors are per tensor and run, and None means 1."""
    weights, buffer = update.memory.parameters, update.memory.states["momentum"]
    momentum = update.elements("momentum")
    if inner is not None:
        terms *= update.spread(inner)
    buffer.mul_(momentum).add_(terms)
    moves = torch.addcmul(terms, momentum, buffer) if nesterov else buffer
    if outer is None:
        weights.sub_(moves)
    else:
        weights.addcmul_(update.spread(outer), moves, value=-1)


def _move_fused_(
    weights: list[Tensor],
    gradients: list[Tensor],
    buffers: list[Tensor],
    inner: float,
    outer: float | Tensor,
    momentum: float,
    weight_decay: float,
    *,
    nesterov: bool,
) -> None:
    if momentum == 0:  # in this case the kernel ignores dampening
        inner, outer = 1.0, inner * outer
    torch._fused_sgd_(
        weights,
        gradients,
        buffers if momentum else [],
        weight_decay=weight_decay,
        momentum=momentum,
        lr=kernel_rate(outer),
        dampening=1.0 - inner,
        nesterov=nesterov,
        maximize=False,
        is_first_step=False,
    )


def _move_by_passes_(
    batch: ParameterBatch,
    gradients: list[Tensor],
    inner: float | Tensor,
    outer: float | Tensor,
    momentum: float,
    *,
    nesterov: bool,
) -> None:
    buffers = batch.states["momentum"]
    updates = list(torch._foreach_add(gradients, batch.parameters, alpha=batch.weight_decay))
    _scale_(updates, inner)
    torch._foreach_mul_(buffers, momentum)
    torch._foreach_add_(buffers, updates)
    moves = list(
        torch._foreach_add(updates, buffers, alpha=momentum)
        if nesterov
        else torch._foreach_mul(buffers, 1.0)
    )
    _scale_(moves, outer)
    torch._foreach_sub_(batch.parameters, moves)


def _scale_(tensors: list[Tensor], factors: float | Tensor) -> None:
    if isinstance(factors, Tensor):
        torch._foreach_mul_(tensors, list(factors.unbind()) if factors.ndim else factors)
    elif factors != 1:
        torch._foreach_mul_(tensors, factors)


def _listed(factors: float | Tensor, batch: ParameterBatch) -> list[float]:
    return factors.tolist() if isinstance(factors, Tensor) else [factors] * len(batch.parameters)
