"""Every optimizer against its paper's formulas, computed tensor by tensor with NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from search_spaces.settings import TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from tests.trainers.optimizer_rules import ADAPTED, CASES
from trainers.optimizers import make_optimizer
from trainers.optimizers.rmsprop_warmup import sgd_share
from trainers.optimizers.shampoo import KroneckerFactors

STEPS = 50


def parameters(dtype=torch.float64) -> list[nn.Parameter]:
    """A convolution, a matrix, a zero gamma, a bias, a matrix of zeros, a 1x1 convolution and a scalar."""
    generator = torch.Generator().manual_seed(1)
    tensors = [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in [(6, 3, 3, 3), (5, 7), (6,), (5,), (4, 4), (8, 6, 1, 1), ()]
    ]
    tensors[0] = tensors[0].to(memory_format=torch.channels_last)
    tensors[2].zero_()
    tensors[4].zero_()
    return [nn.Parameter(tensor.to(dtype)) for tensor in tensors]


def gradient(index: int, shape: torch.Size, step: int) -> torch.Tensor:
    """The gradient of tensor ``index`` in one step; that of the 5 x 7 matrix vanishes in some."""
    generator = torch.Generator().manual_seed(1000 * index + step)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * (1 + step / 20)
    return torch.zeros_like(drawn) if index == 1 and step in (0, 7, 8) else drawn


def rate(step: int) -> float:
    """A warmup, a sudden drop and a slow decay."""
    return 0.02 + 0.01 * min(step, 10) if step < 25 else 0.012 * (1 - (step - 25) / 40)


def run(optimizer, moved: list[nn.Parameter], steps=range(STEPS)) -> None:
    for step in steps:
        for index, parameter in enumerate(moved):
            parameter.grad = gradient(index, parameter.shape, step).to(parameter.dtype)
        optimizer.step(rate(step), epochs=step / 4)


def expected(settings: TrainingSettings) -> list[np.ndarray]:
    """The weights after all steps by the rule in optimizer_rules.py."""
    results = []
    for index, parameter in enumerate(parameters()):
        weight, memory = parameter.detach().numpy().copy(), {}
        is_weight = parameter.ndim > 1
        decay = settings.weight_decay if is_weight or settings.decay_norm_and_bias else 0.0
        adapted = is_weight or settings.adapt_norm_and_bias
        for step in range(STEPS):
            weight = CASES[settings.optimizer].rule(
                weight,
                gradient(index, parameter.shape, step).numpy(),
                memory,
                settings,
                t=step + 1,
                rate=rate(step),
                epochs=step / 4,
                decay=decay,
                adapted=adapted,
            )
        results.append(weight)
    return results


TRIED = [{"optimizer": name, **settings} for name, case in CASES.items() for settings in case.tried]


def test_every_optimizer_has_a_case():
    assert list(CASES) == list(OPTIMIZERS)


@pytest.mark.parametrize(
    "case", TRIED, ids=lambda case: " ".join(f"{value}" for value in case.values())
)
def test_fifty_steps_follow_the_paper(case):
    settings = TrainingSettings.from_record({"weight_decay": 0.01, **case})
    moved = parameters()
    run(make_optimizer(moved, settings), moved)
    for mine, its in zip(moved, expected(settings), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), its, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_in_fp32_the_rules_hold_to_its_precision(name):
    settings = TrainingSettings(
        optimizer=name,
        weight_decay=0.01,
        beta2=0.95,
        epsilon=1e-3 if name == "shampoo" else 1e-8,  # its ridge, above fp32's rounding
        preconditioner_size_limit=5 if name == "soap" else 1024,  # whose first bases are unique
    )
    moved = parameters(torch.float32)
    run(make_optimizer(moved, settings), moved)
    for mine, its in zip(moved, expected(settings), strict=True):
        assert np.linalg.norm(mine.detach().numpy() - its) <= 2e-5 * np.linalg.norm(its) + 1e-6


def small_steps(optimizer, moved, steps=STEPS) -> None:
    for step in range(steps):
        for index, parameter in enumerate(moved):
            parameter.grad = gradient(index, parameter.shape, step)
        optimizer(step)


WITNESSES = {
    "sgd": lambda moved, s: torch.optim.SGD(moved, momentum=0.9, weight_decay=s.weight_decay),
    "nesterov": lambda moved, s: torch.optim.SGD(
        moved, momentum=0.9, weight_decay=s.weight_decay, nesterov=True
    ),
    "adam": lambda moved, s: torch.optim.Adam(moved, weight_decay=s.weight_decay),
    "adamw": lambda moved, s: torch.optim.AdamW(moved, weight_decay=s.weight_decay),
}


@pytest.mark.parametrize("name", WITNESSES)
def test_pytorch_is_a_second_witness(name):
    settings = TrainingSettings(
        optimizer="sgd" if name == "nesterov" else name,
        nesterov=name == "nesterov",
        weight_decay=0.01,
        decay_norm_and_bias=True,
    )
    mine, its = parameters(), parameters()
    ours, witness = make_optimizer(mine, settings), WITNESSES[name](its, settings)

    def witness_step(step: int) -> None:
        witness.param_groups[0]["lr"] = rate(step)
        witness.step()

    small_steps(lambda step: ours.step(rate(step)), mine)
    small_steps(witness_step, its)
    for one, other in zip(mine, its, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


def test_corrected_momentum_is_momentum_with_the_rate_outside():
    corrected, outside, inside = parameters(), parameters(), parameters()
    for form, moved in (("corrected", corrected), ("outside", outside), ("inside", inside)):
        run(make_optimizer(moved, TrainingSettings(momentum_form=form)), moved)
    torch.testing.assert_close(corrected, outside, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(inside[0], outside[0], rtol=1e-3)


@pytest.mark.parametrize("nesterov", [False, True])
def test_corrected_momentum_keeps_the_gradients_that_came_at_a_rate_of_zero(nesterov):
    """PyTorch's SGD, whose buffer never sees the rate, through a warmup from 0 and a rate of 0 on the way."""
    corrected, outside = parameters(), parameters()
    ours = make_optimizer(
        corrected, TrainingSettings(momentum_form="corrected", nesterov=nesterov, weight_decay=0.0)
    )
    witness = torch.optim.SGD(outside, momentum=0.9, nesterov=nesterov)
    for step, learning_rate in enumerate((0.0, 0.1, 0.2, 0.0, 0.3)):
        for moved in (corrected, outside):
            for index, parameter in enumerate(moved):
                parameter.grad = gradient(index, parameter.shape, step)
        witness.param_groups[0]["lr"] = learning_rate
        ours.step(learning_rate)
        witness.step()
    torch.testing.assert_close(corrected, outside, rtol=1e-10, atol=1e-13)


