"""A custom workload: classify tumours as benign or malignant (569 samples, 30 measurements) with a small network."""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn import functional as F

from trainers.workloads import Workload


class Cells(Workload):
    metrics = {"accuracy": True, "loss": False}  # every score, and whether higher is better

    def __init__(self, data):  # the study's `data` section
        inputs, classes = load_breast_cancer(return_X_y=True)
        inputs = (inputs - inputs.mean(0)) / inputs.std(0)
        self.inputs, self.classes = torch.tensor(inputs, dtype=torch.float32), torch.tensor(classes)
        held_out = torch.arange(len(classes)) % 4 == 0
        self.train, self.test = torch.where(~held_out)[0], torch.where(held_out)[0]
        self.train_samples, self.evaluation_samples = len(self.train), len(self.test)

    def build_model(self, settings):
        return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_batch(self, indices, epochs, seed):
        return self.inputs[self.train[indices]], self.classes[self.train[indices]]

    def evaluation_batch(self, indices):
        return self.inputs[self.test[indices]], self.classes[self.test[indices]]

    def loss(self, model, batch, settings):
        return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=settings.label_smoothing)

    def score(self, model, batch):
        answers = model(batch[0])
        return {
            "accuracy": answers.argmax(1) == batch[1],
            "loss": F.cross_entropy(answers, batch[1], reduction="none"),
        }
