"""The messages between the server, the replicas and the training process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.asynchronous.clocks import Staleness
from trainers.schedules.noise_scale import SquaredNorms

Packed = list[NDArray[np.uint8]]
"""Tensors of any type as byte arrays, which Ray transfers without pickling copies."""


@dataclass(frozen=True)
class EpochUpdates:
    """The updates up to an evaluation: from ``first_step`` up to but not including ``last_step``."""

    number: int
    first_step: int
    last_step: int


@dataclass(frozen=True)
class ServerWeights:
    """The server's parameters after ``version`` updates since it started, and its normalization statistics."""

    version: int
    parameters: Packed
    statistics: Packed


@dataclass(frozen=True)
class GradientPush:
    """The gradient (None if it overflowed) of the mean loss over one global batch, that loss, and the statistics."""

    epoch: int
    worker: int
    version: int
    loss: float
    gradient: Packed | None
    statistics: Packed
    measured: SquaredNorms | None


@dataclass(frozen=True)
class EpochResult:
    """The result of an epoch: losses in update order, the last learning rate, and the staleness of the gradients."""

    losses: Sequence[float]
    learning_rate: float
    noise_scale: float | None
    staleness: Staleness


def pack_tensors(tensors: Iterable[Tensor], dtype: torch.dtype | None = None) -> Packed:
    """Return copies of the tensors, cast to ``dtype`` if one is given."""
    return [
        tensor.detach()
        .to("cpu", dtype or tensor.dtype, copy=True)
        .reshape(-1)
        .view(torch.uint8)
        .numpy()
        for tensor in tensors
    ]


def unpack_tensors(
    packed: Packed, like: Sequence[Tensor], dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Restore packed tensors, which were sent as ``dtype``, with the shapes, types and devices of ``like``."""
    return [
        torch.tensor(array)
        .view(dtype or tensor.dtype)
        .view(tensor.shape)
        .to(tensor.device, tensor.dtype)
        for array, tensor in zip(packed, like, strict=True)
    ]


def copy_into(tensors: Sequence[Tensor], packed: Packed) -> None:
    """Copy the packed values into the tensors."""
    with torch.no_grad():
        for tensor, value in zip(tensors, unpack_tensors(packed, tensors), strict=True):
            tensor.copy_(value)


@dataclass(frozen=True)
class ActorSetup:
    """What an actor needs to build its parts: the job, the number of replicas, the threads per replica, and the visible
    GPUs.
    """

    job: dict[str, Any]
    workers: int
    threads: int
    visible_devices: str | None
