import itertools

import pytest
import torch
from torch import nn

from search_spaces.settings import TrainingSettings
from trainers import CheckpointError
from trainers.optimizers import make_optimizer, parameter_groups
from trainers.optimizers.lars import trust_ratios

SHAPES = [(8, 3, 3, 3), (8,), (8,), (5, 8), (5,)]


def parameters(dtype=torch.float32, zero=()):
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    return [nn.Parameter((value * (index not in zero)).to(dtype)) for index, value in enumerate(values)]


def gradients(step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def rate(step):
    return 0.3 * (step + 1) / 10 if step < 10 else 0.3 / (step - 8)


def train(optimizer, mine, steps):
    for step in steps:
        for parameter, gradient in zip(mine, gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step(rate(step))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay_all", [False, True])
def test_sgd_is_pytorchs_rule(nesterov, decay_all):
    settings = TrainingSettings(optimizer="sgd", momentum=0.9, nesterov=nesterov, weight_decay=0.01,
                                decay_norm_and_bias=decay_all)
    mine, theirs = parameters(), parameters()
    plain = [p for p in theirs if p.ndim <= 1]
    reference = torch.optim.SGD([{"params": [p for p in theirs if p.ndim > 1]},
                                 {"params": plain, "weight_decay": 0.01 if decay_all else 0.0}],
                                lr=1.0, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    train(make_optimizer(mine, settings), mine, range(50))
    for step in range(50):
        for parameter, gradient in zip(theirs, gradients(step), strict=True):
            parameter.grad = gradient
        for group in reference.param_groups:
            group["lr"] = rate(step)
        reference.step()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("nesterov", "decay_all", "zero"), [(False, False, ()), (True, False, ()), (False, True, ()),
                                                             (False, True, (1, 3))])
def test_lars_is_the_papers_rule_in_double_precision(nesterov, decay_all, zero):
    settings = TrainingSettings(optimizer="lars", momentum=0.9, nesterov=nesterov, weight_decay=0.01,
                                decay_norm_and_bias=decay_all, trust_coefficient=0.02)
    mine = parameters(zero=zero)
    train(make_optimizer(mine, settings), mine, range(50))
    expected = [value.detach().double() for value in parameters(zero=zero)]
    buffers = [torch.zeros_like(value) for value in expected]
    for step, index in itertools.product(range(50), range(len(SHAPES))):
        weight, gradient = expected[index], gradients(step)[index].double()
        ratio, direction = 1.0, gradient
        if weight.ndim > 1 or decay_all:
            direction = gradient + 0.01 * weight
            if weight.norm() > 0 and gradient.norm() > 0:
                ratio = 0.02 * weight.norm() / (gradient.norm() + 0.01 * weight.norm())
        update = rate(step) * ratio * direction
        buffers[index] = 0.9 * buffers[index] + update
        expected[index] = weight - (0.9 * buffers[index] + update if nesterov else buffers[index])
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=1e-6)


def test_the_rate_is_inside_the_buffer_of_lars_and_outside_that_of_sgd():
    moves = {}
    for optimizer in ("sgd", "lars"):
        weight = nn.Parameter(torch.ones(1))  # one-dimensional: no ratio, no decay
        stepper = make_optimizer([weight], TrainingSettings(optimizer=optimizer, momentum=0.5))
        weight.grad = torch.ones(1)
        stepper.step(1.0)
        before = weight.item()
        weight.grad = torch.zeros(1)
        stepper.step(0.0)
        moves[optimizer] = before - weight.item()
    assert moves == {"sgd": 0.0, "lars": 0.5}


def test_trust_ratios_shrink_with_the_gradient_and_are_one_without_a_norm():
    ratios = trust_ratios(torch.tensor([2.0, 2.0, 0.0, 2.0]), torch.tensor([1.0, 4.0, 1.0, 0.0]), 0.001, 0.5)
    torch.testing.assert_close(ratios, torch.tensor([0.001, 0.0004, 1.0, 1.0]))


def test_biases_and_normalization_parameters_do_not_decay():
    decayed, plain = parameter_groups(parameters(), TrainingSettings())
    assert [p.ndim for p in decayed.parameters] == [4, 2] and [p.ndim for p in plain.parameters] == [1, 1, 1]
    decayed, plain = parameter_groups(parameters(), TrainingSettings(decay_norm_and_bias=True))
    assert len(decayed.parameters) == 5 and not plain.parameters


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_a_restored_optimizer_goes_on_as_if_it_had_not_stopped(name):
    settings = TrainingSettings(optimizer=name)
    straight = parameters()
    train(make_optimizer(straight, settings), straight, range(20))
    broken = parameters()
    first = make_optimizer(broken, settings)
    train(first, broken, range(10))
    second = make_optimizer(broken, settings)
    second.load_state_dict(first.state_dict())
    train(second, broken, range(10, 20))
    assert all(torch.equal(one, other) for one, other in zip(straight, broken, strict=True))


def test_buffers_of_another_model_are_refused():
    settings = TrainingSettings()
    state = make_optimizer(parameters()[:3], settings).state_dict()
    with pytest.raises(CheckpointError, match="shapes"):
        make_optimizer(parameters(), settings).load_state_dict(state)
