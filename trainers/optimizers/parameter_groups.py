"""Groups of parameters that are treated alike, their state, and the batches in which they are updated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from search_spaces.settings import TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from trainers.errors import CheckpointError, WorkloadError
from trainers.numerics.parametrization import TensorGrowth
from trainers.optimizers.parameter_kinds import KINDS, Kind

BATCH_ELEMENTS = 1 << 18
"""The number of parameter elements that a CPU updates together: with gradients, state and temporaries, they stay in its
cache from the first pass to the last. A larger tensor is a separate batch.
"""


class ParameterTreatment(NamedTuple):
    """The treatment of a parameter: its coefficient of weight decay, whether layer-wise adaptation applies to it (the
    trust ratio, or Shampoo's preconditioners), and the factors of its learning rate and of Adam's epsilon.
    """

    weight_decay: float = 0.0
    adapted: bool = False
    rate: float = 1.0
    epsilon: float = 1.0


AS_IT_IS = ParameterTreatment()


class ParameterBatch:
    """Consecutive parameters of a group, updated together; on an accelerator the whole group is one batch.

    Parameters, gradients, states and temporaries are flat views of the tensors in memory order, shape ``(elements,)``,
    because PyTorch's fused kernels would first copy a gradient that is not contiguous.
    """

    def __init__(self, group: ParameterGroup, first: int, last: int, memory: Tensor) -> None:
        self.weight_decay, self.adapted, self.rate, self.epsilon = group.treatment
        self.shaped = group.parameters[first:last]
        self.states = {
            name: [_flat(tensor) for tensor in tensors[first:last]]
            for name, tensors in group.states.items()
        }
        self.on_cpu = self.shaped[0].device.type == "cpu"
        self._memory = memory
        self._layouts = [parameter.stride() for parameter in self.shaped]
        self._flatten_parameters()

    def follow(self) -> None:
        """Find the parameters' memory again, which may have moved.

        Raises :class:`WorkloadError` if the parameters' layout has changed.
        """
        if [parameter.data_ptr() for parameter in self.shaped] != self._addresses:
            if [parameter.stride() for parameter in self.shaped] != self._layouts:
                raise WorkloadError(
                    "the memory layout of the model's parameters must not change during "
                    "training, but it did (for instance to channels_last); change it before "
                    "the optimizer is created"
                )
            self._flatten_parameters()

    def gradients(self) -> list[Tensor]:
        """Return the gradient of each parameter, ``(elements,)``, or zeros if the loss does not depend on it."""
        return [
            _flat(gradient)
            if gradient is not None and gradient.stride() == layout
            else _flat(_gradient_like(parameter, gradient))
            for parameter, gradient, layout in zip(
                self.shaped,
                [parameter.grad for parameter in self.shaped],
                self._layouts,
                strict=True,
            )
        ]

    def gradients_with_decay(self) -> list[Tensor]:
        """Return the gradients of the loss and of weight_decay / 2 * ||w||^2, shape ``(elements,)`` each."""
        if self.weight_decay == 0:
            return self.gradients()
        return list(torch._foreach_add(self.gradients(), self.parameters, alpha=self.weight_decay))

    def temporaries(self) -> list[Tensor]:
        """Return an uninitialized tensor ``(elements,)`` for each parameter; on a CPU a group's batches share it.

        The operating system clears new memory page by page, which costs more than the update itself.
        """
        if not self.on_cpu:
            return [torch.empty_like(parameter) for parameter in self.parameters]
        sizes = [len(parameter) for parameter in self.parameters]
        return list(self._memory[: sum(sizes)].split_with_sizes(sizes))

    def _flatten_parameters(self) -> None:
        self.parameters = [_flat(parameter.detach()) for parameter in self.shaped]
        self._addresses = [parameter.data_ptr() for parameter in self.shaped]


class ParameterGroup:
    """Parameters that are treated alike, with their state tensors by name."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], treatment: ParameterTreatment = AS_IT_IS
    ) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.treatment = treatment
        self.weight_decay, self.adapted = treatment.weight_decay, treatment.adapted
        self.states: dict[str, list[Tensor]] = {}
        for parameter in self.parameters:
            if not _same_layout(parameter, torch.empty_like(parameter, device="meta")):
                raise WorkloadError(
                    f"a parameter must fill its memory without gaps, but one of shape "
                    f"{tuple(parameter.shape)} has strides {parameter.stride()}; make it contiguous"
                )

    def add_state(self, name: str) -> None:
        """Give every parameter a state tensor of zeros with the parameter's shape."""
        self.states[name] = [torch.zeros_like(parameter) for parameter in self.parameters]

    def batches(self) -> list[ParameterBatch]:
        """Return the parameters and their state in batches, which share the group's tensors."""
        limits = _batch_limits(self.parameters)
        memory = (
            self.parameters[0].new_empty(
                max(_elements(self.parameters[start:stop]) for start, stop in limits)
            )
            if self.parameters[0].device.type == "cpu"
            else self.parameters[0].new_empty(0)
        )
        return [ParameterBatch(self, start, stop, memory) for start, stop in limits]

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Return a copy of every state tensor, in the shape of its parameter."""
        return {
            name: [tensor.clone() for tensor in tensors] for name, tensors in self.states.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy saved tensors into the state; raise :class:`CheckpointError` if names or shapes differ."""
        if set(state) != set(self.states):
            raise CheckpointError(
                f"the checkpoint holds {_listed(state)} for each parameter, but the optimizer of this "
                f"run keeps {_listed(self.states)}; resume with the settings it was saved with"
            )
        for name, tensors in self.states.items():
            if [tuple(tensor.shape) for tensor in state[name]] != [
                tuple(tensor.shape) for tensor in tensors
            ]:
                raise CheckpointError(
                    f"the checkpoint's {name} does not have the shapes of this model's parameters; "
                    "resume with the model and the settings it was saved with"
                )
            for mine, saved in zip(tensors, state[name], strict=True):
                mine.copy_(saved)


