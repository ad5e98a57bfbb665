"""What the training loop asks of an optimizer, and what all optimizers here have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from search_spaces.settings import TrainingSettings
from trainers.errors import CheckpointError
from trainers.optimizers.parameter_groups import ParameterBatch, ParameterGroup


class Optimizer(Protocol):
    """One update per call; the rate is handed in, so that a schedule stays a pure function of progress."""

    def step(self, learning_rate: float, epochs: float = 0.0) -> None:
        """Update every parameter from its ``grad``, the gradient of the mean loss over the global batch.

        ``epochs`` is the progress of the training (samples processed over data-set size) before this update;
        only RMSprop warm-up reads it.
        """

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""


class GroupOptimizer(ABC):
    """An optimizer over parameter groups, updated batch by batch.

    A rule says which tensors of state each parameter has (``state_names``) and how a batch is updated.
    """

    state_names: ClassVar[tuple[str, ...]] = ("momentum",)

    def __init__(self, groups: Sequence[ParameterGroup], settings: TrainingSettings) -> None:
        self.groups, self.settings = groups, settings
        self.updates = 0
        self.epochs = 0.0
        for group in groups:
            for name in self.state_names:
                group.add_state(name)
        self.batches = [batch for group in groups for batch in group.batches()]

    @torch.no_grad()
    def step(self, learning_rate: float, epochs: float = 0.0) -> None:
        """Update every parameter from its gradient; see :class:`Optimizer`."""
        self.updates += 1
        self.epochs = epochs
        for batch in self.batches:
            batch.follow()
            self.update(batch, learning_rate)

    @abstractmethod
    def update(self, batch: ParameterBatch, learning_rate: float) -> None:
        """Update the parameters and the state of one batch; ``self.updates`` counts from 1."""

    def state_of(self, group: ParameterGroup, index: int) -> dict[str, Tensor]:
        """The tensors of state of one parameter of a group, of its shape, by name; not copies."""
        return {name: group.states[name][index] for name in self.state_names}

    def state_dict(self) -> dict[str, Any]:
        """The number of updates and the tensors of every group."""
        return {"updates": self.updates, "groups": [group.state_dict() for group in self.groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave; another model's or rule's raises :class:`CheckpointError`."""
        groups = state.get("groups")
        if groups is None or len(groups) != len(self.groups):
            raise CheckpointError(
                f"the checkpoint's optimizer has {0 if groups is None else len(groups)} groups of "
                f"parameters, but this training's has {len(self.groups)}; go on with the model and "
                "the settings it was made with"
            )
        for group, saved in zip(self.groups, groups, strict=True):
            group.load_state_dict(saved)
        self.updates = int(state["updates"])
