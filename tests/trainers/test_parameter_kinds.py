"""Exclusions from decay and adaptation by the kind of a parameter, and by a workload's own choice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from search_spaces.settings import TrainingSettings
from trainers.errors import WorkloadError
from trainers.numerics.normalization import GhostBatchNorm
from trainers.optimizers import make_optimizer, parameter_kinds
from trainers.optimizers.parameter_groups import parameter_groups
from trainers.workloads import load_workload


class RootMeanSquareNorm(nn.Module):
    """A normalization of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))


class Network(nn.Module):
    """Parameters of every kind; those whose rank misleads are a 3-dimensional scale and a 1-dimensional weight."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.ghost = GhostBatchNorm(4, 2)
        self.field_norm = nn.LayerNorm([4, 5, 5])
        self.own = RootMeanSquareNorm()
        self.slope = nn.PReLU(4)
        self.memory = nn.LSTM(4, 2)
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 2)


EXPECTED = {
    "convolution.weight": "weight",
    "convolution.bias": "bias",
    "ghost.weight": "normalization",
    "ghost.bias": "normalization",
    "field_norm.weight": "normalization",
    "field_norm.bias": "normalization",
    "own.gain": "normalization",
    "slope.weight": "weight",
    "memory.weight_ih_l0": "weight",
    "memory.weight_hh_l0": "weight",
    "memory.bias_ih_l0": "bias",
    "memory.bias_hh_l0": "bias",
    "scale": "weight",
    "head.weight": "weight",
    "head.bias": "bias",
}


def kinds_by_name(model: nn.Module, named: dict[str, str] | None = None) -> dict[str, str]:
    kinds = parameter_kinds(model, named)
    return {name: kinds[parameter] for name, parameter in model.named_parameters()}


def test_kinds_go_by_module_and_name_and_not_by_rank() -> None:
    assert kinds_by_name(Network()) == EXPECTED


def test_a_workload_may_name_kinds_itself() -> None:
    assert kinds_by_name(Network(), {"scale": "normalization", "head.weight": "bias"}) == {
        **EXPECTED,
        "scale": "normalization",
        "head.weight": "bias",
    }
    with pytest.raises(
        WorkloadError, match=r"names 'scales', but the model has no such parameter; did you mean"
    ):
        parameter_kinds(Network(), {"scales": "bias"})
    with pytest.raises(
        WorkloadError,
        match="must be weight, normalization, bias or embedding, but parameter_kinds has 'vector'",
    ):
        parameter_kinds(Network(), {"scale": "vector"})


@pytest.mark.parametrize(
    ("settings", "decayed", "adapted"),
    [
        ({}, {"weight"}, {"weight"}),
        ({"decay_bias": True}, {"weight", "bias"}, {"weight"}),  # Goyal et al., section 5.1
        ({"decay_norm_and_bias": True}, {"weight", "normalization", "bias"}, {"weight"}),
        (
            {"decay_norm_and_bias": True, "decay_bias": False},
            {"weight", "normalization"},
            {"weight"},
        ),
        ({"adapt_norm_and_bias": True}, {"weight"}, {"weight", "normalization", "bias"}),
        (
            {"adapt_norm_and_bias": True, "decay_bias": True},
            {"weight", "bias"},
            {"weight", "normalization", "bias"},
        ),
    ],
)
def test_settings_exclude_kinds(
    settings: dict[str, bool], decayed: set[str], adapted: set[str]
) -> None:
    kinds = parameter_kinds(Network())
    groups = parameter_groups(kinds, TrainingSettings(weight_decay=0.1, **settings), kinds.values())
    treated = {parameter: group for group in groups for parameter in group.parameters}
    assert len(treated) == len(kinds)
    for parameter, kind in kinds.items():
        assert treated[parameter].weight_decay == (0.1 if kind in decayed else 0.0)
        assert treated[parameter].adapted == (kind in adapted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_goyals_exclusion_decays_the_last_bias_and_no_scale(dtype: torch.dtype) -> None:
    """Without gradients only the decay moves anything; in bf16 the masters carry the kinds."""
    model = Network().to(dtype)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(
        model.parameters(),
        TrainingSettings(weight_decay=0.5, decay_bias=True),
        parameter_kinds(model),
    )
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.5)
    still = {
        name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])
    }
    assert still == {name for name, kind in EXPECTED.items() if kind == "normalization"}


@pytest.mark.parametrize(("workload", "data"), [("resnet", {"source": "digits"})])
def test_the_projects_networks_have_norms_and_biases_where_the_rank_is_one(
    workload: str, data: dict[str, str]
) -> None:
    model = load_workload(workload, data).build_model(TrainingSettings())
    for parameter, kind in parameter_kinds(model).items():
        assert (kind == "weight") == (parameter.ndim > 1)
    kinds = kinds_by_name(model)
    assert [name for name, kind in kinds.items() if kind == "bias"] == [
        list(kinds)[-1]
    ]  # of the last layer alone
