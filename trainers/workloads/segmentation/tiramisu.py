"""Tiramisu (FC-DenseNet, Jegou et al., arXiv:1611.09326) as modified by Kurth et al. (arXiv:1810.01993).

Kurth et al. double the growth rate to 32 and use 5x5 filters and dense blocks of 2, 2, 2, 4 and 5 layers, the last at
1/16 of the grid. The layers are as in their released code (azrael417/ClimDeepLearn, tiramisu_model.py):

    first           5x5 to 64
    down            dense block; 1x1 of stride 2 that keeps the number of features
    up              transposed 3x3 of the features that the block below added, concatenated with the features from the
                    down path; dense block
    last            1x1 to the classes

Each convolution except the transposed ones and the last is followed by normalization (the released code omits it by
default), ReLU and dropout; Jegou et al. put normalization and ReLU before it. The initialization is He uniform.

The small network has blocks of 2, 2 and 2 layers and 3x3 filters. ``width`` is the growth rate; the first
convolution has twice as many features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainers.workloads.segmentation.blocks import (
    ConvNormReLU,
    Norm,
    Upsample,
    initialize_he_uniform,
    network_memory_format,
)

LAYERS = {"tiramisu": (2, 2, 2, 4, 5), "tiramisu_small": (2, 2, 2)}
"""The number of layers in each dense block of the down path."""

FILTERS = {"tiramisu": 5, "tiramisu_small": 3}
"""The filter size (rows and columns) in the dense blocks."""


class Tiramisu(nn.Module):
    """Tiramisu: class scores for each pixel on a grid of any size; ``dropout`` is the share of features dropped."""

    def __init__(
        self, name: str, channels: int, classes: int, width: int, norm: Norm, dropout: float = 0.0
    ) -> None:
        super().__init__()
        layers, size = LAYERS[name], FILTERS[name]

        def layer(inputs: int, outputs: int, filter_size: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(
                ConvNormReLU(inputs, outputs, filter_size, norm, stride=stride), nn.Dropout(dropout)
            )

        def dense_block(inputs: int, count: int) -> DenseBlock:
            return DenseBlock(
                [layer(inputs + width * index, width, size) for index in range(count)]
            )

        features = 2 * width
        self.first = layer(channels, features, size)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        skipped = []
        for count in layers[:-1]:
            self.down.append(dense_block(features, count))
            features += width * count
            skipped.append(features)
            self.shrink.append(layer(features, features, 1, 2))
        self.bottom = dense_block(features, layers[-1])
        self.grow, self.up = nn.ModuleList(), nn.ModuleList()
        added = width * layers[-1]
        for count in reversed(layers[:-1]):
            self.grow.append(Upsample(added))
            self.up.append(dense_block(added + skipped[-1], count))
            features, added = added + skipped.pop() + width * count, width * count
        self.classifier = nn.Conv2d(features, classes, 1)
        initialize_he_uniform(self)

    def forward(self, fields: Tensor) -> Tensor:
        """Return scores ``(n, classes, height, width)`` for fields ``(n, channels, height, width)``."""
        x = self.first(fields.contiguous(memory_format=network_memory_format(fields.device.type)))
        skipped = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = torch.cat((x, block(x)), 1)
            skipped.append(x)
            x = shrink(x)
        added = self.bottom(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = torch.cat((grow(added, skipped[-1]), skipped.pop()), 1)
            added = block(x)
        scores: Tensor = self.classifier(torch.cat((x, added), 1))
        return scores


class DenseBlock(nn.Module):
    """A block of layers that each receive the block's input and the features of all its previous layers."""

    def __init__(self, layers: list[nn.Sequential]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features that the layers add, ``(n, growth rate * layers, height, width)``."""
        added: list[Tensor] = []
        for layer in self.layers:
            added.append(layer(torch.cat((x, *added), 1)))
        return torch.cat(added, 1)
