import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainers.numerics.normalization import GhostBatchNorm
from trainers.workloads.segmentation.blocks import network_memory_format
from trainers.workloads.segmentation.deeplab import DeepLab, DeepLabEncoder
from trainers.workloads.segmentation.tiramisu import Tiramisu

NETWORKS = {
    "deeplabv3plus": DeepLab,
    "deeplabv3plus_small": DeepLab,
    "tiramisu": Tiramisu,
    "tiramisu_small": Tiramisu,
}


def norm(features):
    return GhostBatchNorm(features, 2)


def network(name, width=4, **options):
    torch.manual_seed(0)
    return NETWORKS[name](name, 16, 3, width, norm, **options)


def fields(samples, *grid):
    return torch.randn(samples, 16, *grid, generator=torch.Generator().manual_seed(1))


def forward_flops(name, width):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        scores = NETWORKS[name](name, 16, 3, width, norm).eval()(torch.empty(1, 16, 768, 1152))
    assert scores.shape == (1, 3, 768, 1152)
    return counter.get_total_flops()


def test_tiramisu_costs_what_kurth_et_al_counted():
    """4.188 TF per training sample of 768x1152x16 (arXiv:1810.01993, table 1), the forward pass being a third."""
    assert 3 * forward_flops("tiramisu", 32) == pytest.approx(4.188e12, rel=1e-3)


@pytest.mark.medium
def test_deeplab_costs_what_kurth_et_al_counted():
    """14.41 TF per training sample (table 1).

    TensorFlow cut the padded input of a dilated convolution into small grids, and all of it was counted; the
    convolutions themselves come to 13.02 TF.
    """
    with torch.device("meta"):
        model = network("deeplabv3plus", 64)
    padding = 0
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.dilation != (1, 1):
            rate = module.dilation[0]
            cells = math.prod(
                math.ceil((size + 2 * rate) / rate) * rate for size in (768 // 8, 1152 // 8)
            )
            padding += 2 * module.weight.numel() * (cells - 96 * 144)
    assert 3 * (forward_flops("deeplabv3plus", 64) + padding) == pytest.approx(14.41e12, rel=1e-3)


def test_the_encoder_has_the_size_of_resnet50_v2():
    """Keras' ResNet50V2 without its top has 23,519,360 weights, 4,096 of them in a normalization left out here."""
    with torch.device("meta"):
        encoder = DeepLabEncoder(3, 64, (3, 4, 6, 3), norm)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 23_519_360 - 4_096


def test_the_encoder_stops_shrinking_at_an_eighth_and_dilates_instead():
    model = network("deeplabv3plus")
    half, quarter, eighth = model.encoder(fields(2, 48, 72))
    assert [tuple(each.shape) for each in (half, quarter, eighth)] == [
        (2, 4, 24, 36),
        (2, 4, 12, 18),
        (2, 128, 6, 9),
    ]
    dilations = [
        {unit.middle.convolution.dilation for unit in block} for block in model.encoder.blocks
    ]
    assert dilations == [{(1, 1)}, {(1, 1)}, {(2, 2)}, {(4, 4)}]
    rates = [branch.convolution.dilation[0] for branch in model.pyramid.branches]
    assert rates == [1, 12, 24, 36]


def test_tiramisu_has_kurths_filters_and_growth():
    convolutions = [
        module for module in network("tiramisu", 32).modules() if isinstance(module, nn.Conv2d)
    ]
    wide = [each for each in convolutions if each.kernel_size == (5, 5)]
    assert [each.out_channels for each in wide] == [64] + [32] * (2 + 2 + 2 + 4 + 5 + 4 + 2 + 2 + 2)
    # 64 at first, then 32 more for each layer on the way down
    assert [each.in_channels for each in convolutions if each.stride == (2, 2)] == [
        128,
        192,
        256,
        384,
    ]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("grid", [(32, 48), (19, 31)])
def test_every_pixel_gets_scores_and_every_parameter_learns(name, grid):
    model = network(name)
    scores = model(fields(2, *grid))
    assert scores.shape == (2, 3, *grid)
    (
        scores * torch.randn(scores.shape, generator=torch.Generator().manual_seed(2))
    ).sum().backward()
    idle = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    assert idle == []


@pytest.mark.parametrize("name", ["deeplabv3plus_small", "tiramisu_small"])
@pytest.mark.parametrize("grid", [(2, 2), (3, 5), (9, 16), (16, 17)])
def test_small_networks_take_any_grid(name, grid):
    assert network(name)(fields(2, *grid)).shape == (2, 3, *grid)


@pytest.mark.parametrize("name", ["deeplabv3plus_small", "tiramisu_small"])
def test_gradients_do_not_depend_on_the_micro_batch(name):
    whole, parts = network(name).double(), network(name).double()
    data, weights = (
        fields(8, 9, 12).double(),
        torch.linspace(-1, 2, 8 * 3 * 9 * 12).view(8, 3, 9, 12).double().sin(),
    )
    (whole(data) * weights).sum().backward()
    for chunk, weight in zip(data.split(4), weights.split(4), strict=True):
        (parts(chunk) * weight).sum().backward()
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-8, atol=1e-8)


def test_convolutions_of_tiramisu_start_he_uniform():
    wide = max(
        (module for module in network("tiramisu", 32).modules() if isinstance(module, nn.Conv2d)),
        key=lambda module: module.weight.numel(),
    )
    limit = (6 / (wide.in_channels * 25)) ** 0.5
    assert wide.weight.abs().max().item() == pytest.approx(limit, rel=0.01)
    assert wide.weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.02)


def test_dropout_drops_in_training_alone():
    model, data = network("tiramisu_small", dropout=0.2), fields(2, 8, 8)
    assert not torch.equal(model(data), model(data))
    model.eval()
    torch.testing.assert_close(model(data), model(data), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("device", "capability", "layout"),
    [
        ("cpu", "AVX2", torch.contiguous_format),
        ("cpu", "AVX512", torch.channels_last),
        ("cpu", "DEFAULT", torch.channels_last),
        ("cuda", "AVX2", torch.channels_last),
    ],
)
def test_the_layout_that_is_damaged_on_avx2_is_not_used_there(
    monkeypatch, device, capability, layout
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert network_memory_format(device) == layout
