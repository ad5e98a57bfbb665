"""The optimizers as PyTorch optimizers: the project's own updates, with groups, schedulers and state dicts."""

import copy
import pickle

import pytest
import torch
from torch import nn

from search_spaces.settings import SettingError, TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from tests.trainers.optimizer_rules import CASES
from trainers import optimizers
from trainers.errors import CheckpointError
from trainers.optimizers import RuleOptimizer, make_optimizer, parameter_kinds
from trainers.optimizers.torch_optimizers import used_settings

CLASSES = {name: getattr(optimizers, OPTIMIZERS[name].title) for name in OPTIMIZERS}
SETTINGS = {name: case.settings for name, case in CASES.items()}


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for mine, its in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-6, atol=1e-8)


def test_there_is_a_class_for_every_rule():
    assert CLASSES.keys() == SETTINGS.keys()
    for name, each in CLASSES.items():
        assert (each.rule, each.__name__) == (name, OPTIMIZERS[name].title)
        assert issubclass(each, RuleOptimizer) and issubclass(each, torch.optim.Optimizer)
        assert pickle.loads(pickle.dumps(each)) is each
    with pytest.raises(AttributeError, match="no attribute 'Lars'"):
        _ = optimizers.Lars


@pytest.mark.parametrize("rule", CLASSES)
def test_updates_are_those_inside_and_go_on_from_a_state_dict(rule):
    inside, outside = network(), network()
    settings = TrainingSettings.from_record({"optimizer": rule, **SETTINGS[rule]})
    reference = make_optimizer(inside.parameters(), settings, parameter_kinds(inside))
    optimizer = CLASSES[rule](
        outside.parameters(), lr=0.1, kinds=parameter_kinds(outside), **SETTINGS[rule]
    )
    for step in range(12):
        if step == 7:  # through a checkpoint, into an optimizer of another rate
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = CLASSES[rule](
                outside.parameters(), lr=7.0, kinds=parameter_kinds(outside), **SETTINGS[rule]
            )
            optimizer.load_state_dict(saved)
        rate = 0.1 / (1 + step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        gradients(inside, step)
        gradients(outside, step)
        reference.step(rate, epochs=step / 2)
        optimizer.step(epochs=step / 2)
    assert_equal(inside, outside)
    assert len(optimizer.state) == len(list(outside.parameters()))


def test_groups_have_settings_of_their_own():
    """Two groups move as two optimizers do; a group may also be added later."""
    one, other = network(), network()
    head, body = list(one[4].parameters()), list(one[0].parameters())
    optimizer = optimizers.LARS([{"params": body, "weight_decay": 0.1}], lr=0.5, momentum=0.5)
    optimizer.add_param_group({"params": head, "lr": 0.1, "momentum": 0.9})
    first = optimizers.LARS(other[0].parameters(), lr=0.5, momentum=0.5, weight_decay=0.1)
    second = optimizers.LARS(other[4].parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        gradients(one, step)
        gradients(other, step)
        optimizer.step()
        first.step()
        second.step()
    assert_equal(one, other)


def test_schedulers_and_closures_work_as_with_every_optimizer():
    model, reference = network(), network()
    optimizer = optimizers.SGD(
        model.parameters(), lr=0.1, weight_decay=0.1, decay_norm_and_bias=True
    )
    known = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(each, max_lr=0.3, total_steps=10)
        for each in (optimizer, known)
    ]
    assert optimizer.param_groups[0]["momentum"] == 0.95  # set by the schedule, and followed
    for step in range(9):
        losses = []
        for each, net in ((optimizer, model), (known, reference)):

            def closure(net=net, step=step):
                gradients(net, step)
                return float(step)

            losses.append(each.step(closure))
        assert losses == [float(step)] * 2
        for each in (optimizer, known):
            each.param_groups[0]["weight_decay"] = 0.1 / (1 + step)
        for schedule in schedules:
            schedule.step()
    assert_equal(model, reference)


def test_parameters_without_kinds_go_by_rank():
    model = network()
    optimizer = optimizers.LARS(model.parameters(), lr=0.1)
    decays = {
        id(parameter): group.weight_decay
        for rule in optimizer._rules
        for group in rule.groups
        for parameter in group.parameters
    }
    for parameter in model.parameters():
        assert (decays[id(parameter)] > 0) == (parameter.ndim > 1)


def test_what_a_rule_does_not_use_is_refused():
    model = network()
    with pytest.raises(SettingError, match="lars uses no setting 'beta1'"):
        optimizers.LARS(model.parameters(), lr=0.1, beta1=0.9)
    with pytest.raises(SettingError, match="did you mean 'momentum'"):
        optimizers.LARS(model.parameters(), lr=0.1, momentun=0.9)
    with pytest.raises(SettingError, match="momentum must lie in"):
        optimizers.LARS(model.parameters(), lr=0.1, momentum=1.5)
    with pytest.raises(SettingError, match="lars uses no setting 'beta2'"):
        optimizers.LARS([{"params": model.parameters(), "beta2": 0.5}], lr=0.1)
    with pytest.raises(SettingError, match="keep the weights in fp32"):
        optimizers.LARS(network().bfloat16().parameters(), lr=0.1)


def test_the_state_of_another_rule_is_refused():
    model = network()
    saved = optimizers.LARS(model.parameters(), lr=0.1).state_dict()
    with pytest.raises(CheckpointError, match="load the state of the same optimizer"):
        optimizers.Shampoo(model.parameters(), lr=0.1).load_state_dict(saved)


def test_every_rule_uses_the_weight_decay():
    for rule in CLASSES:
        assert "weight_decay" in used_settings(rule)


@pytest.mark.parametrize(
    ("rule", "settings"),
    [("rmsprop_warmup", {}), ("ademamix", {"ademamix_warmup_epochs": 5.0})],
)
def test_a_rule_that_changes_with_the_progress_asks_for_it(rule, settings):
    model = network()
    optimizer = CLASSES[rule](model.parameters(), lr=0.1, **settings)
    gradients(model, 0)
    before = copy.deepcopy(model)
    with pytest.raises(SettingError, match=r"call step\(epochs=samples / train_samples\)"):
        optimizer.step()
    assert_equal(model, before)
    optimizer.step(epochs=0.0)


def test_a_warmup_of_0_needs_no_progress():
    model = network()
    gradients(model, 0)
    optimizers.AdEMAMix(model.parameters(), lr=0.1).step()


@pytest.mark.parametrize("rule", CLASSES)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_goes_on_like_the_original(rule, copied):
    one = network()
    optimizer = CLASSES[rule](one.parameters(), lr=0.05, kinds=parameter_kinds(one))
    for step in range(3):
        gradients(one, step)
        optimizer.step(epochs=float(step))
    other, its = copied((one, optimizer))
    for step in range(3, 6):
        for model, moves in ((one, optimizer), (other, its)):
            gradients(model, step)
            moves.step(epochs=float(step))
    assert_equal(one, other)


def test_a_sparse_gradient_is_that_of_a_dense_embedding():
    tables = [nn.Embedding(6, 3, sparse=sparse) for sparse in (True, False)]
    tables[1].load_state_dict(tables[0].state_dict())
    for table in tables:
        optimizer = optimizers.AdamW(table.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([1, 4])).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(tables[0].weight, tables[1].weight, rtol=0, atol=0)


def test_a_group_may_have_the_initial_rate_that_schedulers_resume_from():
    optimizer = optimizers.LARS(
        [{"params": nn.Linear(2, 2).parameters(), "initial_lr": 0.4}], lr=0.1
    )
    torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5, last_epoch=3)
    assert optimizer.param_groups[0]["lr"] < 0.4
