"""Parametrizations: how initial values, outputs and learning rates follow from the width of a model.

``standard`` leaves a model as it is. ``mup`` is the maximal update parametrization (Yang et al., arXiv:2203.03466) in
the form of its table 8. At its base width it is the standard one; beyond, with every size as a multiple of the base's:

                                    vector      matrix
    initial standard deviation      1           1 / sqrt(fan_in)    of the standard one at the base width
    rate of SGD                     size        fan_out / fan_in    its update is proportional to the gradient
    rate of Adam and its kin        1           1 / fan_in          every entry's update has the rate's size
    rate of LARS and LAMB           1           1 / sqrt(fan_in)    the update's norm is that of the weights
    what the last layer reads       1 / fan_in                      a layer whose output does not grow
    products in attention           sqrt(base d) / d                d, the size of a head (:func:`attention_scale`)

Two dimensions of a matrix grow with the width, one of a vector: biases, gains of normalizations, embeddings, weights of
first and last layers. Table 3 of the paper, without the multiplier of the last layer, is the same training (section B.1
there); the form of table 8 also allows an output that is tied to the embedding. Tensors of which nothing grows stay as
they are.

The line of LARS and LAMB is not in that paper. It follows from the condition that an update has the spectral norm
sqrt(fan_out / fan_in) (Yang, Simon and Bernstein, arXiv:2310.17813, condition 1). The rank of gradients does not grow,
so an update's spectral norm is a share of its Frobenius norm, which the trust ratio makes a share of the weights':
sqrt(fan_out) for a matrix. What these rules do not adapt goes by the lines above it.

The coefficient of weight decay is divided by the multiplier of SGD's or Adam's rate, so that weights shrink as fast at
any width (section B.3: decay that is decoupled; microsoft/mup does the same). Adam's epsilon is not scaled: gradients
fall with the width, and it has to stay small beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from search_spaces.names import nearest, nearest_or_all
from search_spaces.techniques import OPTIMIZERS
from search_spaces.techniques.technique import listed
from trainers.errors import DataError, JobError, WorkloadError

PARAMETRIZATIONS = ("standard", "mup")

InitialLaw = Literal["fan_in", "fan_out", "constant"]
"""How the standard initialization's deviation moves with the width: 1 / sqrt(fan_in), 1 / sqrt(fan_out), not at all."""

_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
_INPUTS_FIRST = (nn.Embedding, nn.EmbeddingBag, nn.modules.conv._ConvTransposeNd)


@dataclass(frozen=True)
class Growth:
    """How many times a tensor's fans are those of its base shape; both 1 where nothing grows."""

    fan_in: float = 1.0
    fan_out: float = 1.0

    @property
    def matrix(self) -> bool:
        """Whether both grow."""
        return self.fan_in != 1 and self.fan_out != 1

    @property
    def deviation(self) -> float:
        """The initial standard deviation, of the one at the base width."""
        return self.fan_in**-0.5 if self.matrix else 1.0

    def multipliers(
        self, optimizer: str, *, weight_decay: float, adapted: bool
    ) -> tuple[float, float]:
        """What the rate and the coefficient of weight decay of a parameter are multiplied by.

        ``weight_decay`` is that coefficient, ``adapted`` says whether layer-wise adaptation applies to the parameter.
        Raises :class:`JobError` for an optimizer of which nobody says how its updates move with the width.
        """
        if self == Growth():
            return 1.0, 1.0
        its = OPTIMIZERS[optimizer]
        if its.update_size is None:
            known = [name for name, each in OPTIMIZERS.built_in.items() if each.update_size]
            raise JobError(
                f"parametrization 'mup' needs an optimizer whose updates are known to move with the width, but got "
                f"{optimizer!r}; take one of {', '.join(known)}, or parametrization 'standard'"
            )
        if its.normalizes_decay and weight_decay:
            raise JobError(
                f"parametrization 'mup' knows no weight decay that is part of a normalized gradient, but got "
                f"weight_decay {weight_decay:g} with optimizer {optimizer!r}; take adamw, or weight_decay 0"
            )
        if its.update_size == "gradient":
            plain = self.fan_out / self.fan_in if self.matrix else self.fan_in * self.fan_out
        else:
            plain = 1 / self.fan_in if self.matrix else 1.0
        if its.layerwise and adapted:
            return self.deviation, 1 / plain
        return plain, 1 / plain


