"""Parametrizations: the published tables, and what they are for, that nothing grows with the width."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.model_size import (
    CHECKED,
    CHECKED_DATA,
    PARAMETRIZATIONS,
    Size,
    coordinates,
    options,
    parts_of_decoder,
)
from search_spaces.settings import TrainingSettings
from trainers.begin import begin_training
from trainers.errors import DataError, JobError, WorkloadError
from trainers.fused.trainings import FusedTrainings
from trainers.job import Target, TrainingJob
from trainers.loop.synchronous import Training
from trainers.numerics.parametrization import Growth, attention_scale, maximal_update_
from trainers.optimizers import make_optimizer
from trainers.workloads import load_workload
from trainers.workloads.language.model import DecoderBlock, TransformerDecoder
from trainers.workloads.language.task import LanguageWorkload

pytestmark = pytest.mark.medium

TEXT = {"sequence_length": 16, "train_samples": 512, "evaluation_samples": 16, "depth": 2}


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


def begun(its: TrainingJob, **given: Any) -> Training:
    training = begin_training(its, **given)
    assert isinstance(training, Training)
    return training


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
        training = begun(
            job(workload, data, 0.2, optimizer=optimizer, learning_rate=0.05, weight_decay=0.01)
        )
        training.advance()
        return [each.detach() for each in training.model.parameters()]

    for optimizer in ("sgd", "adamw", "lamb"):
        plain = trained("language", options("standard", 32, **TEXT), optimizer)
        named = trained(
            "language",
            {**options("standard", 32, **TEXT), "parametrization": "standard"},
            optimizer,
        )
        base = trained("language", options("mup", 32, **TEXT), optimizer)
        other = trained("language", {**options("mup", 32, **TEXT), "base_width": 16}, optimizer)
        for one, two, three in zip(plain, named, base, strict=True):
            assert torch.equal(one, two) and torch.equal(one, three)
        assert not all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))
    digits = {"source": "digits", "width": 8}
    mup = {**digits, "parametrization": "mup", "base_width": 8}
    for one, two in zip(
        trained("resnet", digits, "sgd"), trained("resnet", mup, "sgd"), strict=True
    ):
        assert torch.equal(one, two)


def sizes(
    workload: str, parametrization: str, width: int, base: int, **settings: Any
) -> dict[str, Size]:
    """The coordinate check at one width, of the last block and the scores."""
    settings = {"weight_decay": 0.0, **settings}
    if workload == "resnet":
        data = {"source": "digits", "width": width, "augment": False}
        if parametrization == "mup":
            data |= {"parametrization": "mup", "base_width": base}
    else:
        data = options(parametrization, width, **CHECKED_DATA)
    often = 11 if workload == "resnet" else 1
    return coordinates(
        data,
        workload,
        PARTS[workload],
        TrainingSettings(**settings),
        evaluations_per_epoch=often,
    )


PARTS: dict[str, Callable[[Any], dict[str, nn.Module]]] = {
    "language": parts_of_decoder,
    "resnet": lambda model: {"last block": model.convolutions[-1], "scores": model},
}
RESNET: dict[str, Mapping[str, Any]] = {
    "sgd": {"learning_rate": 0.1},
    "adamw": {"learning_rate": 0.003},
}


LEAST_GROWN = {"sgd": 5.0, "lars": 1.3, "adamw": 5.0, "lion": 5.0, "lamb": 2.0}


@pytest.mark.parametrize("optimizer", CHECKED)
def test_activations_of_a_transformer_and_their_changes_keep_their_size(optimizer: str) -> None:
    """From width 32 to 512 within a factor of 1.5; the initial scores fall as 1 / sqrt(width), which is published too.

    In the standard parametrization the change of the stream grows.
    """
    found = {
        (name, width): sizes("language", name, width, 32, optimizer=optimizer, **CHECKED[optimizer])
        for name in PARAMETRIZATIONS
        for width in (32, 128, 512)
    }
    small = found["mup", 32]
    assert small == found["standard", 32]
    for width in (128, 512):
        wide = found["mup", width]
        for part in ("queries, keys, values", "hidden layer", "stream"):
            assert wide[part].value == pytest.approx(small[part].value, rel=0.25), (part, width)
            assert 1 / 1.5 < wide[part].change / small[part].change < 1.5, (part, width)
        fallen = wide["scores"].value / small["scores"].value
        assert fallen == pytest.approx((32 / width) ** 0.5, rel=0.1)
    # the share of the initial scores in it vanishes with them
    scores = [found["mup", width]["scores"].change for width in (128, 512)]
    assert 1 / 2 < scores[1] / scores[0] < 1.1
    grown = {
        name: found[name, 512]["stream"].change / found[name, 32]["stream"].change
        for name in PARAMETRIZATIONS
    }
    assert grown["mup"] < 1.1 and grown["standard"] > LEAST_GROWN[optimizer]


@pytest.mark.parametrize("optimizer", RESNET)
def test_activations_of_a_residual_network_and_their_changes_keep_their_size(
    optimizer: str,
) -> None:
    found = {
        (name, width): sizes("resnet", name, width, 8, optimizer=optimizer, **RESNET[optimizer])
        for name in PARAMETRIZATIONS
        for width in (8, 32, 128)
    }
    for width in (32, 128):
        for part, small in found["mup", 8].items():
            assert 1 / 2 < found["mup", width][part].change / small.change < 2, (part, width)
    grown = {
        name: found[name, 128]["scores"].change / found[name, 8]["scores"].change
        for name in PARAMETRIZATIONS
    }
    assert grown["standard"] > 2 * grown["mup"]


def test_heads_that_grow_are_scaled_by_their_size() -> None:
    """1 / sqrt(d) at the base, and 1 / d from there."""
    assert attention_scale(16, 16) == 0.25
    assert attention_scale(64, 16) == pytest.approx(4 / 64)
    data = {**options("mup", 128, **TEXT), "head_size": 64, "base_head_size": 16}
    model = LanguageWorkload(data).build_model(TrainingSettings())
    assert isinstance(model, TransformerDecoder) and isinstance(model.blocks[0], DecoderBlock)
    assert model.blocks[0].attention_scale == pytest.approx(1 / 16)
    assert model.blocks[0].heads == 2


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lars", "lamb", "nadamw", "ademamix"])
def test_fused_trainings_are_those_alone(optimizer: str) -> None:
    settings = {"optimizer": optimizer, "weight_decay": 0.01}
    data = options("mup", 64, **TEXT | {"train_samples": 128, "depth": 1})
    jobs = [job("language", data, learning_rate=rate, **settings) for rate in (0.003, 0.001)]
    alone, together = ([begun(each) for each in jobs] for _ in range(2))
    for training in alone:
        training.advance()
    fused = FusedTrainings()
    for training in together:
        fused.add(training)
    fused.advance()
    fused.close()
    for one, other in zip(alone, together, strict=True):
        its = dict(other.model.named_parameters())
        for name, mine in one.model.named_parameters():
            # attention ignores the bias of keys, of whose gradient Adam would normalize the rounding errors
            if not name.endswith("queries_keys_values.bias"):
                torch.testing.assert_close(mine, its[name], rtol=2e-4, atol=2e-6)


def test_weights_shrink_as_fast_at_any_width() -> None:
    """With a gradient of zero: rate times decay is that of the base width in every group, by its time scale too."""
    for optimizer in ("sgd", "adamw", "lion"):
        model = Perceptron(64)
        growths = maximal_update_(model, Perceptron(16))
        settings = TrainingSettings(
            optimizer=optimizer, weight_decay=0.1, momentum=0.0, decay_norm_and_bias=True
        )
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        make_optimizer(model.parameters(), settings, growths=growths).step(0.5)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), before[name] * 0.95)


def test_a_checkpoint_goes_on_in_mup() -> None:
    its = job(
        "language", options("mup", 64, **TEXT | {"train_samples": 64}), 2.0, optimizer="adamw"
    )
    straight, first, second = (begun(its) for _ in range(3))
    straight.advance()
    first.advance()
    second.load_state_dict(first.state_dict())
    straight.advance()
    second.advance()
    for mine, theirs in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


class OwnTask(LanguageWorkload):
    """A class of one's own, which declares its base shapes."""

    def base_model(self, settings: TrainingSettings) -> nn.Module:
        return self._decoder(32, 2, attention_scale(16, 16))