def test_a_rate_of_zero_moves_nothing_that_stands_still():
    for name in CASES:
        moved = parameters()
        optimizer = make_optimizer(moved, TrainingSettings(optimizer=name))
        for index, parameter in enumerate(moved):
            parameter.grad = gradient(index, parameter.shape, 3)
        optimizer.step(0.0)
        for one, other in zip(moved, parameters(), strict=True):
            assert torch.equal(one, other), name
        optimizer.step(0.1, epochs=1.0)
        assert all(torch.isfinite(one).all() for one in moved), name


def test_mlperf_lars_is_the_paper_with_an_epsilon():
    """One step by mlcommons/training's lars_optimizer.py: eeta * w / (g + wd * w + 1e-7), momentum with the rate."""
    weight = nn.Parameter(torch.tensor([[3e-4, -4e-4]], dtype=torch.float64))
    weight.grad = torch.tensor([[0.0, 2e-7]], dtype=torch.float64)
    ratio = 0.001 * 5e-4 / (2e-7 + 1e-4 * 5e-4 + 1e-7)
    moved = weight.detach() - 2.0 * ratio * (weight.grad + 1e-4 * weight.detach())
    make_optimizer(
        [weight], TrainingSettings(optimizer="lars", trust_epsilon=1e-7, weight_decay=1e-4)
    ).step(2.0)
    torch.testing.assert_close(weight.detach(), moved, rtol=1e-12, atol=0)


def test_the_share_of_sgd_grows_without_a_jump_or_a_kink():
    shares = [
        sgd_share(epochs, 10.0, 5.0)
        for epochs in (0.0, 10.0 - 1e-6, 10.0, 10.0 + 1e-6, 11.25, 12.5, 40.0)
    ]
    assert shares[0] == pytest.approx(0.5 * math.exp(-4))
    assert shares[2] == 0.5 and shares[4] == pytest.approx(0.75) and shares[5:] == [1.0, 1.0]
    assert (shares[2] - shares[1]) / 1e-6 == pytest.approx(1 / 5, rel=1e-4)
    assert (shares[3] - shares[2]) / 1e-6 == pytest.approx(1 / 5, rel=1e-4)


def test_parameters_without_a_gradient_or_with_another_layout_are_updated_too():
    usual, other = parameters(), parameters()
    for moved, turned in ((usual, False), (other, True)):
        for index, parameter in enumerate(moved[:-1]):
            drawn = gradient(index, parameter.shape, 3)
            parameter.grad = (
                drawn.contiguous() if turned else torch.empty_like(parameter).copy_(drawn)
            )
    for moved in (usual, other):
        make_optimizer(moved, TrainingSettings(optimizer="lars")).step(0.1)
    torch.testing.assert_close(usual, other, rtol=0, atol=0)
    assert torch.equal(usual[-1], parameters()[-1])


