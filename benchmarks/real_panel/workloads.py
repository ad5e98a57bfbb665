"""What the panel trains: small networks whose sweeps need minutes of one core, and no other process.

The trainings are real ones, by the project's own loop. ``simulated`` says that a sweep trains them one after the other
in its own process, where actors would cost more than they save.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from examples.own_workload.cells import Cells as OwnCells
from search_spaces.names import nearest
from search_spaces.settings import TrainingSettings
from trainers.errors import DataError
from trainers.numerics.normalization import GhostBatchNorm
from trainers.workloads.resnet.task import ResNetWorkload
from trainers.workloads.segmentation.task import SegmentationWorkload

NETWORKS = ("resnet", "normalized", "plain", "dense")
CHANNELS = (8, 16, 32)
"""Output channels of the three convolutions of the small networks."""


class Images(ResNetWorkload):
    """Images with the data options of the workload ``resnet``, and ``network``.

    ``resnet`` is that of the workload; ``normalized`` and ``plain`` are three 3x3 convolutions with and without batch
    normalization, the mean over all places, and a linear layer; ``dense`` is two convolutions and two linear layers
    without normalization. How large a rate the start of a training bears depends on the warmup most in the last.
    """

    simulated: ClassVar[bool] = True

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.network = data.get("network", "resnet")
        if self.network not in NETWORKS:
            raise DataError(
                f"there is no network {self.network!r}{nearest(str(self.network), NETWORKS)}"
            )
        super().__init__({name: value for name, value in data.items() if name != "network"})

    def build_model(self, settings: TrainingSettings) -> nn.Module:
        """The network that the data option names."""
        if self.network == "resnet":
            return super().build_model(settings)
        if self.network == "dense":
            return dense_network(self.images.channels, self.images.size, self.images.classes)
        group = settings.normalization_batch_size if self.network == "normalized" else None
        return convolutional_network(
            self.images.channels, self.images.size, self.images.classes, group
        )


class Cells(OwnCells):
    """The project's example of a workload of one's own: a perceptron on 30 measurements of 569 tumours."""

    simulated: ClassVar[bool] = True


class Climate(SegmentationWorkload):
    """Segmentation of generated climate fields, with the data options of the workload ``segmentation``."""

    simulated: ClassVar[bool] = True


def convolutional_network(
    channels: int, size: int, classes: int, group_size: int | None
) -> nn.Sequential:
    """Three convolutions for images ``(n, channels, size, size)``; output ``(n, classes)``.

    With ``group_size`` each is followed by batch normalization over so many samples; without, each has a bias. Weights
    are drawn as He et al. do (arXiv:1502.01852), biases start at 0. Images of more than 8 pixels a side are reduced by
    a stride of 2 in the first convolution, too.
    """
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise((channels, *CHANNELS))):
        stride = 2 if number > 0 or size > 8 else 1
        layers.append(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=group_size is None))
        if group_size is not None:
            layers.append(GhostBatchNorm(outputs, group_size))
        layers.append(nn.ReLU(inplace=True))
    network = nn.Sequential(*layers, _MeanOverPlaces(), nn.Linear(CHANNELS[-1], classes))
    _initialize_as_he(network, nn.Conv2d)
    return network.to(memory_format=torch.channels_last)


def dense_network(channels: int, size: int, classes: int) -> nn.Sequential:
    """Two convolutions of stride 2 and two linear layers for images ``(n, channels, size, size)``; no normalization.

    Output ``(n, classes)``. ``size`` must be a multiple of 4. Initialized as :func:`convolutional_network`.
    """
    network = nn.Sequential(
        nn.Conv2d(channels, 16, 3, 2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * size * size, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
    _initialize_as_he(network, nn.Conv2d, nn.Linear)
    return network


def _initialize_as_he(network: nn.Module, *kinds: type[nn.Module]) -> None:
    for module in network.modules():
        if isinstance(module, kinds):
            assert isinstance(module, nn.Conv2d | nn.Linear)
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class _MeanOverPlaces(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))
