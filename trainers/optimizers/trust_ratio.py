"""The trust ratio of layer-wise adaptation, for all tensors of a batch at once, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def tensor_norms(*lists: list[Tensor]) -> Tensor:
    """Return the Euclidean norms of the tensors in several lists of equal length, shape ``(lists, tensors)``."""
    together = [tensor for tensors in lists for tensor in tensors]
    return torch.stack(torch._foreach_norm(together)).view(len(lists), -1)


def trust_ratios(
    weight_norms: Tensor,
    gradient_norms: Tensor,
    trust_coefficient: float | Tensor,
    weight_decay: float | Tensor,
    epsilon: float | Tensor = 0.0,
) -> Tensor:
    """Return ``trust_coefficient * ||w|| / (||g|| + weight_decay * ||w|| + epsilon)``; 1 where either norm is zero.

    This is equation 6 of You et al., arXiv:1708.03888, computed from the raw gradient, with the decay in the
    denominator. Norms, ratios and factors that are not plain numbers have shape ``(tensors,)``.
    """
    ratios = (
        trust_coefficient * weight_norms / (gradient_norms + weight_decay * weight_norms + epsilon)
    )
    return torch.where((weight_norms > 0) & (gradient_norms > 0), ratios, 1.0)