def base_width(data: Mapping[str, Any]) -> int | None:
    """The width from which ``mup`` scales, of a workload's data options; None: the standard parametrization.

    Reads ``parametrization`` and ``base_width``; raises :class:`DataError` where they contradict each other.
    """
    name, width = data.get("parametrization", "standard"), data.get("base_width")
    if name not in PARAMETRIZATIONS:
        raise DataError(
            f"there is no parametrization {name!r}{nearest_or_all(str(name), PARAMETRIZATIONS)}"
        )
    if name == "standard":
        if width is not None:
            raise DataError(
                f"base_width is where parametrization 'mup' begins, but got base_width {width!r} with parametrization "
                "'standard'; set parametrization: mup, or leave base_width out"
            )
        return None
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise DataError(
            "parametrization 'mup' needs base_width, the width at which it is the standard one (such as the smallest "
            f"that is trained), a whole number of at least 1, but got {width!r}"
        )
    return width


def attention_scale(head_size: int, base_head_size: int) -> float:
    """What the product of a query and a key is multiplied by: 1 / sqrt(d) at the base, and from there as 1 / d."""
    return math.sqrt(base_head_size / head_size) / math.sqrt(head_size)


def maximal_update_(
    model: nn.Module, base: nn.Module, initialization: Mapping[str, InitialLaw] | None = None
) -> dict[nn.Parameter, Growth]:
    """Put a model that was built in the standard way into ``mup``; gives the growth of each parameter.

    ``base`` is the same model at the base width, of which only the shapes are read. ``initialization`` says, by the
    beginnings of parameters' names, how the standard deviation of initial values moves with the width, for parameters
    of more than one dimension; the longest that fits counts. Without it they are PyTorch's: layers and other matrices
    follow ``fan_in``, embeddings and all other vectors are constant. Raises :class:`WorkloadError` where the two models
    do not fit.
    """
    growths = _growths(model, base)
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
    return growths


def _growths(model: nn.Module, base: nn.Module) -> dict[nn.Parameter, Growth]:
    shapes = {name: each.shape for name, each in base.named_parameters()}
    named = dict(model.named_parameters())
    if shapes.keys() != named.keys():
        odd = min(shapes.keys() ^ named.keys())
        raise WorkloadError(
            "the model at the base width must have the same parameters as the model, only of other sizes, but one "
            f"alone has {odd!r}; build both by the same class, with everything but the width alike"
        )
    inputs_first = {
        each
        for module in model.modules()
        if isinstance(module, _INPUTS_FIRST)
        for each in module.parameters(recurse=False)
    }
    return {
        parameter: _growth(name, parameter, shapes[name], inputs_first=parameter in inputs_first)
        for name, parameter in named.items()
    }


def _growth(name: str, parameter: nn.Parameter, base: torch.Size, *, inputs_first: bool) -> Growth:
    if parameter.ndim != len(base):
        raise WorkloadError(
            f"a parameter must have as many dimensions at the base width, but {name!r} is of {tuple(parameter.shape)} "
            f"and {tuple(base)}"
        )
    ratios = [mine / its for mine, its in zip(parameter.shape, base, strict=True)]
    grown = [(at, ratio) for at, ratio in enumerate(ratios) if ratio != 1]
    if not grown:
        return Growth()
    if len(grown) == 1:
        ((at, ratio),) = grown
        reads = parameter.ndim > 1 and at == (0 if inputs_first else 1)
        return Growth(fan_in=ratio) if reads else Growth(fan_out=ratio)
    (first, one), (second, other), *more = grown
    if more or ((first, second) != (0, 1) and one != other):
        raise WorkloadError(
            f"two dimensions of a parameter may grow with the width, but {name!r} is of {tuple(parameter.shape)} and "
            f"at the base width of {tuple(base)}; write it as a matrix of outputs and inputs"
        )
    return Growth(one, other) if inputs_first else Growth(other, one)


def _standard_deviations(
    model: nn.Module,
    growths: Mapping[nn.Parameter, Growth],
    initialization: Mapping[str, InitialLaw],
) -> dict[nn.Parameter, float]:
    """Of the initial values in the standard parametrization, as multiples of those at the base width."""
    deviations: dict[nn.Parameter, float] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            its = growths[_weight(module) if isinstance(module, _LAYERS) else parameter]
            by_fan_in = isinstance(module, _LAYERS) or its.matrix
            deviations.setdefault(parameter, its.fan_in**-0.5 if by_fan_in else 1.0)
    for beginning, law in sorted(initialization.items(), key=lambda each: len(each[0])):
        if law not in get_args(InitialLaw):
            raise WorkloadError(
                f"initialization must be {listed(get_args(InitialLaw))}, but is {law!r} for {beginning!r}"
            )
        found = {n: each for n, each in model.named_parameters() if n.startswith(beginning)}
        if not found:
            raise WorkloadError(
                f"initialization names {beginning!r}, but no parameter's name begins so"
                f"{nearest(beginning, dict(model.named_parameters()))}"
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
