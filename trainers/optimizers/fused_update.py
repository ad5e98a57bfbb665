"""One simultaneous update of several trainings of one model, as input to the optimizers' fused rules.

All tensors are ``(elements,)``, in the order of :class:`trainers.fused.memory.StackedMemory`; a number that differs
between trainings is a vector over the trainings, so that no update waits for the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


class StackedTensors(Protocol):
    """The tensors of a fused rule: parameters and states of all trainings, ``(elements,)`` each."""

    parameters: Tensor
    states: dict[str, Tensor]
    block_of: Tensor

    def norms(self, *values: Tensor) -> Tensor:
        """Return the norm of every tensor of every training, shape ``(values, tensors * K)``."""

    def over_elements(self, of_trainings: Tensor) -> Tensor:
        """Expand a vector over the trainings, ``(K,)``, to one over the elements."""

    def over_blocks(self, of_trainings: Tensor) -> Tensor:
        """Expand a vector over the trainings, ``(K,)``, to one over tensors and trainings."""


@dataclass(frozen=True)
class FusedUpdate:
    """One update of all trainings: their gradients ``(elements,)`` and their numbers, ``(K,)`` by name.

    The coefficients of weight decay are given per element and per tensor of each training; ``adapted`` says whether
    layer-wise adaptation applies to a tensor; ``of_blocks`` holds factors by which a tensor's named number is scaled.
    """

    memory: StackedTensors
    gradients: Tensor
    numbers: Mapping[str, Tensor]
    decay_of_elements: Tensor
    decay_of_blocks: Tensor
    adapted: Tensor
    of_blocks: Mapping[str, Tensor] = field(default_factory=dict)

    def elements(self, name: str) -> Tensor:
        """Return each training's number of this name for each of its elements: shape ``(elements,)``."""
        if name in self.of_blocks:
            return self.spread(self.blocks(name))
        return self.memory.over_elements(self.numbers[name])

    def blocks(self, name: str) -> Tensor:
        """Return each training's number of this name for each of its tensors: shape ``(blocks,)``."""
        of_blocks = self.memory.over_blocks(self.numbers[name])
        if name in self.of_blocks:
            return of_blocks * self.of_blocks[name]
        return of_blocks

    def spread(self, of_blocks: Tensor) -> Tensor:
        """Expand one number per tensor, shape ``(blocks,)``, to the tensors' elements: shape ``(elements,)``."""
        return of_blocks.index_select(0, self.memory.block_of)

    def gradients_with_decay(self) -> Tensor:
        """Return the gradients of the loss and of weight_decay / 2 * ||w||^2, shape ``(elements,)``."""
        return torch.addcmul(self.gradients, self.decay_of_elements, self.memory.parameters)
