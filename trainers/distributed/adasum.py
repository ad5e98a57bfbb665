"""Adasum: combine the gradients of several workers, averaging where they agree and adding where they do not.

Two gradients a and b become (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b, for each tensor of the model. More than
two are combined in pairs of neighbours, then pairs of pairs (Maleki et al., arXiv:2006.02924). Horovod's own
implementation needs MPI ("No Adasum operation enabled" if Horovod was built with gloo alone), so this implementation
serves both backends. Each worker combines one slice of every worker's gradient, and only the inner products are summed
between the levels, so the traffic is that of a ring all-reduce plus log2(workers) small sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad


class AdasumExchange(Protocol):
    """The collective operations that Adasum needs; each call returns when its operation is done."""

    @property
    def rank(self) -> int:
        """This worker's number."""

    @property
    def size(self) -> int:
        """The number of workers."""

    def all_to_all(self, flat: Tensor) -> Tensor:
        """Send part r of each ``flat`` to worker r; return the parts received, ``(size, len(flat) / size)``."""

    def all_gather(self, part: Tensor) -> Tensor:
        """Return every worker's ``part``, one after another; shape ``(size * len(part),)``."""

    def sum_(self, small: Tensor) -> None:
        """Replace ``small``, shape ``(numbers,)``, with its sum over the workers."""


def adasum_(flat: Tensor, sizes: Sequence[int], exchange: AdasumExchange) -> None:
    """Replace ``flat``, shape ``(numbers,)``, with its Adasum over the workers, separately for each stretch of
    ``sizes`` numbers.

    The number of workers must be a power of two. Numbers are sent in the data type of ``flat`` and combined in fp32;
    the inner products are summed in fp64.
    """
    numbers = sum(sizes)
    padded = pad(flat[:numbers], (0, -numbers % exchange.size))
    rows = exchange.all_to_all(padded)
    slices = _slices(sizes, exchange.rank * rows.shape[1], rows.shape[1])
    wide = rows if rows.dtype == torch.float64 else rows.float()
    while len(wide) > 1:
        wide = _combine_neighbours(wide, slices, len(sizes), exchange)
    flat[:numbers].copy_(exchange.all_gather(wide[0].to(flat.dtype))[:numbers])


def _combine_neighbours(
    rows: Tensor, slices: list[tuple[int, slice]], tensors: int, exchange: AdasumExchange
) -> Tensor:
    a, b = rows[0::2], rows[1::2]
    products = torch.zeros(3, tensors, len(a), dtype=torch.float64, device=rows.device)
    for at, part in slices:
        mine, other = a[:, part].double(), b[:, part].double()
        products[0, at], products[1, at] = (mine * other).sum(1), mine.square().sum(1)
        products[2, at] = other.square().sum(1)
    exchange.sum_(products)
    share_a, share_b = (
        1 - products[0] / (2 * norm.clamp_min(torch.finfo(torch.float64).tiny))
        for norm in products[1:]
    )
    combined = torch.zeros_like(a)
    for at, part in slices:
        combined[:, part] = (
            share_a[at, :, None] * a[:, part] + share_b[at, :, None] * b[:, part]
        ).to(a.dtype)
    return combined


def _slices(sizes: Sequence[int], first: int, length: int) -> list[tuple[int, slice]]:
    """Return the tensors that overlap the ``length`` numbers starting at ``first``, each with its slice of them."""
    found, begin = [], 0
    for at, size in enumerate(sizes):
        low, high = max(begin - first, 0), min(begin + size - first, length)
        if low < high:
            found.append((at, slice(low, high)))
        begin += size
    return found
