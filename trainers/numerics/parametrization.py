"""Parametrizations, which define how initial values, outputs and learning rates scale with a model's width and depth.

``standard`` leaves a model as it is. ``mup`` is the maximal update parametrization (Yang et al., arXiv:2203.03466) in
the form of table 8 of that paper. At the base width it equals the standard parametrization. At other widths, it applies
these factors, with sizes as multiples of the base sizes:

                                    vector      matrix
    initial standard deviation      1           1 / sqrt(fan_in)    relative to the standard one at the base width
    rate of SGD                     size        fan_out / fan_in    its update is proportional to the gradient
    rate of Adam-like rules         1           1 / fan_in          every entry's update has the rate's size
    epsilon of Adam-like rules      1 / size    1 / fan_out         it shrinks with the gradient's entries
    rate of LARS and LAMB           1           1 / sqrt(fan_in)    the update's norm is that of the weights
    input of the last layer         1 / fan_in                      a layer whose output does not grow
    products in attention           sqrt(base d) / d                d, the size of a head (:func:`attention_scale`)

``completep`` extends this to depth (Dey et al., arXiv:2505.01618, table 1 with alpha = 1), where depth is the number of
residual blocks as a multiple of the number in the base:

                                    outside of blocks   in a block
    output of a branch              -                   1 / depth           to the residual stream
    initial standard deviation      as in mup           as in mup           at any depth
    rate of Adam-like rules         as in mup           as in mup
    epsilon of Adam-like rules      as in mup           1 / depth times mup's
    rate of SGD                     as in mup           depth times mup's
    rate of LARS and LAMB           as in mup           as in mup

A matrix has two dimensions that grow with the width. A vector has one: biases, normalization gains, embeddings, and the
weights of first and last layers. Table 3 of the muP paper, without the multiplier of the last layer, trains identically
(section B.1 there); the form in table 8 also allows the output to be tied to the embedding. Tensors without a growing
dimension stay as they are.

The row for LARS and LAMB is not in that paper. It follows from the condition that an update has the spectral norm
sqrt(fan_out / fan_in) (Yang, Simon and Bernstein, arXiv:2310.17813, condition 1). The rank of gradients does not grow,
so an update's spectral norm is proportional to its Frobenius norm. The trust ratio makes that proportional to the norm
of the weights, sqrt(fan_out) for a matrix. Parameters that LARS and LAMB do not adapt follow the rows for SGD and Adam.

CompleteP is published for AdamW. For every optimizer it requires that the weights of a block move as far in a deep
network as at the base depth. The remaining factors follow from the gradient, which the multiplier of the branch divides
by the depth. A rule that normalizes the gradient (Adam-like rules, LARS, LAMB) moves the weights equally far at any
depth, whereas a rule that is proportional to the gradient (SGD, and parameters that LARS does not adapt) needs a
learning rate that is larger by a factor of the depth.

The coefficient of weight decay is divided by the multiplier of SGD's or Adam's learning rate, so that weights shrink at
the same pace at any size (section B.3 of the muP paper for decoupled decay; microsoft/mup and CompleteP's table do the
same). Adam's epsilon scales like the gradients, which shrink with the width and, within a block, with the depth
(CompleteP, table 1).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeGuard, get_args

import torch
from torch import Tensor, nn

from search_spaces.names import did_you_mean, nearest_or_all
from search_spaces.techniques import OPTIMIZERS
from search_spaces.techniques.parametrizations import PARAMETRIZATIONS
from search_spaces.techniques.technique import listed_words
from trainers.errors import DataError, JobError, WorkloadError

InitialLaw = Literal["fan_in", "fan_out", "constant"]
"""How the standard deviation of initial values scales with width: 1 / sqrt(fan_in), 1 / sqrt(fan_out), or 1."""

_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
_LISTS = (nn.ModuleList, nn.Sequential)
_INPUTS_FIRST = (nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvTransposeNd)


class ParameterMultipliers(NamedTuple):
    """The factors of a parameter's learning rate, its coefficient of weight decay and Adam's epsilon."""

    rate: float = 1.0
    weight_decay: float = 1.0
    epsilon: float = 1.0


@dataclass(frozen=True)
class TensorGrowth:
    """A tensor's fans as multiples of the fans of its base shape; both are 1 if no dimension grows.

    ``depth`` is the number of residual blocks as a multiple of the number in the base if the tensor is in a block, else
    1.
    """

    fan_in: float = 1.0
    fan_out: float = 1.0
    depth: float = 1.0

    @property
    def matrix(self) -> bool:
        """Whether both fans grow."""
        return self.fan_in != 1 and self.fan_out != 1

    @property
    def deviation(self) -> float:
        """The initial standard deviation, relative to its value at the base width."""
        return self.fan_in**-0.5 if self.matrix else 1.0

    @property
    def gradient(self) -> float:
        """The size of the gradient's entries, relative to their size in the base."""
        of_width = 1 / self.fan_out if self.matrix else 1 / (self.fan_in * self.fan_out)
        return of_width / self.depth

    def multipliers(
        self, optimizer: str, *, weight_decay: float, adapted: bool
    ) -> ParameterMultipliers:
        """Return the factors of a parameter under an optimizer.

        ``weight_decay`` is the coefficient of weight decay; ``adapted`` says whether layer-wise adaptation applies to
        the parameter. Raises :class:`JobError` for an optimizer whose scaling with model size is unknown.
        """
        if self == TensorGrowth():
            return ParameterMultipliers()
        its = OPTIMIZERS[optimizer]
        if its.update_size is None:
            known = [name for name, each in OPTIMIZERS.built_in.items() if each.update_size]
            raise JobError(
                f"parametrizations 'mup' and 'completep' need an optimizer with a known "
                f"scaling of its updates with the model size, but got {optimizer!r}; use one "
                f"of {', '.join(known)}, or parametrization 'standard'"
            )
        if its.normalizes_decay and weight_decay:
            raise JobError(
                f"parametrizations 'mup' and 'completep' do not support weight decay as part "
                f"of a normalized gradient, but got weight_decay {weight_decay:g} with "
                f"optimizer {optimizer!r}; use adamw, or weight_decay 0"
            )
        if its.update_size == "gradient":
            of_width = self.fan_out / self.fan_in if self.matrix else self.fan_in * self.fan_out
            plain, epsilon = of_width * self.depth, 1.0
        else:
            plain, epsilon = 1 / self.fan_in if self.matrix else 1.0, self.gradient
        rate = self.deviation if its.layerwise and adapted else plain
        return ParameterMultipliers(rate, 1 / plain, epsilon)


