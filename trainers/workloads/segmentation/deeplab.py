"""DeepLabv3+ (Chen et al., arXiv:1802.02611) with the full-resolution decoder of Kurth et al. (arXiv:1810.01993).

The layers are as in the code that Kurth et al. released (azrael417/ClimDeepLearn, deeplab_model.py, decoder
"deconv1x"):

    encoder     ResNet-v2-50, output stride 8: the last unit of the first block has the stride, the third and
                fourth block have rates 2 and 4
    ASPP        1x1, 3x3 at rates 12, 24, 36, and the mean over all positions; 256 features each, then 1x1 to 256
    decoder     transposed 3x3 to 1/4 of the grid, beside 48 features of the encoder; 3x3, 3x3 to 256
                transposed 3x3 to 1/2, transposed 3x3 to the full grid
                beside the input after 3x3 to 64 and 3x3 to 128; 3x3, 3x3 to 256; 1x1 to the classes

The number of floating-point operations per sample matches the count in Kurth et al. (see the tests). The released code
differs in two ways: it has no normalization or activation after the convolutions on the full grid, which makes them one
linear map, and its convergence runs had all batch norm switched off. Here every convolution except the transposed ones
has both. The mean over all positions is not normalized, because a group's statistics would rest on one value per
sample.

The small network has one unit per block, half the depth in the pyramid and the decoder, and rates 1, 2 and 3, which are
12, 24 and 36 scaled from a grid of 768 rows to one of 64. All widths are multiples of ``width``, the number of features
of the stem (64 in the paper).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.numerics.normalization import norm_relu
from trainers.workloads.segmentation.blocks import (
    ConvNormReLU,
    Norm,
    Upsample,
    initialize_he_normal,
    initialize_he_uniform,
    network_memory_format,
)

EXPANSION = 4

UNITS = {"deeplabv3plus": (3, 4, 6, 3), "deeplabv3plus_small": (1, 1, 1, 1)}
"""The number of units in each block of the encoder."""

RATES = {"deeplabv3plus": (12, 24, 36), "deeplabv3plus_small": (1, 2, 3)}
"""The dilation rates of the pyramid's 3x3 convolutions."""

DEPTHS = {"deeplabv3plus": 4, "deeplabv3plus_small": 2}
"""The number of features of the pyramid and the decoder, as a multiple of the width."""


class DeepLab(nn.Module):
    """DeepLabv3+, which scores the classes of each pixel on a grid of any size; ``width`` must be a multiple of 4."""

    def __init__(self, name: str, channels: int, classes: int, width: int, norm: Norm) -> None:
        super().__init__()
        depth, low = DEPTHS[name] * width, width * 3 // 4
        self.encoder = DeepLabEncoder(channels, width, UNITS[name], norm)
        self.pyramid = AtrousPyramid(self.encoder.features, depth, RATES[name], norm)
        self.low_level = ConvNormReLU(width, low, 1, norm)
        self.to_quarter, self.to_half, self.to_full = (
            Upsample(depth),
            Upsample(depth),
            Upsample(depth),
        )
        self.at_quarter = nn.Sequential(
            ConvNormReLU(depth + low, depth, 3, norm), ConvNormReLU(depth, depth, 3, norm)
        )
        self.skip = nn.Sequential(
            ConvNormReLU(channels, width, 3, norm), ConvNormReLU(width, 2 * width, 3, norm)
        )
        self.at_full = nn.Sequential(
            ConvNormReLU(depth + 2 * width, depth, 3, norm), ConvNormReLU(depth, depth, 3, norm)
        )
        self.classifier = nn.Conv2d(depth, classes, 1)
        initialize_he_normal(self)
        for module in (self.to_quarter, self.to_half, self.to_full, self.skip, self.at_full):
            initialize_he_uniform(module)

    def forward(self, fields: Tensor) -> Tensor:
        """Return scores ``(n, classes, height, width)`` for fields ``(n, channels, height, width)``."""
        fields = fields.contiguous(memory_format=network_memory_format(fields.device.type))
        half, low, features = self.encoder(fields)
        x = self.to_quarter(self.pyramid(features), low)
        x = self.at_quarter(torch.cat((x, self.low_level(low)), 1))
        x = self.to_full(self.to_half(x, half), fields)
        scores: Tensor = self.classifier(self.at_full(torch.cat((x, self.skip(fields)), 1)))
        return scores


class DeepLabEncoder(nn.Module):
    """ResNet-v2 (He et al., arXiv:1603.05027) with output stride 8 instead of 32."""

    def __init__(self, channels: int, width: int, units: tuple[int, ...], norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 7, stride=2, padding=3)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        blocks: list[nn.ModuleList] = []
        inputs = width
        for block, (count, rate) in enumerate(zip(units, (1, 1, 2, 4), strict=True)):
            members = nn.ModuleList()
            for index in range(count):
                stride = 2 if block == 0 and index == count - 1 else 1
                members.append(DeepLabUnit(inputs, width << block, stride, rate, norm))
                inputs = EXPANSION * (width << block)
            blocks.append(members)
        self.blocks = nn.ModuleList(blocks)
        self.features = inputs

    def forward(self, fields: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return features on 1/2, 1/4 (``width`` of them, inside the first block's last unit) and 1/8 of the grid."""
        half = self.stem(fields)
        x, quarter = self.pool(half), half
        for block, members in enumerate(self.blocks):
            for unit in members:  # type: ignore[attr-defined]
                x, narrow = unit(x)
            if block == 0:
                quarter = narrow
        return half, quarter, x


class DeepLabUnit(nn.Module):
    """A bottleneck unit that normalizes first (ResNet-v2): 1x1, 3x3 with stride and rate, 1x1."""

    def __init__(self, inputs: int, width: int, stride: int, rate: int, norm: Norm) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.norm = norm(inputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else None
        self.first = ConvNormReLU(inputs, width, 1, norm)
        self.middle = ConvNormReLU(width, width, 3, norm, stride=stride, rate=rate)
        self.last = nn.Conv2d(width, outputs, 1)
        self.stride = stride

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unit's output, at 1 / stride of the grid, and its ``width`` features before the stride."""
        y = norm_relu(self.norm, x)
        kept = (
            x[:, :, :: self.stride, :: self.stride] if self.shortcut is None else self.shortcut(y)
        )
        narrow = self.first(y)
        return kept + self.last(self.middle(narrow)), narrow


class AtrousPyramid(nn.Module):
    """Atrous spatial pyramid pooling (Chen et al., arXiv:1706.05587, section 3.3)."""

    def __init__(self, inputs: int, depth: int, rates: tuple[int, ...], norm: Norm) -> None:
        super().__init__()
        self.branches = nn.ModuleList([ConvNormReLU(inputs, depth, 1, norm)])
        self.branches.extend(ConvNormReLU(inputs, depth, 3, norm, rate=rate) for rate in rates)
        self.everywhere = nn.Conv2d(inputs, depth, 1)
        self.merged = ConvNormReLU((len(rates) + 2) * depth, depth, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return features ``(n, depth, height, width)``."""
        everywhere = F.relu(self.everywhere(x.mean((2, 3), keepdim=True))).expand(
            -1, -1, *x.shape[2:]
        )
        merged: Tensor = self.merged(
            torch.cat([*(branch(x) for branch in self.branches), everywhere], 1)
        )
        return merged
