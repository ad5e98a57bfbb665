"""One simultaneous update of several training runs of one model, as input to the optimizers' fused rules.

All tensors are ``(elements,)``, in the order of :class:`trainers.fused.memory.StackedMemory`. A number that differs
between runs is a vector over the runs, so that no update waits for the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


class StackedTensors(Protocol):
    """The tensors of a fused rule: parameters and states of all runs, ``(elements,)`` each."""

    parameters: Tensor
    states: dict[str, Tensor]
    block_of: Tensor

    def norms(self, *values: Tensor) -> Tensor:
        """Return the norm of every tensor of every run, shape ``(values, tensors * K)``."""

    def over_elements(self, of_trainings: Tensor) -> Tensor:
        """Expand a vector over the runs, ``(K,)``, to a vector over the elements."""

    def over_blocks(self, of_trainings: Tensor) -> Tensor:
        """Expand a vector over the runs, ``(K,)``, to a vector over tensors and runs."""


@dataclass(frozen=True)
class FusedUpdate:
    """One update of all runs: their gradients, ``(elements,)``, and their numbers by name, ``(K,)``.

    The coefficients of weight decay are given per element and per tensor of each run; ``adapted`` says whether
    layer-wise adaptation applies to a tensor; ``of_blocks`` holds, by name, the factors that scale a tensor's numbers.
    """

    memory: StackedTensors
    gradients: Tensor
    numbers: Mapping[str, Tensor]
    decay_of_elements: Tensor
    decay_of_blocks: Tensor
    adapted: Tensor
    of_blocks: Mapping[str, Tensor] = field(default_factory=dict)

    def elements(self, name: str) -> Tensor:
        """Return each run's number of this name for each of its elements, shape ``(elements,)``."""
        if name in self.of_blocks:
            return self.spread(self.blocks(name))
        return self.memory.over_elements(self.numbers[name])

    def blocks(self, name: str) -> Tensor:
        """Return each run's number of this name for each of its tensors, shape ``(blocks,)``."""
        of_blocks = self.memory.over_blocks(self.numbers[name])
        if name in self.of_blocks:
            return of_blocks * self.of_blocks[name]
        return of_blocks

    def spread(self, of_blocks: Tensor) -> Tensor:
        """Expand one number per tensor, shape ``(blocks,)``, to all elements, shape ``(elements,)``."""
        return of_blocks.index_select(0, self.memory.block_of)

    def gradients_with_decay(self) -> Tensor:
        """Return the gradients of the loss and of weight_decay / 2 * ||w||^2, shape ``(elements,)``."""
        return torch.addcmul(self.gradients, self.decay_of_elements, self.memory.parameters)
