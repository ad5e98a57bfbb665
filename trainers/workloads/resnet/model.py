"""Residual networks: ResNet-50 v1.5 for large images, and the CIFAR family of He et al. for small images.

ResNet-50 follows Goyal et al. (arXiv:1706.02677, section 5.1): stride 2 in the 3x3 convolution of a block, He
initialization, zero gamma in the last normalization of each block, and N(0, 0.01) in the last layer. The small networks
follow He et al. (arXiv:1512.03385, section 4.2), with 6n+2 layers, three stages, and shortcuts without parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.numerics.normalization import GhostBatchNorm, GhostBatchNormReLU, norm_relu
from trainers.numerics.parametrization import InitialLaw

Norm = Callable[[int], GhostBatchNorm]

SMALL_NETWORKS = {
    "resnet8": 1,
    "resnet20": 3,
    "resnet32": 5,
    "resnet44": 7,
    "resnet56": 9,
    "resnet110": 18,
}
"""The number of blocks per stage, n, of each small network."""

NAMES = (*SMALL_NETWORKS, "resnet50")


def build_resnet(
    name: str,
    channels: int,
    classes: int,
    width: int,
    group_size: int,
    *,
    momentum: float = 0.9,
    zero_gamma: bool | None = None,
) -> nn.Module:
    """Build the network ``name`` for images with ``channels`` channels; ``width`` is the first stage's channel count.

    ``group_size`` is the normalization batch size, and ``momentum`` is the momentum of the running statistics.
    ``zero_gamma`` starts the last normalization of each block at zero; None means only in ResNet-50, not in the small
    networks. The input is ``(n, channels, height, width)``, and the output is ``(n, classes)``.
    """

    def norm(features: int) -> GhostBatchNorm:
        return GhostBatchNorm(features, group_size, momentum=momentum)

    if name == "resnet50":
        stem = [
            _convolution(channels, width, 7, 2),
            GhostBatchNormReLU(width, group_size, momentum=momentum),
            nn.Identity(),  # preserves the module indices and thus the names in checkpoints
            nn.MaxPool2d(3, 2, padding=1),
        ]
        blocks, features = (
            _stages(Bottleneck, width, (3, 4, 6, 3), norm),
            Bottleneck.expansion * width * 8,
        )
    else:
        stem = [
            _convolution(channels, width, 3),
            GhostBatchNormReLU(width, group_size, momentum=momentum),
            nn.Identity(),
        ]
        blocks, features = _stages(BasicBlock, width, (SMALL_NETWORKS[name],) * 3, norm), width * 4
    model = ResNet(nn.Sequential(*stem, *blocks), nn.Linear(features, classes))
    _initialize_convolutions(model)
    if name == "resnet50":
        _initialize_classifier_as_goyal(model)
    if name == "resnet50" if zero_gamma is None else zero_gamma:
        _initialize_blocks_as_identity(model)
    # normalization over small groups is a third faster in this layout, and tensor cores need it
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


class ResNet(nn.Module):
    """A residual network: convolutions, the mean over all positions, and a linear layer."""

    def __init__(self, convolutions: nn.Sequential, classifier: nn.Linear) -> None:
        super().__init__()
        self.convolutions = convolutions
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores ``(n, classes)`` for images ``(n, channels, height, width)``."""
        # permutations give channels_last and, unlike contiguous(memory_format=...), work in torch.func.vmap
        images = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        features = self.convolutions(images)
        scores: Tensor = self.classifier(features.mean((2, 3)))
        return scores


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut that subsamples positions and zero-pads channels (He et al., option A)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first, self.first_norm = _convolution(inputs, width, 3, stride), norm(width)
        self.last, self.last_norm = _convolution(width, width, 3), norm(width)
        self.stride, self.padding = stride, width - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, at 1 / stride of the input size."""
        y = norm_relu(self.first_norm, self.first(x))
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.padding:
            x = F.pad(x, (0, 0, 0, 0, 0, self.padding))
        return norm_relu(self.last_norm, self.last(y), x)


class Bottleneck(nn.Module):
    """A block of 1x1, 3x3 and 1x1 convolutions, with the stride in the 3x3 convolution (v1.5)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.first, self.first_norm = _convolution(inputs, width, 1), norm(width)
        self.middle, self.middle_norm = _convolution(width, width, 3, stride), norm(width)
        self.last, self.last_norm = _convolution(width, outputs, 1), norm(outputs)
        self.shortcut = (
            nn.Sequential(_convolution(inputs, outputs, 1, stride), norm(outputs))
            if stride > 1 or inputs != outputs
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, at 1 / stride of the input size."""
        y = norm_relu(self.first_norm, self.first(x))
        y = norm_relu(self.middle_norm, self.middle(y))
        return norm_relu(self.last_norm, self.last(y), self.shortcut(x))


def _stages(
    block: type[BasicBlock] | type[Bottleneck], width: int, stages: tuple[int, ...], norm: Norm
) -> list[nn.Module]:
    blocks: list[nn.Module] = []
    inputs = width
    for stage, count in enumerate(stages):
        for index in range(count):
            blocks.append(block(inputs, width << stage, 2 if stage > 0 and index == 0 else 1, norm))
            inputs = block.expansion * (width << stage)
    return blocks


def resnet_initialization(name: str) -> Mapping[str, InitialLaw]:
    """Return how the initial values of the network ``name`` scale with its width, by parameter name prefix."""
    if name == "resnet50":
        return {"convolutions": "fan_out", "classifier": "constant"}
    return {"convolutions": "fan_out"}


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def _initialize_convolutions(model: ResNet) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _initialize_blocks_as_identity(model: ResNet) -> None:
    for module in model.modules():
        if isinstance(module, (BasicBlock, Bottleneck)):
            nn.init.zeros_(module.last_norm.weight)


def _initialize_classifier_as_goyal(model: ResNet) -> None:
    nn.init.normal_(model.classifier.weight, std=0.01)
    nn.init.zeros_(model.classifier.bias)
