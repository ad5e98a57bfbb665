"""A workload whose gradients are known: the loss |w - x|^2 / 2 of points x, whose gradient is w - x."""

import torch
from torch import nn

from trainers.workloads import Workload

DIMENSIONS = 8


class Points(Workload):
    metrics = {"loss": False}
    train_samples, evaluation_samples = 20_000, 1

    def __init__(self, data):
        generator = torch.Generator().manual_seed(3)
        scales = torch.linspace(0.5, 2.0, DIMENSIONS, dtype=torch.float64)
        self.points = (
            torch.randn(self.train_samples, DIMENSIONS, generator=generator, dtype=torch.float64)
            * scales
        )
        self.points += 0.5
        self.largest_micro_batch = data.get("largest_micro_batch", 1024)

    def build_model(self, settings):
        model = nn.Linear(DIMENSIONS, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        return model

    def training_batch(self, indices, epochs, seed):
        return (self.points[indices],)

    def loss(self, model, batch, settings):
        return (model.weight - batch[0]).square().sum(1).mean() / 2

    def evaluation_batch(self, indices):
        return (self.points[indices],)

    def score(self, model, batch):
        return {"loss": (model.weight - batch[0]).square().sum(1) / 2}
