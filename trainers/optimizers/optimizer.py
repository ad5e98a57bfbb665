"""What the training loop asks of an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trainers.errors import CheckpointError


class Optimizer(Protocol):
    """One update per call; the rate is handed in, so that a schedule stays a pure function of progress."""

    def step(self, learning_rate: float) -> None:
        """Update every parameter from its ``grad``, the gradient of the mean loss over the global batch."""

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""


class ParameterGroup:
    """Parameters that are treated alike, with one momentum buffer each."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.momentum_buffers = [torch.zeros_like(parameter) for parameter in self.parameters]

    def gradients(self) -> list[Tensor]:
        """The gradient of each parameter; zeros where the loss does not depend on it."""
        return [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for parameter in self.parameters]

    def load(self, buffers: list[Tensor]) -> None:
        """Copy saved momentum buffers into these."""
        shapes = [tuple(buffer.shape) for buffer in buffers]
        if shapes != [tuple(buffer.shape) for buffer in self.momentum_buffers]:
            raise CheckpointError("the checkpoint's momentum buffers do not have the shapes of this model's "
                                  "parameters")
        for mine, saved in zip(self.momentum_buffers, buffers, strict=True):
            mine.copy_(saved)


def save_groups(*groups: ParameterGroup) -> dict[str, Any]:
    """The momentum buffers of some groups, as a state dictionary."""
    return {"momentum_buffers": [[buffer.clone() for buffer in group.momentum_buffers] for group in groups]}


def load_groups(state: Mapping[str, Any], *groups: ParameterGroup) -> None:
    """Restore the momentum buffers that :func:`save_groups` gave."""
    for group, buffers in zip(groups, state["momentum_buffers"], strict=True):
        group.load(buffers)