def parameter_groups(
    parameters: Iterable[nn.Parameter],
    settings: TrainingSettings,
    kinds: Iterable[Kind] | None = None,
    growths: Iterable[TensorGrowth] | None = None,
) -> list[ParameterGroup]:
    """Group the trained parameters: first the weights, then normalization parameters and biases.

    ``kinds`` are the kinds of the parameters, in order (:mod:`trainers.optimizers.parameter_kinds`). Without them the
    rank decides, because a bare tensor gives no other information: a tensor with at most one dimension counts as a
    normalization parameter. ``growths`` holds the growth of each parameter from its base shape
    (:mod:`trainers.numerics.parametrization`).

    The standard exclusions apply: normalization parameters and biases are excluded from weight decay and layer-wise
    adaptation, unless ``decay_norm_and_bias``, ``decay_bias`` or ``adapt_norm_and_bias`` includes them. Parameters that
    are treated alike form one group, in their original order; there are no empty groups.
    """
    parameters = list(parameters)
    by_rank: list[Kind] = [
        "weight" if parameter.ndim > 1 else "normalization" for parameter in parameters
    ]
    trained = [
        (parameter, _grown(parameter_treatment(kind, settings, parameter), growth, settings))
        for parameter, kind, growth in zip(
            parameters,
            by_rank if kinds is None else kinds,
            [TensorGrowth()] * len(parameters) if growths is None else growths,
            strict=True,
        )
        if parameter.requires_grad
    ]
    possible = [parameter_treatment(kind, settings) for kind in KINDS]
    treatments = dict.fromkeys([*possible, *(its for _, its in trained)])
    groups = {each: [parameter for parameter, its in trained if its == each] for each in treatments}
    return [ParameterGroup(group, its) for its, group in groups.items() if group]


def parameter_treatment(
    kind: Kind, settings: TrainingSettings, parameter: Tensor | None = None
) -> ParameterTreatment:
    """Return the treatment of a parameter that has its base shape.

    If the optimizer's own rule handles only matrices, it adapts the weights with two or more dimensions except the
    embedding tables.
    """
    if OPTIMIZERS[settings.optimizer].takes == "matrices":
        is_matrix = kind == "weight" and (parameter is None or parameter.ndim > 1)
        return ParameterTreatment(_decay(kind, settings), is_matrix)
    if kind in ("weight", "embedding"):
        return ParameterTreatment(settings.weight_decay, True)
    return ParameterTreatment(_decay(kind, settings), settings.adapt_norm_and_bias)


def _grown(
    its: ParameterTreatment, growth: TensorGrowth, settings: TrainingSettings
) -> ParameterTreatment:
    times = growth.multipliers(
        settings.optimizer, weight_decay=its.weight_decay, adapted=its.adapted
    )
    decay = its.weight_decay * times.weight_decay
    return ParameterTreatment(decay, its.adapted, times.rate, times.epsilon)


def _decay(kind: Kind, settings: TrainingSettings) -> float:
    if kind in ("weight", "embedding"):
        return settings.weight_decay
    decays = settings.decay_norm_and_bias
    if kind == "bias" and settings.decay_bias is not None:
        decays = settings.decay_bias
    return settings.weight_decay if decays else 0.0


def add_scaled_(tensors: list[Tensor], added: list[Tensor], factor: float | Tensor) -> None:
    """Add ``factor`` times each tensor of the second list to the first, without waiting for a factor on the device."""
    if isinstance(factor, Tensor):
        added, factor = list(torch._foreach_mul(added, factor)), 1.0
    torch._foreach_add_(tensors, added, alpha=factor)


def kernel_rate(rate: float | Tensor) -> Any:
    """Convert a learning rate for PyTorch's fused kernels, which read it as float32 on an accelerator."""
    return rate.float() if isinstance(rate, Tensor) and rate.device.type != "cpu" else rate


def _batch_limits(parameters: list[Tensor]) -> list[tuple[int, int]]:
    if parameters[0].device.type != "cpu":
        return [(0, len(parameters))]
    starts, elements = [0], 0
    for index, parameter in enumerate(parameters):
        if elements and elements + parameter.numel() > BATCH_ELEMENTS:
            starts.append(index)
            elements = 0
        elements += parameter.numel()
    return list(zip(starts, [*starts[1:], len(parameters)], strict=True))


def _elements(parameters: list[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _flat(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim == 1 else tensor.as_strided((tensor.numel(),), (1,))


def _gradient_like(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        return torch.zeros_like(parameter)
    if gradient.layout is not torch.strided:  # of an embedding with sparse=True
        gradient = gradient.to_dense()
    return (
        gradient
        if _same_layout(gradient, parameter)
        else torch.empty_like(parameter).copy_(gradient)
    )


def _same_layout(one: Tensor, other: Tensor) -> bool:
    return all(
        size == 1 or stride == its
        for size, stride, its in zip(one.shape, one.stride(), other.stride(), strict=True)
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
