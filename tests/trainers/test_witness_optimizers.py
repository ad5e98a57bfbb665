"""Optimizers against established libraries with the same rule: fifty updates of two matrices and a vector."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from search_spaces.settings import TrainingSettings
from trainers.optimizers import make_optimizer

STEPS = 50


def parameters(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(4)
    return [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
        for shape in shapes
    ]


def run(moved: list[nn.Parameter], step: Callable[[float], Any]) -> None:
    generator = torch.Generator().manual_seed(5)
    for number in range(STEPS):
        for parameter in moved:
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.grad = drawn.to(parameter.dtype)
        step(0.02 * (1 - number / 60))


def of_library(optimizer: torch.optim.Optimizer) -> Callable[[float], None]:
    def step(rate: float) -> None:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    return step


@pytest.fixture(scope="module")
def library() -> Any:
    """pytorch_optimizer, imported where it is used: that takes longer than to import torch."""
    import pytorch_optimizer

    return pytorch_optimizer


WITNESSES: dict[str, Callable[[Any, list[nn.Parameter]], torch.optim.Optimizer]] = {
    "lion": lambda library, moved: library.Lion(
        moved, betas=(0.9, 0.99), weight_decay=0.05, weight_decouple=True
    ),
    "schedule_free_sgd": lambda library, moved: library.ScheduleFreeSGD(
        moved, momentum=0.9, weight_decay=0.05
    ),
    "schedule_free_adamw": lambda library, moved: library.ScheduleFreeAdamW(
        moved, betas=(0.9, 0.999), weight_decay=0.05, weight_decouple=False
    ),
    "ademamix": lambda library, moved: library.AdEMAMix(
        moved, betas=(0.9, 0.999, 0.9999), weight_decay=0.05, weight_decouple=True, alpha=5.0
    ),
}


@pytest.mark.parametrize("name", WITNESSES)
def test_updates_are_those_of_the_library(library: Any, name: str) -> None:
    shapes = (5, 7), (6, 4), (3,)
    mine, its = parameters(torch.float64, *shapes), parameters(torch.float64, *shapes)
    settings = TrainingSettings(optimizer=name, weight_decay=0.05, decay_norm_and_bias=True)
    run(mine, make_optimizer(mine, settings).step)
    run(its, of_library(WITNESSES[name](library, its)))
    torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("interval", [1, 10])
def test_soap_is_the_library_s_on_square_matrices(library: Any, interval: int) -> None:
    """Whose first basis is unique; the library decomposes in float32."""
    shapes = (6, 6), (4, 4), (3,)
    mine, its = parameters(torch.float32, *shapes), parameters(torch.float32, *shapes)
    settings = TrainingSettings(
        optimizer="soap",
        weight_decay=0.05,
        decay_norm_and_bias=True,
        preconditioner_interval=interval,
    )
    witness = library.SOAP(
        its, betas=(0.95, 0.95), weight_decay=0.05, precondition_frequency=interval
    )
    run(mine, make_optimizer(mine, settings).step)
    run(its, of_library(witness))
    for one, other in zip(mine, its, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


@pytest.mark.parametrize("scaling", ["rms", "shape"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_pytorchs_for_matrices_in_bf16(scaling: str, nesterov: bool) -> None:
    shapes = (5, 7), (12, 4), (6, 6)
    mine, its = parameters(torch.float32, *shapes), parameters(torch.float32, *shapes)
    settings = TrainingSettings.from_record(
        {
            "optimizer": "muon",
            "weight_decay": 0.05,
            "precision": "bf16",
            "muon_rate_scaling": scaling,
            "muon_nesterov": nesterov,
        }
    )
    theirs = {"rms": "match_rms_adamw", "shape": "original"}[scaling]
    witness = torch.optim.Muon(its, weight_decay=0.05, nesterov=nesterov, adjust_lr_fn=theirs)
    run(mine, make_optimizer(mine, settings).step)
    run(its, of_library(witness))
    for one, other in zip(mine, its, strict=True):  # as far as bf16 sums of another order agree
        assert (one - other).norm() <= 2e-2 * other.norm()


def test_muon_in_float64_is_pytorchs_by_its_own_iteration_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch's casts to bf16; without that cast the two rules agree to the last digits."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())
    shapes = (5, 7), (12, 4), (6, 6)
    mine, its = parameters(torch.float64, *shapes), parameters(torch.float64, *shapes)
    settings = TrainingSettings(optimizer="muon", weight_decay=0.05)
    witness = torch.optim.Muon(its, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    run(mine, make_optimizer(mine, settings).step)
    run(its, of_library(witness))
    torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-12)
