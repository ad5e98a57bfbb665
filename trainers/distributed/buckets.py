"""Send many small tensors as a few large ones, called flat buckets.

A bucket of 25 MB, as in PyTorch's DDP, is large enough to use the bandwidth and small enough to pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

BUCKET_BYTES = 25 * 2**20


def in_buckets(
    tensors: Sequence[Tensor],
    operation: Callable[[list[Tensor]], None],
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Apply an in-place ``operation`` to copies of the tensors, flattened into buckets; copy the results back."""
    if not tensors:  # such as the statistics of a model without batch norm, on every worker
        return
    groups = tensor_buckets(tensors, bucket_bytes)
    flat = [torch.cat([tensor.detach().reshape(-1) for tensor in group]) for group in groups]
    operation(flat)
    for group, joined in zip(groups, flat, strict=True):
        parts = torch.split(joined, [tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.detach().copy_(part.view(tensor.shape))


def tensor_buckets(
    tensors: Sequence[Tensor],
    bucket_bytes: int,
    type_of: Callable[[Tensor], torch.dtype] = lambda tensor: tensor.dtype,
) -> list[list[Tensor]]:
    """Group the tensors, in order, into buckets of one type and at most ``bucket_bytes`` (or one larger tensor)."""
    groups: list[list[Tensor]] = []
    filled = 0
    for tensor in tensors:
        kind = type_of(tensor)
        size = tensor.numel() * kind.itemsize
        if not groups or type_of(groups[-1][0]) != kind or filled + size > bucket_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += size
    return groups
