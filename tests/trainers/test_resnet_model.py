import pytest
import torch
from torch import nn

from trainers.numerics.normalization import ghost_batch_norms
from trainers.workloads.resnet.model import Bottleneck, build_resnet


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_resnet50_has_the_published_size_and_goyals_initialization():
    model = build_resnet("resnet50", 3, 1000, 64, 32)
    assert count(model) == 25_557_032
    blocks = [module for module in model.modules() if isinstance(module, Bottleneck)]
    assert [block.middle.stride for block in blocks].count((2, 2)) == 3
    assert all(block.first.stride == (1, 1) for block in blocks)
    assert all(not block.last_norm.weight.any() for block in blocks)
    assert sum(not norm.weight.any() for norm in ghost_batch_norms(model)) == len(blocks) == 16
    assert model.classifier.weight.std().item() == pytest.approx(0.01, rel=0.01)
    assert not model.classifier.bias.any()
    wide = blocks[5].middle.weight
    assert wide.std().item() == pytest.approx((2 / (wide.shape[0] * 9)) ** 0.5, rel=0.02)


@pytest.mark.parametrize(
    ("name", "published"), [("resnet20", 269_722), ("resnet32", 464_154), ("resnet56", 853_018)]
)
def test_the_cifar_family_has_the_published_sizes(name, published):
    assert count(build_resnet(name, 3, 10, 16, 16)) == published


@pytest.mark.parametrize(("name", "layers"), [("resnet8", 8), ("resnet20", 20), ("resnet50", 50)])
def test_names_count_the_layers(name, layers):
    model = build_resnet(name, 3, 10, 8, 4)
    shortcuts = {
        id(module)
        for block in model.modules()
        if isinstance(block, Bottleneck)
        for module in block.shortcut.modules()
    }
    weighted = [
        module
        for module in model.modules()
        if isinstance(module, (nn.Conv2d, nn.Linear)) and id(module) not in shortcuts
    ]
    assert len(weighted) == layers


@pytest.mark.parametrize(
    ("name", "channels", "size"), [("resnet8", 1, 8), ("resnet20", 3, 32), ("resnet50", 3, 64)]
)
def test_scores_have_one_column_per_class_and_every_parameter_learns(name, channels, size):
    model = build_resnet(name, channels, 7, 8, 4)
    scores = model(torch.randn(8, channels, size, size, generator=torch.Generator().manual_seed(0)))
    assert scores.shape == (8, 7)
    scores.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
