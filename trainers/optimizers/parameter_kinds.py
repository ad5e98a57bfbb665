"""The kind of each parameter of a model, for the exclusions from weight decay and from layer-wise adaptation.

    normalization   scale and shift of a normalization: the parameters of PyTorch's normalization layers and of
                    GhostBatchNorm, and vectors and scalars of any module whose class name contains "norm"
    bias            other parameters whose name is or ends with "bias", or starts with "bias_" (as in recurrent layers)
    embedding       the table of an embedding: a weight, but not a matrix that acts on features
    weight          all other parameters, of any rank: a PReLU's slope or a layer's scale decays and is adapted

The reference implementations have similar rules by name: MLPerf skips names containing "batch_normalization" or "bias",
NVIDIA's submissions skip names ending with "gamma", "beta" or "bias", and Goyal et al. (arXiv:1706.02677, section 5.1)
exclude only the scale and shift of batch norm. A workload with other conventions defines its own kinds
(:meth:`trainers.workloads.Workload.parameter_kinds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from torch import nn

from search_spaces.names import did_you_mean
from trainers.errors import WorkloadError

Kind = Literal["weight", "normalization", "bias", "embedding"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def parameter_kinds(
    model: nn.Module, named: Mapping[str, str] | None = None
) -> dict[nn.Parameter, Kind]:
    """Return the kind of every parameter of a model; a parameter in several modules gets its kind from the first one.

    ``named`` maps names in ``model.named_parameters()`` to kinds and takes precedence; an unknown name or kind raises
    :class:`~trainers.errors.WorkloadError`.
    """
    kinds: dict[nn.Parameter, Kind] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            kinds.setdefault(parameter, _kind(module, name, parameter))
    parameters = dict(model.named_parameters())
    for name, kind in (named or {}).items():
        if name not in parameters:
            raise WorkloadError(
                f"parameter_kinds names {name!r}, but the model has no such "
                f"parameter{did_you_mean(name, parameters)}"
            )
        if kind not in KINDS:
            raise WorkloadError(
                f"a parameter's kind must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, but "
                f"parameter_kinds has {kind!r} for {name!r}"
            )
        kinds[parameters[name]] = kind
    return kinds


def _kind(module: nn.Module, name: str, parameter: nn.Parameter) -> Kind:
    if isinstance(module, _NORMALIZATIONS) or (
        "norm" in type(module).__name__.lower() and parameter.ndim <= 1
    ):
        return "normalization"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    return "bias" if name.endswith("bias") or name.startswith("bias_") else "weight"