@dataclass(frozen=True)
class BaseSizes:
    """The sizes at which a parametrization equals the standard one; ``depth`` is None for ``mup``, which ignores it."""

    width: int
    depth: int | None = None


def base_sizes(data: Mapping[str, Any], *, depth: str = "") -> BaseSizes | None:
    """Return the base sizes of a parametrization from a workload's data options, or None for ``standard``.

    Reads ``parametrization``, ``base_width`` and ``base_depth``. ``depth`` says why the workload's network cannot be
    scaled in depth; empty if it can. Raises :class:`DataError` if the options contradict each other.
    """
    name = data.get("parametrization", "standard")
    if name not in PARAMETRIZATIONS:
        raise DataError(
            f"there is no parametrization {name!r}{nearest_or_all(str(name), PARAMETRIZATIONS)}"
        )
    if name == "completep" and depth:
        raise DataError(
            f"parametrization 'completep' scales with the number of residual blocks, but "
            f"{depth}; use parametrization: mup, which scales with the width"
        )
    wanted = PARAMETRIZATIONS[name]
    for size, first in (("width", "mup"), ("depth", "completep")):
        if size not in wanted and data.get(f"base_{size}") is not None:
            raise DataError(
                f"base_{size} is an option of parametrization {first!r}, but got base_{size} "
                f"{data[f'base_{size}']!r} with parametrization {name!r}; set parametrization: {first}, or leave "
                f"base_{size} out"
            )
    return BaseSizes(**{size: _base(data, size, name) for size in wanted}) if wanted else None


def _base(data: Mapping[str, Any], size: str, name: str) -> int:
    value = data.get(f"base_{size}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DataError(
            f"parametrization {name!r} needs base_{size}, the {size} at which it equals the "
            f"standard parametrization (such as the smallest that you train), as a whole number "
            f"of at least 1, but got {value!r}"
        )
    return value


def attention_scale(head_size: int, base_head_size: int) -> float:
    """Return the factor of the query-key product: 1 / sqrt(d) at the base size, scaling as 1 / d from there."""
    return math.sqrt(base_head_size / head_size) / math.sqrt(head_size)