@pytest.mark.parametrize("name", CASES)
def test_an_update_leaves_the_gradients_as_they_were(name):
    moved = parameters()
    optimizer = make_optimizer(moved, TrainingSettings(optimizer=name))
    run(optimizer, moved, range(3))
    for index, parameter in enumerate(moved):
        torch.testing.assert_close(
            parameter.grad, gradient(index, parameter.shape, 2), rtol=0, atol=0
        )


def test_frozen_parameters_stay():
    moved = parameters()
    moved[0].requires_grad_(False)
    run(make_optimizer(moved, TrainingSettings()), moved)
    assert torch.equal(moved[0], parameters()[0]) and not torch.equal(moved[1], parameters()[1])


@pytest.mark.parametrize(
    "case",
    [
        *(
            {"optimizer": "lars", "momentum": 0.9, "momentum_form": form}
            for form in ("outside", "inside", "corrected")
        ),
        {"optimizer": "lars", "momentum": 0.0},
        {"optimizer": "lamb"},
        {"optimizer": "lamb", **ADAPTED},
    ],
    ids=lambda case: " ".join(f"{value}" for value in case.values()),
)
def test_the_way_without_reading_ratios_back_gives_the_same(case):
    """On an accelerator ratios stay tensors there; the same operations on the processor must agree."""
    settings = TrainingSettings.from_record({"weight_decay": 0.01, **case})
    moved = parameters()
    optimizer = make_optimizer(moved, settings)
    for batch in optimizer.batches:
        batch.on_cpu = False
    run(optimizer, moved)
    for mine, its in zip(moved, expected(settings), strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), its, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", sorted(CASES))
def test_updates_by_numbers_on_the_device_are_those_by_plain_numbers(name):
    """Rates and progress as scalar tensors, and updates that are left out, are not read by the host."""
    settings = TrainingSettings(
        optimizer=name, weight_decay=0.01, rmsprop_center_epochs=3.0, preconditioner_interval=4
    )
    left_out, here, there = {0, 7, 8, 13, 20}, parameters(), parameters()
    plain, on_device = (make_optimizer(moved, settings) for moved in (here, there))
    for batch in on_device.batches:
        batch.on_cpu = False
    for step in range(30):
        for index, (mine, its) in enumerate(zip(here, there, strict=True)):
            mine.grad = gradient(index, mine.shape, step)
            its.grad = mine.grad * (math.inf if step in left_out else 1)
        plain.step(rate(step), step / 4, torch.tensor(step in left_out))
        numbers = torch.tensor([rate(step), step / 4], dtype=torch.float64)
        on_device.step(*numbers.unbind(), torch.tensor(step in left_out))
    for mine, its in zip(here, there, strict=True):
        torch.testing.assert_close(its, mine, rtol=1e-6, atol=1e-9)
    assert on_device.state_dict()["updates"] == plain.state_dict()["updates"] == 25


@pytest.mark.parametrize("on_cpu", [True, False])
def test_shampoos_roots_wait_for_an_update_that_is_done(on_cpu, monkeypatch):
    """Every fourth update, of which the first, the sixth and the tenth are left out; interrupted after the eighth."""
    steps, moved = [], parameters()
    taken: set[int] = set()
    settings = TrainingSettings(optimizer="shampoo", preconditioner_interval=4)
    monkeypatch.setattr(KroneckerFactors, "take_roots", lambda *_: taken.add(steps[-1]))
    optimizer = make_optimizer(moved, settings)
    for step in range(16):
        steps.append(step)
        if step == 8:
            saved, optimizer = optimizer.state_dict(), make_optimizer(moved, settings)
            optimizer.load_state_dict(saved)
        for batch in optimizer.batches:
            batch.on_cpu = on_cpu
        for index, each in enumerate(moved):
            each.grad = gradient(index, each.shape, step)
        optimizer.step(0.1, 0.0, torch.tensor(step in (0, 5, 9)))
    assert taken == {1, 6, 10, 14}


@pytest.mark.parametrize("name", ["shampoo", "soap"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_a_gradient_that_is_not_finite_makes_the_weights_nan_instead_of_an_error(name, value):
    moved = [nn.Parameter(torch.ones(4, 3, dtype=torch.float64))]
    optimizer = make_optimizer(
        moved, TrainingSettings(optimizer=name, preconditioner_interval=1, learning_rate=0.1)
    )
    for _ in range(3):
        moved[0].grad = torch.full_like(moved[0], value)
        optimizer.step(0.1)
    assert moved[0].isnan().all()
