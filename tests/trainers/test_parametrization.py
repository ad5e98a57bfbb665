"""Parametrizations: the published tables, and what they are for, that nothing grows with the width."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from search_spaces.settings import TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from trainers.begin import begin_training
from trainers.errors import DataError, JobError, WorkloadError
from trainers.fused.trainings import FusedTrainings
from trainers.job import Target, TrainingJob
from trainers.loop.synchronous import Training
from trainers.numerics.parametrization import Growth, attention_scale, maximal_update_
from trainers.optimizers import make_optimizer
from trainers.workloads import Workload, load_workload
from trainers.workloads.language.task import LanguageWorkload

TEXT = {"sequence_length": 16, "train_samples": 512, "evaluation_samples": 16, "depth": 2}
WIDTHS = (32, 128, 512)


class Perceptron(nn.Module):
    """An embedding, two layers in between and an output, with every kind of tensor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(7, width)
        self.first = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(3 * width)
        self.second = nn.Linear(3 * width, width, bias=False)
        self.offset = nn.Parameter(torch.zeros(5))
        self.output = nn.Linear(width, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(self.table(tokens))))
        scores: Tensor = self.output(torch.relu(self.second(hidden))) + self.offset
        return scores


def job(
    workload: str, data: Mapping[str, Any], epochs: float = 1.0, **settings: Any
) -> TrainingJob:
    return TrainingJob(
        workload=workload,
        data=data,
        seed=3,
        target=Target("loss", 1e-9, higher_is_better=False),
        global_batch_size=32,
        epochs=epochs,
        settings=TrainingSettings(**settings),
    )


def language(width: int, mup: bool, **options: Any) -> dict[str, Any]:
    base = {"parametrization": "mup", "base_width": 32} if mup else {}
    return {**TEXT, "width": width, **base, **options}