def maximal_update_(
    model: nn.Module,
    base: nn.Module,
    initialization: Mapping[str, InitialLaw] | None = None,
    residual_outputs: Collection[str] = (),
) -> dict[nn.Parameter, TensorGrowth]:
    """Convert a model with the standard parametrization to ``mup``; return the growth of each parameter.

    ``base`` is the same model at the base width; only its shapes are read. For parameters with more than one dimension,
    ``initialization`` maps prefixes of parameter names to the scaling of the standard deviation of initial values with
    the width; the longest matching prefix counts. By default PyTorch's initialization is assumed: layers and other
    matrices follow ``fan_in``, while embeddings and all other vectors are constant.

    If the base has a different number of blocks (modules of a list), the model is converted to ``completep``. In that
    case ``residual_outputs`` names the modules of a block whose outputs are added to the residual stream; these outputs
    are divided by the depth. Initial values must not depend on the depth. Raises :class:`WorkloadError` if the two
    models do not match.
    """
    depths = _depths(model, base)
    branches = {
        module: 1 / depth.growth
        for depth in depths
        for module in _residual_outputs(model, depth, residual_outputs)
    }
    growths = _growths(model, base, depths)
    deviations = _standard_deviations(model, growths, initialization or {})
    with torch.no_grad():
        for parameter, growth in growths.items():
            if growth.deviation != deviations[parameter]:
                parameter.mul_(growth.deviation / deviations[parameter])
    for module in model.modules():
        if isinstance(module, _LAYERS):
            its = growths[_weight(module)]
            if its.fan_in != 1 and not its.matrix:
                module.register_forward_pre_hook(partial(_multiply_input, 1 / its.fan_in))
    for module, factor in branches.items():
        module.register_forward_hook(partial(_multiply_output, factor))
    return growths


@dataclass(frozen=True)
class _Depth:
    """A list of blocks whose length differs from the base; ``beginning`` is the prefix of its modules' names."""

    beginning: str
    blocks: int
    base: int

    @property
    def growth(self) -> float:
        return self.blocks / self.base

    def at_base(self, name: str) -> str:
        """Return a parameter's name in the base; extra blocks map to the blocks of the base from the first one on."""
        if not name.startswith(self.beginning):
            return name
        index, _, rest = name.removeprefix(self.beginning).partition(".")
        return f"{self.beginning}{int(index) % self.base}.{rest}"


def _depths(model: nn.Module, base: nn.Module) -> list[_Depth]:
    """Return the lists of blocks that grow; if lists are nested, return only the outermost."""
    lists = {name: len(each) for name, each in base.named_modules() if _is_list(each)}
    found: list[_Depth] = []
    for name, module in model.named_modules():
        beginning = f"{name}." if name else ""
        if any(beginning.startswith(outer.beginning) for outer in found):
            continue
        if _is_list(module) and 0 < lists.get(name, 0) != len(module):
            found.append(_Depth(beginning, len(module), lists[name]))
    return found


def _is_list(module: nn.Module) -> TypeGuard[nn.ModuleList | nn.Sequential]:
    numbered = all(name.isdecimal() for name, _ in module.named_children())
    return isinstance(module, _LISTS) and len(module) > 0 and numbered


def _residual_outputs(
    model: nn.Module, depth: _Depth, residual_outputs: Collection[str]
) -> list[nn.Module]:
    found = {
        name: module
        for name, module in model.named_modules()
        if name.startswith(depth.beginning)
        and any(f".{name}".endswith(f".{each}") for each in residual_outputs)
    }
    where = depth.beginning.removesuffix(".") or "the model"
    blocks = {name.removeprefix(depth.beginning).partition(".")[0] for name in found}
    if len(blocks) != depth.blocks:
        inside = [
            name for name, _ in model.named_modules() if name.startswith(f"{depth.beginning}0.")
        ]
        told = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in inside)) or "nothing"
        raise WorkloadError(
            f"{where} has {depth.blocks} blocks and {depth.base} at the base, so what each adds to the stream is "
            f"divided by {depth.growth:g}, but residual_outputs {tuple(residual_outputs)!r} "
            f"names no module in {depth.blocks - len(blocks)} of them; name the layers that "
            f"write to the stream (a block has {told}), or "
            "build the base with as many blocks"
        )
    return list(found.values())


