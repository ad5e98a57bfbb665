"""Building blocks of both networks: convolutions with normalization, and upsampling to a finer grid."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainers.numerics.normalization import norm_relu

Norm = Callable[[int], nn.Module]
"""A function that creates a normalization layer for a given number of features."""


def network_memory_format(device: str) -> torch.memory_format:
    """Return the memory layout of the networks' tensors on a device ("cpu" or "cuda").

    Tensor cores need ``channels_last``, which also speeds up normalization over small groups on a CPU. On a CPU with
    AVX2 but without AVX-512, the contiguous layout is used: with ``channels_last``, oneDNN 3.12 writes beyond the
    gradient of 1x1 convolutions whose number of channels is not a multiple of 8, such as the classifier
    (``jit_avx2_1x1_convolution_bwd_weights_t``), and the process aborts or continues with corrupted values.
    """
    damaged = device == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"
    return torch.contiguous_format if damaged else torch.channels_last


class ConvNormReLU(nn.Module):
    """Convolution without bias, normalization, ReLU; only ``stride`` shrinks the grid (padding "same")."""

    def __init__(
        self, inputs: int, outputs: int, size: int, norm: Norm, *, stride: int = 1, rate: int = 1
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(
            inputs, outputs, size, stride, padding=rate * (size // 2), dilation=rate, bias=False
        )
        self.norm = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return features ``(n, outputs, ceil(height / stride), ceil(width / stride))``."""
        return norm_relu(self.norm, self.convolution(x))


class Upsample(nn.Module):
    """A transposed 3x3 convolution with stride 2, without activation, as in the two networks of Kurth et al."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.convolution = nn.ConvTranspose2d(features, features, 3, stride=2, padding=1)

    def forward(self, x: Tensor, finer: Tensor) -> Tensor:
        """Return the features on the grid of ``finer``, which has twice as many rows and columns, or one fewer."""
        result: Tensor = self.convolution(x, output_size=finer.shape[2:])
        return result


def initialize_he_uniform(module: nn.Module) -> None:
    """Initialize all convolutions with He's uniform rule over the fan-in (he_uniform in Keras) and zero biases."""
    for each in module.modules():
        if isinstance(each, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.kaiming_uniform_(each.weight, nonlinearity="relu")
            if each.bias is not None:
                nn.init.zeros_(each.bias)


def initialize_he_normal(module: nn.Module) -> None:
    """Initialize all convolutions with He's normal rule over the fan-in and zero biases."""
    for each in module.modules():
        if isinstance(each, nn.Conv2d):
            nn.init.kaiming_normal_(each.weight, nonlinearity="relu")
            if each.bias is not None:
                nn.init.zeros_(each.bias)
