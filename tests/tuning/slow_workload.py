"""A small training that takes some time and logs every batch that it trains, on Ray or in the sweep's process."""

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from trainers.workloads import Workload


class Slow(Workload):
    """Separates two clouds of points; a line `process epoch` in data["log"] for each batch."""

    metrics = {"accuracy": True, "loss": False}
    train_samples = 64
    evaluation_samples = 64

    def __init__(self, data):
        self.log, self.seconds = Path(data["log"]), data.get("seconds", 0.002)
        self.dies_after = data.get("dies_after")
        if data.get("dies_when_reused"):
            _die_when_reused(Path(data["dies_when_reused"]))
        points = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
        self.points, self.classes = points, (points.sum(1) > 0).long()

    def build_model(self, settings):
        return nn.Linear(4, 2)

    def training_batch(self, indices, epochs, seed):
        time.sleep(self.seconds)
        with self.log.open("a") as log:
            log.write(f"{os.getpid()} {int(epochs[0])}\n")
        if self.dies_after is not None and int(epochs[0]) >= self.dies_after:
            os._exit(9)
        return self.points[indices], self.classes[indices]

    def evaluation_batch(self, indices):
        return self.points[64 + indices], self.classes[64 + indices]

    def loss(self, model, batch, settings):
        return F.cross_entropy(model(batch[0]), batch[1])

    def score(self, model, batch):
        answers = model(batch[0])
        return {
            "accuracy": answers.argmax(1) == batch[1],
            "loss": F.cross_entropy(answers, batch[1], reduction="none"),
        }


class Here(Slow):
    """The same, trained in the sweep's own process as simulations are."""

    simulated = True


def _die_when_reused(died):
    """Let the actor that trains this die, as if its machine had, when it gets its next trial; only the first one."""
    from hpo.tuning.trainable import TrialTrainable

    reset = TrialTrainable.reset_config

    def dies(self, config):
        if died.exists():
            return reset(self, config)
        died.touch()
        os._exit(9)

    TrialTrainable.reset_config = dies