def _growths(
    model: nn.Module, base: nn.Module, depths: Sequence[_Depth]
) -> dict[nn.Parameter, TensorGrowth]:
    shapes = {name: each.shape for name, each in base.named_parameters()}
    named = dict(model.named_parameters())
    at_base = {name: name for name in named}
    for depth in depths:
        at_base = {name: depth.at_base(its) for name, its in at_base.items()}
    fewer = {
        name for name in shapes if any(name.startswith(depth.beginning) for depth in depths)
    } - set(at_base.values())  # parameters of blocks that only the base has
    if odd := (shapes.keys() - fewer) ^ set(at_base.values()):
        alone = next((name for name, its in at_base.items() if its in odd), min(odd))
        raise WorkloadError(
            f"the model at the base width must have the same parameters as the model, apart "
            f"from their sizes, but only one has {alone!r}; build both with the same class and "
            f"change only the width"
        )
    inputs_first = {
        each
        for module in model.modules()
        if isinstance(module, _INPUTS_FIRST)
        for each in module.parameters(recurse=False)
    }
    return {
        parameter: replace(
            _growth(name, parameter, shapes[at_base[name]], inputs_first=parameter in inputs_first),
            depth=math.prod(each.growth for each in depths if name.startswith(each.beginning)),
        )
        for name, parameter in named.items()
    }


def _growth(
    name: str, parameter: nn.Parameter, base: torch.Size, *, inputs_first: bool
) -> TensorGrowth:
    if parameter.ndim != len(base):
        raise WorkloadError(
            f"a parameter must have the same number of dimensions at the base width, but "
            f"{name!r} has shapes {tuple(parameter.shape)} and {tuple(base)}"
        )
    ratios = [mine / its for mine, its in zip(parameter.shape, base, strict=True)]
    grown = [(at, ratio) for at, ratio in enumerate(ratios) if ratio != 1]
    if not grown:
        return TensorGrowth()
    if len(grown) == 1:
        ((at, ratio),) = grown
        reads = parameter.ndim > 1 and at == (0 if inputs_first else 1)
        return TensorGrowth(fan_in=ratio) if reads else TensorGrowth(fan_out=ratio)
    (first, one), (second, other), *more = grown
    if more or ((first, second) != (0, 1) and one != other):
        raise WorkloadError(
            f"at most two dimensions of a parameter may grow with the width, but {name!r} has "
            f"shape {tuple(parameter.shape)}, and {tuple(base)} at the base width; write it as "
            f"a matrix of outputs and inputs"
        )
    return TensorGrowth(one, other) if inputs_first else TensorGrowth(other, one)


def _standard_deviations(
    model: nn.Module,
    growths: Mapping[nn.Parameter, TensorGrowth],
    initialization: Mapping[str, InitialLaw],
) -> dict[nn.Parameter, float]:
    """Return the factor of each parameter's initial values in the standard parametrization, relative to the base."""
    deviations: dict[nn.Parameter, float] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            its = growths[_weight(module) if isinstance(module, _LAYERS) else parameter]
            by_fan_in = isinstance(module, _LAYERS) or its.matrix
            deviations.setdefault(parameter, its.fan_in**-0.5 if by_fan_in else 1.0)
    for beginning, law in sorted(initialization.items(), key=lambda each: len(each[0])):
        if law not in get_args(InitialLaw):
            raise WorkloadError(
                f"initialization must be {listed_words(get_args(InitialLaw))}, but is {law!r} for {beginning!r}"
            )
        found = {n: each for n, each in model.named_parameters() if n.startswith(beginning)}
        if not found:
            raise WorkloadError(
                f"initialization names {beginning!r}, but no parameter's name begins with it"
                f"{did_you_mean(beginning, dict(model.named_parameters()))}"
            )
        for parameter in found.values():
            if parameter.ndim > 1:
                its = growths[parameter]
                fans = {"fan_in": its.fan_in, "fan_out": its.fan_out, "constant": 1.0}
                deviations[parameter] = fans[law] ** -0.5
    return deviations


def _weight(layer: nn.Module) -> nn.Parameter:
    assert isinstance(layer.weight, nn.Parameter)
    return layer.weight


def _multiply_input(factor: float, module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:  # noqa: ARG001
    return (inputs[0] * factor, *inputs[1:])


def _multiply_output(
    factor: float,
    module: nn.Module,  # noqa: ARG001
    inputs: tuple[Tensor, ...],  # noqa: ARG001
    output: Tensor,
) -> Tensor:
    return output * factor
