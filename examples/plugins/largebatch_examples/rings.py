"""Classify generated points by which of two rings they lie on, with a two-layer network."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from sklearn.datasets import make_circles
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from search_spaces.settings import TrainingSettings
from trainers.errors import DataError
from trainers.workloads import Batch, Workload, check_options

POINTS = 1024


class Rings(Workload):
    """Points around rings of radius 1 and 0.5 with standard deviation ``noise``; half of them are for training."""

    metrics: ClassVar[Mapping[str, bool]] = {"accuracy": True, "loss": False}
    train_samples = evaluation_samples = POINTS // 2

    def __init__(self, data: Mapping[str, Any]) -> None:
        check_options(data, ("noise",))
        noise = data.get("noise", 0.1)
        if not isinstance(noise, int | float) or not 0 <= noise <= 1:
            raise DataError(f"noise must lie in [0, 1], but got {noise!r}")
        points, rings = make_circles(POINTS, noise=noise, factor=0.5, random_state=0)
        self.points, self.rings = torch.tensor(points, dtype=torch.float32), torch.tensor(rings)

    def build_model(self, settings: TrainingSettings) -> nn.Module:
        """Build a network with one hidden layer of 32 units."""
        return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Return points of the first half, without augmentation."""
        return self.points[indices], self.rings[indices]

    def loss(self, model: nn.Module, batch: Batch, settings: TrainingSettings) -> Tensor:
        """Return the mean cross entropy."""
        points, rings = batch
        return cross_entropy(model(points), rings)

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return points of the second half."""
        return self.points[indices + self.train_samples], self.rings[indices + self.train_samples]

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the accuracy and loss of each point."""
        points, rings = batch
        said = model(points)
        right = (said.argmax(1) == rings).float()
        return {"accuracy": right, "loss": cross_entropy(said, rings, reduction="none")}