# table 8 of arXiv:2203.03466, of a tensor whose fans are 4 times those of its base shape: SGD's rate is fan_out for
# input weights and biases, fan_in for output weights, 1 for hidden ones; Adam's 1, 1 and 1 / fan_in
PUBLISHED = {
    "table.weight": ("sgd", 4.0, "adamw", 1.0),
    "first.weight": ("sgd", 1.0, "adamw", 0.25),
    "first.bias": ("sgd", 4.0, "adamw", 1.0),
    "norm.weight": ("sgd", 4.0, "adamw", 1.0),
    "norm.bias": ("sgd", 4.0, "adamw", 1.0),
    "second.weight": ("sgd", 1.0, "adamw", 0.25),
    "offset": ("sgd", 1.0, "adamw", 1.0),
    "output.weight": ("sgd", 4.0, "adamw", 1.0),
    "output.bias": ("sgd", 1.0, "adamw", 1.0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_rates_are_those_of_the_published_table(name: str) -> None:
    model = Perceptron(64)
    growth = maximal_update_(model, Perceptron(16))[dict(model.named_parameters())[name]]
    sgd, of_sgd, adam, of_adam = PUBLISHED[name]
    decay = {"weight_decay": 0.1, "adapted": True}
    assert growth.multipliers(sgd, **decay) == pytest.approx((of_sgd, 1 / of_sgd))
    assert growth.multipliers(adam, **decay) == pytest.approx((of_adam, 1 / of_adam))
    for other in ("nadamw", "lion", "ademamix", "schedule_free_adamw"):
        assert growth.multipliers(other, **decay) == growth.multipliers(adam, **decay)
    layerwise = 0.5 if name in ("first.weight", "second.weight") else 1.0
    assert growth.multipliers("lars", **decay) == pytest.approx((layerwise, 1 / of_sgd))
    assert growth.multipliers("lamb", **decay) == pytest.approx((layerwise, 1 / of_adam))
    alone = {"weight_decay": 0.1, "adapted": False}
    assert growth.multipliers("lars", **alone) == growth.multipliers("sgd", **alone)
    assert growth.multipliers("lamb", **alone) == growth.multipliers("adamw", **alone)


def test_fans_that_grow_apart() -> None:
    """Hidden weights of SGD move by fan_out over fan_in, Adam's by 1 / fan_in: mup's fanin_fanout_mult_ratio."""
    growth = Growth(fan_in=2.0, fan_out=8.0)
    assert growth.multipliers("sgd", weight_decay=0.0, adapted=False) == (4.0, 0.25)
    assert growth.multipliers("adamw", weight_decay=0.0, adapted=False) == (0.5, 2.0)
    assert growth.deviation == 2.0**-0.5


def test_initial_values_keep_the_deviation_of_the_base_width() -> None:
    """Hidden weights 1 / sqrt(fan_in) of it; input and output weights and all biases the same, as in table 8."""
    torch.manual_seed(0)
    base, model = Perceptron(64), Perceptron(1024)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    maximal_update_(model, base)
    at_base = {name: each.std() for name, each in base.named_parameters()}
    for name, parameter in model.named_parameters():
        hidden = name in ("first.weight", "second.weight")
        if name in ("norm.weight", "norm.bias", "offset", "output.bias"):
            continue
        expected = at_base[name] / (4 if hidden else 1)
        assert parameter.std().item() == pytest.approx(expected.item(), rel=0.15), name
    assert torch.equal(model.norm.weight, before["norm.weight"])
    assert torch.allclose(model.output.bias, 4 * before["output.bias"])
    assert torch.equal(
        model.first.weight, before["first.weight"]
    )  # PyTorch's own is 1 / sqrt(fan_in)


def test_the_output_is_multiplied() -> None:
    model = Perceptron(64)
    wide = torch.randn(3, 64)
    before = nn.functional.linear(wide, model.output.weight, model.output.bias).detach()
    bias = model.output.bias.detach().clone()
    maximal_update_(model, Perceptron(16))
    expected = (
        2 * (before - bias) / 4 + 2 * bias
    )  # the deviation of weight and bias is sqrt(4) that of PyTorch
    torch.testing.assert_close(model.output(wide), expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_table_3_is_the_same_training(optimizer: str) -> None:
    """The other form: no multiplier, output weights smaller by the width, and their rate, 1 / fan_in for both."""
    torch.manual_seed(1)
    eight, base = Perceptron(64), Perceptron(16)
    growths = maximal_update_(eight, base)
    three = Perceptron(64)
    three.load_state_dict(eight.state_dict())
    with torch.no_grad():
        three.output.weight.mul_(1 / 4)
    settings = TrainingSettings(
        optimizer=optimizer, epsilon=1e-30, weight_decay=0.0, momentum=0.9, learning_rate=1.0
    )
    theirs = make_optimizer(eight.parameters(), settings, growths=growths)
    # rates of table 3 by PyTorch's own optimizers: fan_out, 1 / fan_in and 1, and 1, 1 / fan_in and 1 / fan_in
    rates = {
        "sgd": {"table": 4.0, "first.bias": 4.0, "norm": 4.0, "output.weight": 0.25},
        "adamw": {"first.weight": 0.25, "second": 0.25, "output.weight": 0.25},
    }[optimizer]
    rate = 0.05 if optimizer == "sgd" else 0.01
    groups = [
        {
            "params": [each],
            "lr": rate * next((r for n, r in rates.items() if name.startswith(n)), 1),
        }
        for name, each in three.named_parameters()
    ]
    ours = (
        torch.optim.SGD(groups, momentum=0.9)
        if optimizer == "sgd"
        else torch.optim.AdamW(groups, eps=1e-30, weight_decay=0.0)
    )
    tokens, classes = torch.randint(7, (20, 8)), torch.randint(5, (20, 8))
    for update in range(20):
        losses = []
        for model in (eight, three):
            model.zero_grad(set_to_none=True)
            losses.append(nn.functional.cross_entropy(model(tokens[update]), classes[update]))
            losses[-1].backward()
        torch.testing.assert_close(losses[0], losses[1], rtol=2e-3, atol=1e-4)
        theirs.step(rate)
        ours.step()
    assert abs(losses[0].item() - math.log(5)) > 0.01  # it moved


def test_standard_and_the_base_width_are_bit_for_bit_what_they_were() -> None:
    def trained(workload: str, data: dict[str, Any], optimizer: str) -> list[Tensor]:
        training = begin_training(
            job(workload, data, 0.2, optimizer=optimizer, learning_rate=0.05, weight_decay=0.01)
        )
        assert isinstance(training, Training)
        training.advance()
        return [each.detach() for each in training.model.parameters()]

    for optimizer in ("sgd", "adamw", "lamb"):
        plain = trained("language", language(32, mup=False), optimizer)
        named = trained("language", language(32, mup=False, parametrization="standard"), optimizer)
        base = trained("language", language(32, mup=True), optimizer)
        other = trained("language", {**language(32, mup=True), "base_width": 16}, optimizer)
        for one, two, three in zip(plain, named, base, strict=True):
            assert torch.equal(one, two) and torch.equal(one, three)
        assert not all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))
    digits = {"source": "digits", "width": 8}
    mup = {**digits, "parametrization": "mup", "base_width": 8}
    for one, two in zip(
        trained("resnet", digits, "sgd"), trained("resnet", mup, "sgd"), strict=True
    ):
        assert torch.equal(one, two)


Sizes = dict[str, tuple[float, float]]


def coordinates(
    data: Mapping[str, Any],
    workload: str,
    places: Callable[[nn.Module], Mapping[str, nn.Module]],
    **settings: Any,
) -> Sizes:
    """Root mean square of what each place gives, before training and of its change over 4 updates, by place."""
    training = begin_training(job(workload, data, **settings))
    assert isinstance(training, Training)
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            seen[name] = output.detach().clone()

        return hook

    for name, module in places(training.model).items():
        module.register_forward_hook(keep(name))
    batch = training.workload.prepare(training.workload.evaluation_batch(torch.arange(16)))

    def look() -> dict[str, Tensor]:
        training.model.eval()
        with torch.no_grad():
            training.workload.score(training.model, batch)
        return dict(seen)

    training.model.train()
    before = look()
    training._updates(0, 4)
    after = look()
    return {name: (rms(before[name]), rms(after[name] - before[name])) for name in before}


def rms(tensor: Tensor) -> float:
    return tensor.double().square().mean().sqrt().item()


def of_decoder(model: Any) -> dict[str, nn.Module]:
    return {
        "attention": model.blocks[1].queries_keys_values,
        "block": model.blocks[1],
        "scores": model,
    }
