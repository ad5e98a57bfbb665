"""The common memory of fused training runs: parameters, optimizer state and buffers, stacked to (K, ...).

The K copies of a parameter of shape (...) are adjacent in memory. All parameters thus form one tensor ``(elements,)``
that one operation can update, and each stacked parameter is a view ``(K, ...)`` of that tensor::

    first parameter of run 0, of run 1, ..., second parameter of run 0, of run 1, ...

The parameters, states and buffers of each training run are views of the same memory, so code that reads or writes them,
such as a checkpoint, works as in an ordinary run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainers.errors import JobError
from trainers.loop.synchronous import SynchronousTraining
from trainers.optimizers.optimizer import GroupOptimizer


class StackedMemory:
    """The tensors of ``K`` training runs of one model, moved into common memory on creation.

    Attributes:
        parameters: all trained parameters, ``(elements,)``, the leaf of the graph. states: the optimizers' tensors by
        name, ``(elements,)``. fixed: buffers and untrained parameters, by name, ``(K, ...)``. training_of: the run to
        which each element belongs, ``(elements,)`` int32. block_of: each element's index into a vector ``(tensors *
        K,)`` over tensors and runs. block_sizes: the number of elements that belong to each of these indices.
    """

    def __init__(self, trainings: Sequence[SynchronousTraining]) -> None:
        models = [training.model for training in trainings]
        self.count = len(trainings)
        self._names, shapes = _trained(models[0])
        self._layouts = [_Layout(tensor) for tensor in shapes]
        self._offsets = [0]
        for layout in self._layouts:
            self._offsets.append(self._offsets[-1] + self.count * layout.elements)
        self.block_sizes = [layout.elements for layout in self._layouts for _ in range(self.count)]
        self.parameters = self._empty(shapes[0])
        for training, model in enumerate(models):
            self._adopt(self.parameters, [*_parameters(model)], training)
        self.parameters.requires_grad_()
        self.fixed = _stack_fixed(models)
        self.states = self._stack_states(trainings)
        sizes = torch.tensor(self.block_sizes, device=self.parameters.device)
        blocks = torch.arange(len(sizes), device=sizes.device, dtype=torch.int32)
        self.block_of = blocks.repeat_interleave(sizes)
        self.training_of = self.block_of % self.count

    def stacked(self) -> dict[str, Tensor]:
        """Return the parameters by name, shape ``(K, ...)``, differentiable with respect to ``parameters``."""
        parts = self.parameters.split_with_sizes(
            [self.count * each.elements for each in self._layouts]
        )
        return {
            name: layout.stacked(part, self.count)
            for name, layout, part in zip(self._names, self._layouts, parts, strict=True)
        }

    def of_training(self, values: Tensor, training: int) -> list[Tensor]:
        """Return one run's part of ``values``, ``(elements,)``, as a view for each parameter."""
        return [
            layout.one(values[start + training * layout.elements :])
            for layout, start in zip(self._layouts, self._offsets, strict=False)
        ]

    def norms(self, *values: Tensor) -> Tensor:
        """Return the norm of every tensor of every run, shape ``(values, tensors * K)``."""
        parts = [part for each in values for part in each.split_with_sizes(self.block_sizes)]
        return torch.stack(torch._foreach_norm(parts)).view(len(values), -1)

    def squared_norms(self, values: Tensor) -> Tensor:
        """Return the sum of squares of each run's values, ``(K,)`` in float64."""
        return self.norms(values).double().square().view(-1, self.count).sum(0)

    def over_elements(self, of_trainings: Tensor) -> Tensor:
        """Expand a vector over the runs, ``(K,)``, to a vector over the elements."""
        return of_trainings.index_select(0, self.training_of)

    def over_blocks(self, of_trainings: Tensor) -> Tensor:
        """Expand a vector over the runs, ``(K,)``, to a vector over tensors and runs."""
        return of_trainings.repeat(len(self._layouts))

    def release(self, trainings: Sequence[SynchronousTraining]) -> None:
        """Give every run its own memory again."""
        for training in trainings:
            model = training.model
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.data = tensor.data.clone()
            rule = group_optimizer_of(training)
            for group in rule.groups:
                for name in _common_states(rule):
                    for tensor in group.states[name]:
                        tensor.data = tensor.data.clone()
            _rebatch(rule)

    def _empty(self, like: Tensor) -> Tensor:
        return torch.empty(self._offsets[-1], dtype=like.dtype, device=like.device)

    def _adopt(self, memory: Tensor, tensors: Sequence[Tensor], training: int) -> None:
        for own, place in zip(tensors, self.of_training(memory, training), strict=True):
            place.copy_(own.detach())
            own.data = place

    def _stack_states(self, trainings: Sequence[SynchronousTraining]) -> dict[str, Tensor]:
        names = _common_states(group_optimizer_of(trainings[0]))
        states = {name: self._empty(self.parameters) for name in names}
        for number, training in enumerate(trainings):
            rule, order = group_optimizer_of(training), [*_parameters(training.model)]
            for name, memory in states.items():
                own = {
                    id(parameter): tensor
                    for group in rule.groups
                    for parameter, tensor in zip(group.parameters, group.states[name], strict=True)
                }
                self._adopt(memory, [own[id(parameter)] for parameter in order], number)
            _rebatch(rule)
        return states


