"""The interface of optimizers for the training loop, and the base class of all optimizers here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from search_spaces.plugins import load_attribute
from search_spaces.settings import TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from trainers.distributed.communicator import Communicator
from trainers.errors import CheckpointError, JobError
from trainers.optimizers.fused_update import FusedUpdate
from trainers.optimizers.parameter_groups import ParameterBatch, ParameterGroup


class Optimizer(Protocol):
    """An optimizer that does one update per call and takes the rate as an argument, so schedules are pure functions."""

    def step(
        self,
        learning_rate: float | Tensor,
        epochs: float | Tensor = 0.0,
        left_out: Tensor | None = None,
    ) -> None:
        """Update every parameter from its ``grad``, the gradient of the mean loss over the global batch.

        ``epochs`` is the training progress before this update (samples processed over data-set size); only RMSprop
        warm-up, and AdEMAMix with a warmup, read it. Rate and progress may be scalar tensors on the parameters' device.
        If ``left_out``, a bool scalar on that device, is true, the update changes nothing; the host does not wait for
        an accelerator.
        """

    def evaluation(self) -> AbstractContextManager[None]:
        """Return a context in which the parameters are set for evaluation; afterwards they are set for training."""

    def gather(self) -> None:
        """Copy to every worker the state that only some keep; all workers call this before one saves the state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by :meth:`state_dict`."""


def optimizer_rule_named(name: str) -> type[GroupOptimizer]:
    """Return the rule of the optimizer with this name, from the file that its description names.

    Raises :class:`JobError` if the rule cannot be imported or is not a rule.
    """
    reference = OPTIMIZERS[name].rule
    try:
        rule = load_attribute(reference)
    except Exception as error:
        raise JobError(
            f"the rule of optimizer {name!r}, {reference}, cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(rule, type) and issubclass(rule, GroupOptimizer)):
        raise JobError(
            f"the rule of optimizer {name!r}, {reference}, must be a subclass of GroupOptimizer"
        )
    return rule


class GroupOptimizer(ABC):
    """An optimizer over parameter groups, updated batch by batch.

    A rule declares the state tensors of each parameter (``state_names``), how a batch is updated, and whether the host
    must know if the next update is skipped (``waits_if_left_out``). ``fused`` is the same update for several training
    runs at once; without it each fused run is updated by its own rule, which is correct but slower. If ``fused`` needs
    numbers that no other rule uses, ``fused_numbers`` computes them from the settings of one run, the learning rate of
    the update and the epochs completed before it.

    On an accelerator a skipped update is computed anyway, because the host does not yet know that it is skipped. It is
    undone by selecting between the tensors before and after the update. This needs memory for a second copy of
    parameters and state, and three more passes over them.
    """

    state_names: ClassVar[tuple[str, ...]] = ("momentum",)
    waits_if_left_out = False
    communicator: Communicator | None = None
    """The workers of a synchronous training run, which all do every update; a rule may divide its work among them.

    State that the rule keeps on only some workers is collected in ``gather``.
    """

    def __init__(self, groups: Sequence[ParameterGroup], settings: TrainingSettings) -> None:
        self.groups, self.settings = groups, settings
        self.updates = 0
        self.epochs: float | Tensor = 0.0
        self._left_out: Tensor | None = None  # skipped updates, if only the device knows
        for group in groups:
            for name in self.names_of_state(group):
                group.add_state(name)
        self.batches = [batch for group in groups for batch in group.batches()]

    @torch.no_grad()
    def step(
        self,
        learning_rate: float | Tensor,
        epochs: float | Tensor = 0.0,
        left_out: Tensor | None = None,
    ) -> None:
        """Update every parameter from its gradient; see :class:`Optimizer`."""
        on_cpu = all(batch.on_cpu for batch in self.batches)
        if on_cpu:  # values can be read without waiting
            learning_rate, epochs = float(learning_rate), float(epochs)
        elif isinstance(learning_rate, Tensor):  # needed by torch's multi-tensor operations
            learning_rate = learning_rate.to(self.batches[0].parameters[0].dtype)
        if left_out is not None and (on_cpu or self.waits_if_left_out):
            if left_out:
                return
            left_out = None
        for batch in self.batches:
            batch.follow()
        before = () if left_out is None else torch._foreach_mul(self._changed(), 1.0)  # copies
        self.updates += 1
        self.epochs = epochs
        self.begin_update(learning_rate)
        for batch in self.batches:
            self.update(batch, learning_rate * batch.rate if batch.rate != 1 else learning_rate)
        if left_out is None:
            return
        for tensor, old in zip(self._changed(), before, strict=True):
            torch.where(left_out, old, tensor, out=tensor)
        self._left_out = left_out.float() + (0.0 if self._left_out is None else self._left_out)

    @property
    def reads_epochs(self) -> bool:
        """Whether the updates depend on the training progress; most rules' do not."""
        return False

    @property
    def count(self) -> float | Tensor:
        """The number of updates done, including the current one; a tensor if only the device knows the number."""
        return self.updates if self._left_out is None else self.updates - self._left_out

    def names_of_state(self, group: ParameterGroup) -> tuple[str, ...]:  # noqa: ARG002 - for subclasses
        """Return the names of the state tensors of each parameter of a group, by default all of ``state_names``."""
        return self.state_names

    def begin_update(self, learning_rate: float | Tensor) -> None:  # noqa: B027 - most rules need none
        """Do the work of a rule that is due once per update, before its batches are updated."""

    def evaluation(self) -> AbstractContextManager[None]:
        """Return a context in which the parameters are set for evaluation; most rules evaluate what they train."""
        return nullcontext()

    @abstractmethod
    def update(self, batch: ParameterBatch, learning_rate: float | Tensor) -> None:
        """Update the parameters and the state of one batch; ``self.count`` is 1 in the first update.

        The learning rate is a plain number if ``batch.on_cpu``.
        """

    @staticmethod
    def fused(update: FusedUpdate, settings: TrainingSettings) -> None:
        """Do one update of several training runs, whose settings agree as :mod:`trainers.fused.fusable` requires."""
        raise NotImplementedError

    @staticmethod
    def fused_numbers(settings: TrainingSettings, rate: float, epochs: float) -> dict[str, float]:  # noqa: ARG004
        """Return the numbers that only this rule reads, by name, for an update of one training run."""
        return {}

    def _changed(self) -> list[Tensor]:
        """Return every tensor that an update changes."""
        return [
            tensor
            for batch in self.batches
            for tensors in (batch.parameters, *batch.states.values())
            for tensor in tensors
        ]

    def state_of(self, group: ParameterGroup, index: int) -> dict[str, Tensor]:
        """Return the state tensors of one parameter of a group by name, in the parameter's shape, without copying."""
        return {name: group.states[name][index] for name in self.names_of_state(group)}

    def gather(self) -> None:  # noqa: B027 - most rules keep all of their state on every worker
        """Copy to every worker the state that only some keep; all workers call this before one saves the state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the number of updates and the tensors of every group."""
        return {
            "updates": int(self.count),
            "groups": [group.state_dict() for group in self.groups],
            **self.numbers(),
        }

    def numbers(self) -> dict[str, Any]:
        """Return a rule's state other than tensors and the number of updates, as plain values by name."""
        return {}

    def set_numbers(self, numbers: Mapping[str, Any]) -> None:  # noqa: B027 - most rules keep none
        """Restore the state returned by :meth:`numbers`."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`; raise :class:`CheckpointError` if the model or rule differs."""
        groups = state.get("groups")
        if groups is None or len(groups) != len(self.groups):
            raise CheckpointError(
                f"the checkpoint's optimizer has {0 if groups is None else len(groups)} groups of "
                f"parameters, but this run's has {len(self.groups)}; resume with the "
                f"model and the settings it was saved with"
            )
        for group, saved in zip(self.groups, groups, strict=True):
            group.load_state_dict(saved)
        self.go_on_after(int(state["updates"]))
        self.set_numbers(state)

    def go_on_after(self, updates: int) -> None:
        """Continue the count after ``updates`` earlier updates."""
        self.updates, self._left_out = updates, None
