"""A workload whose samples take a known time, for code that times trainings."""

import time

import torch
from torch import nn

from trainers.workloads import Workload


class Paced(Workload):
    metrics = {"loss": False}

    def __init__(self, data):
        self.training_seconds, self.evaluation_seconds = (
            data["training_seconds"],
            data["evaluation_seconds"],
        )
        self.train_samples, self.evaluation_samples = 4000, 1000

    def build_model(self, settings):
        return nn.Linear(1, 1)

    def training_batch(self, indices, epochs, seed):
        time.sleep(self.training_seconds * len(indices))
        return torch.ones(len(indices), 1), torch.ones(len(indices), 1)

    def evaluation_batch(self, indices):
        time.sleep(self.evaluation_seconds * len(indices))
        return torch.ones(len(indices), 1), torch.ones(len(indices), 1)

    def loss(self, model, batch, settings):
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    def score(self, model, batch):
        return {"loss": ((model(batch[0]) - batch[1]) ** 2).flatten()}
