"""A classifier of points that trains in a second or two; one worker may die at a given batch, once.

Data: ``folder`` is where the dying worker leaves a file, ``deaths`` how many workers may die, ``dies_at`` the batch, by
a worker's own count, at which one dies, ``delay`` the seconds per batch.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from trainers.workloads import Workload


class Mortal(Workload):
    metrics: ClassVar = {"loss": False, "accuracy": True}
    train_samples, evaluation_samples = 256, 64

    def __init__(self, data):
        self.folder, self.deaths = Path(data.get("folder", ".")), data.get("deaths", 0)
        self.dies_at, self.delay = data.get("dies_at", 0), data.get("delay", 0.0)
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(320, 6, generator=generator)
        self.classes = (self.inputs @ torch.tensor([1.0, -2.0, 3.0, 0.5, 1.0, -1.0]) > 0).long()
        self.batches = 0

    def build_model(self, settings):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))

    def training_batch(self, indices, epochs, seed):
        self.batches += 1
        if self.delay:
            time.sleep(self.delay)
        if self.batches == self.dies_at:
            self._perhaps_die()
        return self.inputs[indices], self.classes[indices]

    def _perhaps_die(self):
        for number in range(self.deaths):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.folder / f"death-{number}", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)

    def loss(self, model, batch, settings):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluation_batch(self, indices):
        return self.inputs[256 + indices], self.classes[256 + indices]

    def score(self, model, batch):
        answer = model(batch[0])
        return {
            "loss": nn.functional.cross_entropy(answer, batch[1], reduction="none"),
            "accuracy": (answer.argmax(1) == batch[1]).float(),
        }

    def sample_images(self, model):
        return {"title": "points", "references": {"majority class": 0.55}}
