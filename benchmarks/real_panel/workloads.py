"""The workloads of the panel: small networks whose sweeps take minutes on one core, in a single process.

The runs are real, trained by the project's own loop. ``simulated`` makes a sweep train them one after the other in its
own process, as actors would cost more than they save.
"""

from __future__ import annotations

import pydoc_data.topics
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.own_workload.cells import Cells as OwnCells
from search_spaces.names import did_you_mean
from search_spaces.settings import TrainingSettings
from trainers.errors import DataError
from trainers.numerics.normalization import GhostBatchNorm
from trainers.workloads import Batch, Workload
from trainers.workloads.resnet.task import ResNetWorkload
from trainers.workloads.segmentation.task import SegmentationWorkload

NETWORKS = ("resnet", "normalized", "plain", "dense")
CHANNELS = (8, 16, 32)
"""Output channels of the three convolutions of the small networks."""


class Images(ResNetWorkload):
    """Images with the data options of the workload ``resnet``, and ``network``.

    ``resnet`` is the workload's own network; ``normalized`` and ``plain`` are three 3x3 convolutions with and without
    batch normalization, global average pooling, and a linear layer; ``dense`` is two convolutions and two linear layers
    without normalization. For ``dense``, the largest stable rate at the start depends most on the warmup.
    """

    simulated: ClassVar[bool] = True

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.network = data.get("network", "resnet")
        if self.network not in NETWORKS:
            raise DataError(
                f"there is no network {self.network!r}{did_you_mean(str(self.network), NETWORKS)}"
            )
        super().__init__({name: value for name, value in data.items() if name != "network"})

    def build_model(self, settings: TrainingSettings) -> nn.Module:
        """Return the network that the data option names."""
        if self.network == "resnet":
            return super().build_model(settings)
        if self.network == "dense":
            return dense_network(self.images.channels, self.images.size, self.images.classes)
        group = settings.normalization_batch_size if self.network == "normalized" else None
        return convolutional_network(
            self.images.channels, self.images.size, self.images.classes, group
        )


class Cells(OwnCells):
    """The project's example of a custom workload: a perceptron on 30 measurements of 569 tumours."""

    simulated: ClassVar[bool] = True


class Climate(SegmentationWorkload):
    """Segmentation of generated climate fields, with the data options of the workload ``segmentation``."""

    simulated: ClassVar[bool] = True


class Text(Workload):
    """Next-character prediction on English text: the help pages on the Python language, which every Python includes.

    The model is a pre-norm transformer (arXiv:2002.04745) of one block with 32 features and two heads. A sample is a
    window of 16 characters, each of which is predicted from those before it.
    """

    metrics: ClassVar[Mapping[str, bool]] = {"accuracy": True, "loss": False}
    simulated: ClassVar[bool] = True
    characters, window, features = 40, 16, 32

    def __init__(self, data: Mapping[str, Any]) -> None:
        text = "".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
        text = " ".join(text.lower().split())
        known = [each for each, _ in Counter(text).most_common(self.characters - 1)]
        codes = torch.tensor([known.index(each) if each in known else len(known) for each in text])
        windows = codes[: len(codes) // (self.window + 1) * (self.window + 1)]
        windows = windows.view(-1, self.window + 1)
        self.train_samples, self.evaluation_samples = int(data["samples"]), 500
        order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
        self.train = windows[order[: self.train_samples]]
        self.test = windows[order[-self.evaluation_samples :]]

    def build_model(self, settings: TrainingSettings) -> nn.Module:  # noqa: ARG002
        """Return a model with output ``(n, window, characters)``."""
        return Transformer(self.characters, self.window, self.features)

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:  # noqa: ARG002
        """Return character codes ``(n, window)``, and the codes of the characters that follow."""
        return self.train[indices, :-1], self.train[indices, 1:]

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return the same as :meth:`training_batch` for held-out windows."""
        return self.test[indices, :-1], self.test[indices, 1:]

    def loss(self, model: nn.Module, batch: Batch, settings: TrainingSettings) -> Tensor:  # noqa: ARG002
        """Return the mean cross entropy per character in nats."""
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    def score(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Return the share of correctly predicted characters and mean cross entropy in nats, ``(n,)`` each."""
        answers = model(batch[0])
        losses = functional.cross_entropy(answers.transpose(1, 2), batch[1], reduction="none")
        return {
            "accuracy": (answers.argmax(2) == batch[1]).float().mean(1),
            "loss": losses.mean(1),
        }


class Transformer(nn.Module):
    """A transformer block, normalized before attention and perceptron, for ``(n, window)`` codes of characters."""

    def __init__(self, characters: int, window: int, features: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.characters = nn.Embedding(characters, features)
        self.places = nn.Parameter(0.02 * torch.randn(window, features))
        self.before_attention, self.before_perceptron = (
            nn.LayerNorm(features),
            nn.LayerNorm(features),
        )
        self.attention = nn.Linear(features, 3 * features)
        self.mixed = nn.Linear(features, features)
        self.perceptron = nn.Sequential(
            nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features)
        )
        self.answer = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, characters))

    def forward(self, codes: Tensor) -> Tensor:
        """Return logits ``(n, window, characters)`` of the next character at each position."""
        features = self.characters(codes) + self.places
        count, window, width = features.shape
        parts = self.attention(self.before_attention(features)).chunk(3, dim=2)
        queries, keys, values = (
            part.view(count, window, self.heads, -1).transpose(1, 2) for part in parts
        )
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        features = features + self.mixed(mixed.transpose(1, 2).reshape(count, window, width))
        return self.answer(features + self.perceptron(self.before_perceptron(features)))


def convolutional_network(
    channels: int, size: int, classes: int, group_size: int | None
) -> nn.Sequential:
    """Return three convolutions for images ``(n, channels, size, size)``; output ``(n, classes)``.

    With ``group_size``, each is followed by batch normalization over that many samples; without it, each has a bias.
    Weights are initialized as by He et al. (arXiv:1502.01852), biases with 0. For images of more than 8 pixels a side,
    the first convolution also has a stride of 2.
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
    """Return two convolutions of stride 2 and two linear layers, unnormalized, for ``(n, channels, size, size)``.

    The output is ``(n, classes)``. ``size`` must be a multiple of 4. Weights are as in :func:`convolutional_network`.
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