def test_a_class_of_ones_own_declares_its_base_shapes() -> None:
    its = job("own", options("standard", 64, **TEXT), 0.2, optimizer="adamw")
    known = job("language", options("mup", 64, **TEXT), 0.2, optimizer="adamw")
    own = begun(its, workload=OwnTask(its.data))
    ours = begun(known)
    own.advance()
    ours.advance()
    for mine, theirs in zip(own.model.parameters(), ours.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"parametrization": "mupp"}, "there is no parametrization 'mupp'; did you mean 'mup'"),
        ({"parametrization": "mup"}, "'mup' needs base_width.* but got None"),
        ({"parametrization": "mup", "base_width": 0}, "at least 1, but got 0"),
        (
            {"base_width": 32},
            "got base_width 32 with parametrization 'standard'; set parametrization",
        ),
        (
            {"parametrization": "mup", "base_width": 40},
            "base_width must be a multiple of base_head_size, 16",
        ),
        ({"base_head_size": 8}, "base_head_size is that of parametrization 'mup'"),
    ],
)
def test_options_that_contradict_each_other(option: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_workload("language", {**TEXT, **option})
    if "base_head_size" not in option and option.get("base_width") != 40:
        with pytest.raises(DataError, match=said):
            load_workload("resnet", {"source": "digits", **option})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": "shampoo"}, "but got 'shampoo'; take one of sgd, lars, lamb, adam"),
        ({"optimizer": "muon"}, "but got 'muon'"),
        ({"optimizer": "adam"}, "got weight_decay 0.0001 with optimizer 'adam'; take adamw"),
    ],
)
def test_an_optimizer_without_a_rule_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        begun(job("language", options("mup", 64, **TEXT), **settings))
    begun(job("language", options("standard", 64, **TEXT), **settings)).close()


def test_models_that_do_not_fit_their_base_are_refused() -> None:
    with pytest.raises(WorkloadError, match=r"but one alone has '1.bias'"):
        maximal_update_(
            nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)), nn.Sequential(nn.Linear(3, 4))
        )
    cube, small = nn.Module(), nn.Module()
    cube.own, small.own = nn.Parameter(torch.zeros(4, 2, 6)), nn.Parameter(torch.zeros(2, 2, 2))
    with pytest.raises(
        WorkloadError, match=r"'own' is of \(4, 2, 6\) and at the base width of \(2, 2, 2\)"
    ):
        maximal_update_(cube, small)
    with pytest.raises(WorkloadError, match="no parameter's name begins so; did you mean 'bias'"):
        maximal_update_(nn.Linear(4, 4), nn.Linear(2, 2), {"bies": "constant"})
    with pytest.raises(WorkloadError, match="fan_in, fan_out or constant, but is 'fan'"):
        maximal_update_(nn.Linear(4, 4), nn.Linear(2, 2), {"weight": "fan"})  # type: ignore[dict-item]
