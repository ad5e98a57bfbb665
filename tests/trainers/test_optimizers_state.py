"""Optimizer state: resuming bit for bit, fp32 masters, and states of another training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from search_spaces.settings import TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from trainers.errors import CheckpointError, WorkloadError
from trainers.loop import checkpoint
from trainers.optimizers import make_optimizer
from trainers.optimizers.masters import MasterOptimizer
from trainers.optimizers.parameter_groups import BATCH_ELEMENTS, parameter_groups
from trainers.optimizers.trust_ratio import trust_ratios

CASES = [
    *({"optimizer": name} for name in OPTIMIZERS),
    {"momentum_form": "corrected"},
    {"optimizer": "larc", "larc_optimizer": "adam"},
    {"optimizer": "shampoo", "preconditioner_interval": 4},
]


def parameters(dtype=torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(2)
    return [
        nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
        for shape in [(4, 3, 3, 3), (5, 7), (4,), (4,), (5,)]
    ]


def run(optimizer, moved, steps) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in moved:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        optimizer.step(0.01 * (1 + step), epochs=step / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case.values())))
def test_a_restored_optimizer_goes_on_as_if_it_had_not_stopped(case, dtype, tmp_path):
    settings = TrainingSettings(**case)
    straight = parameters(dtype)
    run(make_optimizer(straight, settings), straight, range(20))
    broken = parameters(dtype)
    first = make_optimizer(broken, settings)
    run(first, broken, range(9))
    checkpoint.save(
        tmp_path / "half",
        {"optimizer": first.state_dict(), "weights": [one.detach() for one in broken]},
    )
    saved = checkpoint.load(tmp_path / "half")
    resumed = [nn.Parameter(weight) for weight in saved["weights"]]
    second = make_optimizer(resumed, settings)
    second.load_state_dict(saved["optimizer"])
    run(second, resumed, range(9, 20))
    assert all(torch.equal(one, other) for one, other in zip(straight, resumed, strict=True))


def test_a_saved_state_does_not_change_with_the_training():
    moved = parameters()
    optimizer = make_optimizer(moved, TrainingSettings())
    run(optimizer, moved, range(2))
    state = optimizer.state_dict()
    before = state["groups"][0]["momentum"][0].clone()
    run(optimizer, moved, range(2, 4))
    assert torch.equal(state["groups"][0]["momentum"][0], before) and state["updates"] == 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_of_another_model_or_rule_are_refused(name):
    settings = TrainingSettings(optimizer=name)
    optimizer = make_optimizer(parameters(), settings)
    with pytest.raises(CheckpointError, match="shapes"):
        optimizer.load_state_dict(make_optimizer(parameters()[1:], settings).state_dict())
    with pytest.raises(CheckpointError, match="groups"):
        optimizer.load_state_dict(make_optimizer(parameters()[:2], settings).state_dict())
    other = TrainingSettings(
        optimizer="adam" if "momentum" in optimizer.state_dict()["groups"][0] else "sgd"
    )
    with pytest.raises(CheckpointError, match="keeps"):
        optimizer.load_state_dict(make_optimizer(parameters(), other).state_dict())
    with pytest.raises(CheckpointError, match="groups"):
        optimizer.load_state_dict(make_optimizer(parameters(torch.bfloat16), settings).state_dict())
    with pytest.raises(CheckpointError, match="masters"):
        make_optimizer(parameters(torch.bfloat16), settings).load_state_dict(optimizer.state_dict())


@pytest.mark.medium
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_reduced_weights_are_the_rounded_fp32_training(name, dtype):
    """The masters move as fp32 weights do that see the same gradients, and the model is their rounding."""
    settings = TrainingSettings(optimizer=name, adapt_norm_and_bias=True)
    reduced = parameters(dtype)
    full = [nn.Parameter(one.detach().float()) for one in reduced]
    ours, witness = make_optimizer(reduced, settings), make_optimizer(full, settings)
    for step in range(50):
        generator = torch.Generator().manual_seed(step)
        for one, other in zip(reduced, full, strict=True):
            one.grad = torch.randn(one.shape, generator=generator).to(dtype)
            other.grad = one.grad.float()
        ours.step(0.01 + 0.001 * step, epochs=step / 5)
        witness.step(0.01 + 0.001 * step, epochs=step / 5)
    assert isinstance(ours, MasterOptimizer)
    for master, one, other in zip(ours.masters, reduced, full, strict=True):
        assert (
            torch.equal(master, other) and torch.equal(one, other.to(dtype)) and one.dtype == dtype
        )


def test_updates_below_a_bf16_step_are_not_lost():
    weight = nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16))
    optimizer = make_optimizer([weight], TrainingSettings(momentum=0.0, weight_decay=0.0))
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step(1e-3)  # half a unit in the last place below 1 is 2e-3
    torch.testing.assert_close(weight.detach().float(), torch.full((8, 8), 0.9), rtol=0.005, atol=0)


def test_only_reduced_parameters_have_masters():
    mixed = [*parameters(torch.bfloat16)[:2], *parameters()[2:]]
    optimizer = make_optimizer(mixed, TrainingSettings(optimizer="lamb"))
    run(optimizer, mixed, range(3))
    assert isinstance(optimizer, MasterOptimizer) and len(optimizer.masters) == 2
    assert [one.dtype for one in mixed] == [torch.bfloat16] * 2 + [torch.float32] * 3
    assert not any(
        torch.equal(one, other) for one, other in zip(mixed[2:], parameters()[2:], strict=True)
    )


def test_exclusions_are_settings():
    def treated(**settings):
        groups = parameter_groups(parameters(), TrainingSettings(weight_decay=0.1, **settings))
        return {
            parameter.ndim > 1: (group.weight_decay, group.adapted)
            for group in groups
            for parameter in group.parameters
        }

    assert treated() == {True: (0.1, True), False: (0.0, False)}
    assert treated(decay_norm_and_bias=True) == {True: (0.1, True), False: (0.1, False)}
    assert treated(adapt_norm_and_bias=True) == {True: (0.1, True), False: (0.0, True)}
    assert treated(adapt_norm_and_bias=True, decay_norm_and_bias=True) == {
        True: (0.1, True),
        False: (0.1, True),
    }


def test_batches_cover_a_group_once_in_order():
    sizes = [3, BATCH_ELEMENTS, 5, BATCH_ELEMENTS + 1, BATCH_ELEMENTS - 5, 5, 1]
    (group,) = parameter_groups(
        [nn.Parameter(torch.zeros(size, 1)) for size in sizes], TrainingSettings()
    )
    batches = group.batches()
    assert [[len(one) for one in batch.shaped] for batch in batches] == [
        [3],
        sizes[1:2],
        [5],
        sizes[3:4],
        sizes[4:6],
        [1],
    ]
    assert [one for batch in batches for one in batch.shaped] == group.parameters


def test_parameters_with_gaps_are_refused():
    with pytest.raises(WorkloadError, match="contiguous"):
        make_optimizer([nn.Parameter(torch.zeros(4, 6)[:, ::2])], TrainingSettings())


def test_a_model_without_trained_parameters_has_nothing_to_step():
    optimizer = make_optimizer([], TrainingSettings())
    optimizer.step(0.1)
    optimizer.load_state_dict(optimizer.state_dict())


def test_ratios_shrink_with_the_gradient_and_are_one_without_a_norm():
    ratios = trust_ratios(
        torch.tensor([2.0, 2.0, 0.0, 2.0]), torch.tensor([1.0, 4.0, 1.0, 0.0]), 0.001, 0.5
    )
    torch.testing.assert_close(ratios, torch.tensor([0.001, 0.0004, 1.0, 1.0]))


def test_parameters_may_get_new_memory_but_not_a_new_layout():
    still, moved = parameters(), parameters()
    run(make_optimizer(still, TrainingSettings(optimizer="lars")), still, range(4))
    optimizer = make_optimizer(moved, TrainingSettings(optimizer="lars"))
    run(optimizer, moved, range(2))
    for parameter in moved:
        parameter.data = parameter.data.clone()
    run(optimizer, moved, range(2, 4))
    assert all(torch.equal(one, other) for one, other in zip(still, moved, strict=True))
    moved[0].data = moved[0].data.to(memory_format=torch.channels_last)
    with pytest.raises(WorkloadError, match="layout"):
        run(optimizer, moved, range(4, 5))
