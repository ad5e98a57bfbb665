"""Parametrizations: the published tables, and their purpose, that nothing grows with the width."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.model_size import (
    CHECKED,
    CHECKED_DATA,
    DEPTH,
    WIDTH,
    Size,
    check,
    coordinates,
    options,
    parts_of_decoder,
)
from search_spaces.settings import TrainingSettings
from search_spaces.techniques import OPTIMIZERS
from trainers.begin import begin_training
from trainers.errors import DataError, JobError, WorkloadError
from trainers.fused.trainings import FusedTrainings
from trainers.job import Target, TrainingJob
from trainers.loop.synchronous import SynchronousTraining
from trainers.numerics.parametrization import TensorGrowth, attention_scale, maximal_update_
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


def begun(its: TrainingJob, **given: Any) -> SynchronousTraining:
    training = begin_training(its, **given)
    assert isinstance(training, SynchronousTraining)
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
    # the epsilon of table 1 of arXiv:2505.01618: 1 / width, of whatever grows
    epsilon = 1.0 if name in ("offset", "output.bias") else 0.25
    assert growth.multipliers(sgd, **decay) == pytest.approx((of_sgd, 1 / of_sgd, 1))
    assert growth.multipliers(adam, **decay) == pytest.approx((of_adam, 1 / of_adam, epsilon))
    for other in ("nadamw", "lion", "ademamix", "schedule_free_adamw"):
        assert growth.multipliers(other, **decay) == growth.multipliers(adam, **decay)
    layerwise = 0.5 if name in ("first.weight", "second.weight") else 1.0
    assert growth.multipliers("lars", **decay) == pytest.approx((layerwise, 1 / of_sgd, 1))
    assert growth.multipliers("lamb", **decay) == pytest.approx((layerwise, 1 / of_adam, epsilon))
    alone = {"weight_decay": 0.1, "adapted": False}
    assert growth.multipliers("lars", **alone) == growth.multipliers("sgd", **alone)
    assert growth.multipliers("lamb", **alone) == growth.multipliers("adamw", **alone)


def test_fans_that_grow_apart() -> None:
    """Hidden weights of SGD move by fan_out over fan_in, Adam's by 1 / fan_in: mup's fanin_fanout_mult_ratio."""
    growth = TensorGrowth(fan_in=2.0, fan_out=8.0)
    assert growth.multipliers("sgd", weight_decay=0.0, adapted=False) == (4.0, 0.25, 1.0)
    assert growth.multipliers("adamw", weight_decay=0.0, adapted=False) == (0.5, 2.0, 0.125)
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


def cheapest(names: Mapping[str, Any], *kept: str) -> list[Any]:
    """Optimizers for a check of what the published factors are for; others than ``kept`` are slow."""
    return [each if each in kept else pytest.param(each, marks=pytest.mark.slow) for each in names]


LEAST_GROWN = {"sgd": 5.0, "lars": 1.3, "adamw": 5.0, "lion": 5.0, "lamb": 2.0}


@pytest.mark.parametrize("optimizer", cheapest(CHECKED, "adamw"))
def test_activations_of_a_transformer_and_their_changes_keep_their_size(optimizer: str) -> None:
    """From width 32 to 512 within a factor of 1.5; the initial scores fall as 1 / sqrt(width), which is published too.

    In the standard parametrization the change of the stream grows.
    """
    found = {
        (name, width): sizes("language", name, width, 32, optimizer=optimizer, **CHECKED[optimizer])
        for name in WIDTH.parametrizations
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
        for name in WIDTH.parametrizations
    }
    assert grown["mup"] < 1.1 and grown["standard"] > LEAST_GROWN[optimizer]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", cheapest(RESNET, "sgd"))
def test_activations_of_a_residual_network_and_their_changes_keep_their_size(
    optimizer: str,
) -> None:
    found = {
        (name, width): sizes("resnet", name, width, 8, optimizer=optimizer, **RESNET[optimizer])
        for name in WIDTH.parametrizations
        for width in (8, 32, 128)
    }
    for width in (32, 128):
        for part, small in found["mup", 8].items():
            assert 1 / 2 < found["mup", width][part].change / small.change < 2, (part, width)
    grown = {
        name: found[name, 128]["scores"].change / found[name, 8]["scores"].change
        for name in WIDTH.parametrizations
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
                torch.testing.assert_close(mine, its[name], rtol=2e-4, atol=5e-6)


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
        return self._decoder(32, self.depth, 2, attention_scale(16, 16))


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
        ({"base_head_size": 8}, "base_head_size needs parametrization 'mup'"),
        (
            {"parametrization": "mup", "base_width": 32, "base_depth": 2},
            "got base_depth 2 with parametrization 'mup'; set parametrization: completep",
        ),
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
        ({"optimizer": "shampoo"}, "but got 'shampoo'; use one of sgd, lars, lamb, adam"),
        ({"optimizer": "muon"}, "but got 'muon'"),
        ({"optimizer": "adam"}, "got weight_decay 0.0001 with optimizer 'adam'; use adamw"),
    ],
)
def test_an_optimizer_without_a_rule_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        begun(job("language", options("mup", 64, **TEXT), **settings))
    begun(job("language", options("standard", 64, **TEXT), **settings)).close()


def test_models_that_do_not_fit_their_base_are_refused() -> None:
    with pytest.raises(WorkloadError, match=r"but only one has '1.bias'"):
        maximal_update_(
            nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)),
            nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5, bias=False)),
        )
    cube, small = nn.Module(), nn.Module()
    cube.own, small.own = nn.Parameter(torch.zeros(4, 2, 6)), nn.Parameter(torch.zeros(2, 2, 2))
    with pytest.raises(
        WorkloadError, match=r"'own' has shape \(4, 2, 6\), and \(2, 2, 2\) at the base width"
    ):
        maximal_update_(cube, small)
    with pytest.raises(
        WorkloadError, match="no parameter's name begins with it; did you mean 'bias'"
    ):
        maximal_update_(nn.Linear(4, 4), nn.Linear(2, 2), {"bies": "constant"})
    with pytest.raises(WorkloadError, match="fan_in, fan_out or constant, but is 'fan'"):
        maximal_update_(nn.Linear(4, 4), nn.Linear(2, 2), {"weight": "fan"})  # type: ignore[dict-item]


# table 1 of arXiv:2505.01618 with alpha = 1, for a model of 4 times the width and 8 times the depth of its base: the
# multipliers of AdamW's rate, decay and epsilon; what the table calls hidden are the matrices of blocks
OF_COMPLETEP = {
    "token_embedding.weight": (1.0, 1.0, 1 / 4),
    "position_embedding.weight": (1.0, 1.0, 1 / 4),
    "blocks.9.attention_norm.weight": (1.0, 1.0, 1 / 32),
    "blocks.9.network_norm.bias": (1.0, 1.0, 1 / 32),
    "blocks.0.queries_keys_values.weight": (1 / 4, 4.0, 1 / 32),
    "blocks.9.attention_output.weight": (1 / 4, 4.0, 1 / 32),
    "blocks.15.network_input.weight": (1 / 4, 4.0, 1 / 32),
    "blocks.15.network_output.weight": (1 / 4, 4.0, 1 / 32),
    "blocks.15.network_output.bias": (1.0, 1.0, 1 / 32),
    "norm.weight": (1.0, 1.0, 1 / 4),
    "head.weight": (1.0, 1.0, 1 / 4),
}


def completep(width: int, depth: int, base_width: int = 32, base_depth: int = 2) -> dict[str, Any]:
    return {
        **TEXT,
        "width": width,
        "depth": depth,
        "parametrization": "completep",
        "base_width": base_width,
        "base_depth": base_depth,
    }


def built(data: Mapping[str, Any]) -> tuple[TransformerDecoder, dict[nn.Parameter, TensorGrowth]]:
    workload, settings = LanguageWorkload(data), TrainingSettings()
    torch.manual_seed(0)
    model = workload.build_model(settings)
    base = workload.base_model(settings)
    assert isinstance(model, TransformerDecoder) and base is not None
    return model, maximal_update_(model, base, workload.initialization, workload.residual_outputs)


def test_multipliers_of_completep_are_those_of_the_published_table() -> None:
    model, growths = built(completep(128, 16))
    named = dict(model.named_parameters())
    for name, published in OF_COMPLETEP.items():
        growth = growths[named[name]]
        given = {"weight_decay": 0.1, "adapted": True}
        assert growth.multipliers("adamw", **given) == pytest.approx(published), name
        for other in ("nadamw", "ademamix", "schedule_free_adamw", "lion"):
            assert growth.multipliers(other, **given) == growth.multipliers("adamw", **given)
        # derived: an update in proportion to the gradient, which the branch makes smaller by the depth
        of_width = TensorGrowth(growth.fan_in, growth.fan_out)
        times = 8 if name.startswith("blocks") else 1
        sgd, shallow = (each.multipliers("sgd", **given) for each in (growth, of_width))
        assert sgd == pytest.approx((times * shallow.rate, shallow.weight_decay / times, 1))
        lamb = growth.multipliers("lamb", **given)
        assert lamb.rate == of_width.multipliers("lamb", **given).rate
        assert lamb.epsilon == pytest.approx(published[2])


def test_initial_values_do_not_follow_the_depth() -> None:
    """Hidden deviations fall as 1 / sqrt(width), and are those of a network of the base depth, its outputs too."""
    deep, _ = built(completep(128, 16))
    base = LanguageWorkload(completep(128, 16)).base_model(TrainingSettings())
    assert isinstance(base, TransformerDecoder)
    for name, theirs in base.blocks[1].named_parameters():
        if theirs.ndim == 2:
            mine = torch.stack([dict(each.named_parameters())[name] for each in deep.blocks]).std()
            assert mine.item() == pytest.approx(theirs.std().item() / 2, rel=0.05), name


def test_what_a_block_adds_is_divided_by_the_depth() -> None:
    model, _ = built(completep(32, 16))
    block, stream = model.blocks[3], torch.randn(2, 5, 32)
    plain = DecoderBlock(32, 2, 0.25)
    plain.load_state_dict(block.state_dict())
    mixed = plain(stream) - stream
    attended = {}
    plain.attention_output.register_forward_hook(lambda _, __, out: attended.update(out=out))
    plain(stream)
    middle = stream + attended["out"] / 8
    hidden = nn.functional.gelu(plain.network_input(plain.network_norm(middle)))
    torch.testing.assert_close(block(stream), middle + plain.network_output(hidden) / 8)
    assert not torch.allclose(block(stream), stream + mixed, atol=1e-2)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb"])
def test_completep_at_the_base_depth_is_mup_bit_for_bit(optimizer: str) -> None:
    def trained(data: dict[str, Any]) -> list[Tensor]:
        given = {"optimizer": optimizer, "learning_rate": 0.05, "weight_decay": 0.01}
        training = begun(job("language", data, 0.2, **given))
        training.advance()
        return [each.detach() for each in training.model.parameters()]

    mup = trained(options("mup", 64, **TEXT))
    same, deeper = trained(completep(64, 2)), trained(completep(64, 2, base_depth=1))
    for one, other in zip(mup, same, strict=True):
        assert torch.equal(one, other)
    assert not all(torch.equal(one, other) for one, other in zip(mup, deeper, strict=True))
    standard = trained(options("standard", 32, **TEXT))
    for one, other in zip(standard, trained(completep(32, 2)), strict=True):
        assert torch.equal(one, other)


# how many times the change of the stream at depth 32 is that at depth 4: about 8 where a sum of blocks grows
LEAST_GROWN_BY_DEPTH = {"sgd": 4.0, "lars": 4.0, "adamw": 4.0, "lion": 3.0, "lamb": 3.0}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", cheapest(CHECKED, "adamw"))
def test_what_a_deep_transformer_computes_and_changes_keeps_its_size(optimizer: str) -> None:
    """From 2 to 32 blocks; in the standard parametrization the change of the stream grows.

    What the blocks add to the stream at first vanishes as 1 / sqrt(depth), and leaves the embedding's.
    """
    found = {name: check(DEPTH, optimizer, name) for name in DEPTH.parametrizations}
    assert found["completep"][2] == found["standard"][2]
    for name in ("queries, keys, values", "hidden layer", "scores"):
        sizes = [found["completep"][depth][name] for depth in DEPTH.checked]
        assert max(each.value for each in sizes) < 1.1 * min(each.value for each in sizes)
        assert max(each.change for each in sizes) < 1.8 * min(each.change for each in sizes)
    streams = {
        name: [its[depth]["stream"] for depth in DEPTH.checked] for name, its in found.items()
    }
    changes = [each.change for each in streams["completep"]]
    assert max(changes) < 2 * min(changes)
    grown = {name: its[-1].change / its[1].change for name, its in streams.items()}
    assert grown["completep"] < 1.3 and grown["standard"] > LEAST_GROWN_BY_DEPTH[optimizer]
    values = [each.value for each in streams["completep"]]
    assert values == sorted(values, reverse=True) and values[-1] > 0.4 * values[0]


def test_epsilon_follows_the_gradients() -> None:
    """With one that decides the update, a block moves about as far in a wide and deep network as at the base."""
    changes: dict[tuple[int, int, bool], float] = {}
    for scaled in (True, False):
        for width, depth in ((32, 2), (128, 8)):
            model, growths = built(completep(width, depth))
            if not scaled:
                growths = {}
            its = TrainingSettings(optimizer="adamw", epsilon=1.0, weight_decay=0.0)
            before = model.blocks[1].network_input.bias.detach().clone()
            tokens = torch.arange(64).view(4, 16)
            nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            make_optimizer(model.parameters(), its, growths=growths).step(1.0)
            after = model.blocks[1].network_input.bias.detach()
            changes[width, depth, scaled] = (after - before).square().mean().sqrt().item()
    assert 0.4 < changes[128, 8, True] / changes[32, 2, True] < 2.5
    assert changes[128, 8, False] < 0.15 * changes[32, 2, False]


def test_fused_trainings_in_completep_are_those_alone() -> None:
    data = {**completep(64, 3, base_depth=1), "train_samples": 128}
    settings = {"optimizer": "adamw", "epsilon": 1e-3, "weight_decay": 0.01}
    jobs = [job("language", data, learning_rate=rate, **settings) for rate in (0.003, 0.001)]
    alone, together = ([begun(each) for each in jobs] for _ in range(2))
    fused = FusedTrainings()
    for training, other in zip(alone, together, strict=True):
        training.advance()
        fused.add(other)
    fused.advance()
    fused.close()
    for one, two in zip(alone, together, strict=True):
        its = dict(two.model.named_parameters())
        for name, mine in one.model.named_parameters():
            torch.testing.assert_close(mine, its[name], rtol=2e-4, atol=2e-6)


class OwnStack(LanguageWorkload):
    """A class of one's own, which declares its base shapes in three lines."""

    residual_outputs = ("attention_output", "network_output")

    def base_model(self, settings: TrainingSettings) -> nn.Module:
        return self._decoder(32, 1, 2, attention_scale(16, 16))

    def _decoder(self, width: int, depth: int, heads: int, scale: float) -> TransformerDecoder:
        model = super()._decoder(width, depth, heads, scale)
        for block in model.blocks:  # the initial values of one block
            for each in (block.attention_output, block.network_output):
                nn.init.normal_(each.weight, std=math.sqrt(1 / (5 * width)))
        return model