class _Layout:
    """The memory layout of a dense tensor: ``elements`` elements, with dimensions in order of decreasing stride."""

    def __init__(self, tensor: Tensor) -> None:
        self.elements, self._shape, self._stride = tensor.numel(), tensor.shape, tensor.stride()
        order = sorted(range(tensor.ndim), key=lambda each: (-self._stride[each], each))
        self._sizes = [self._shape[each] for each in order]
        self._back = [0, *(1 + order.index(each) for each in range(tensor.ndim))]

    def stacked(self, part: Tensor, count: int) -> Tensor:
        """Return a differentiable view of ``(count * elements,)`` as ``(count, ...)``, each item in this layout."""
        return part.view(count, *self._sizes).permute(self._back)

    def one(self, part: Tensor) -> Tensor:
        """View the first ``elements`` numbers as the tensor."""
        return part.as_strided(self._shape, self._stride)


def _trained(model: nn.Module) -> tuple[list[str], list[Tensor]]:
    named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    types = {each.dtype for _, each in named}
    if len(types) != 1:
        raise JobError(
            "the trained parameters of fused training runs must have one data type, but this "
            "model's have "
            f"{', '.join(sorted(map(str, types))) or 'none'}; leave resources.fused_trials out"
        )
    return [name for name, _ in named], [each.detach() for _, each in named]


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _stack_fixed(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Stack buffers and untrained parameters; the models' own tensors become views of the stack."""
    named = [
        {
            **dict(model.named_buffers()),
            **{name: each for name, each in model.named_parameters() if not each.requires_grad},
        }
        for model in models
    ]
    stacks = {}
    for name in named[0]:
        own = [tensors[name] for tensors in named]
        stacks[name] = torch.stack([tensor.detach() for tensor in own])
        for tensor, view in zip(own, stacks[name].unbind(), strict=True):
            tensor.data = view
    return stacks


def group_optimizer_of(training: SynchronousTraining) -> GroupOptimizer:
    """Return the optimizer of a run, which keeps no weights of its own."""
    assert isinstance(training.optimizer, GroupOptimizer), "reduced weights are not fused"
    return training.optimizer


def _common_states(rule: GroupOptimizer) -> list[str]:
    """Return the names of the states that every parameter has; other states stay where they are."""
    return [name for name in rule.state_names if all(name in group.states for group in rule.groups)]


def _rebatch(rule: GroupOptimizer) -> None:
    """Rebuild an optimizer's parameter batches, because the parameters and states that they view have moved."""
    rule.batches = [batch for group in rule.groups for batch in group.batches()]