def test_a_class_of_ones_own_grows_in_depth_by_its_base_shapes() -> None:
    its = job("own", options("standard", 64, **TEXT | {"depth": 4}), 0.2, optimizer="adamw")
    own = begun(its, workload=OwnStack(its.data))
    growth = own.replica.growths[own.model.blocks[3].network_input.weight]
    assert growth == TensorGrowth(fan_in=2.0, fan_out=2.0, depth=4.0)
    assert own.replica.growths[own.model.head.weight] == TensorGrowth(fan_in=2.0)
    stream = torch.randn(1, 3, 64)
    added = own.model.blocks[0].attention_output(stream)
    plain = nn.functional.linear(stream, *own.model.blocks[0].attention_output.parameters())
    torch.testing.assert_close(added, plain / 4)


def test_a_base_may_be_deeper_than_the_model() -> None:
    shallow, growths = built(completep(32, 2, base_depth=4))
    assert growths[shallow.blocks[1].network_input.weight].depth == 0.5
    assert growths[shallow.norm.weight] == TensorGrowth()


def test_a_deeper_base_that_does_not_say_what_writes_to_the_stream_is_refused() -> None:
    data = completep(32, 4)
    workload = LanguageWorkload(data)
    model, base = workload.build_model(TrainingSettings()), workload.base_model(TrainingSettings())
    assert base is not None
    for named in ((), ("attention_outputs",)):
        with pytest.raises(
            WorkloadError,
            match=r"blocks has 4 blocks and 2 at the base, so what each adds to the stream is divided by 2, but "
            r"residual_outputs .* names no module in 4 of them; name the layers .* attention_output",
        ):
            maximal_update_(model, base, workload.initialization, named)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"parametrization": "completep"}, "'completep' needs base_width.* but got None"),
        ({"parametrization": "completep", "base_width": 32}, "needs base_depth, .* but got None"),
        (
            {"parametrization": "completep", "base_width": 32, "base_depth": 0},
            "a whole number of at least 1, but got 0",
        ),
        ({"base_depth": 2}, "base_depth is an option of parametrization 'completep'"),
    ],
)
def test_options_of_completep_that_contradict_each_other(option: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_workload("language", {**TEXT, **option})


def test_a_network_whose_depth_does_not_grow_knows_no_completep() -> None:
    with pytest.raises(
        DataError, match=r"but the depth of workload 'resnet' .* use parametrization: mup"
    ):
        load_workload(
            "resnet", {"source": "digits", "parametrization": "completep", "base_width": 8}
        )


@pytest.mark.parametrize("optimizer", OPTIMIZERS.built_in)
def test_completep_refuses_the_optimizers_that_mup_refuses(optimizer: str) -> None:
    growth, given = TensorGrowth(depth=4.0), {"weight_decay": 0.0, "adapted": False}
    if OPTIMIZERS[optimizer].update_size is None:
        with pytest.raises(
            JobError, match=f"'completep' need an optimizer .* but got '{optimizer}'"
        ):
            growth.multipliers(optimizer, **given)
        with pytest.raises(JobError):
            TensorGrowth(fan_out=2.0).multipliers(optimizer, **given)
    else:
        growth.multipliers(optimizer, **given)
