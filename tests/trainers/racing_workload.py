"""A linear regression whose replicas can be told apart: each takes a number from a folder, and 0 may be slow.

Every batch that a replica loads is one line in the folder's ``<number>.log``: epoch and indices of its samples.
"""

import os
import time
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from trainers.workloads import Workload


class Racing(Workload):
    metrics: ClassVar = {"loss": False}
    train_samples, evaluation_samples = 96, 32

    def __init__(self, data):
        self.folder, self.delay = Path(data["folder"]), data.get("delay", 0.0)
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(128, 4, generator=generator)
        self.outputs = self.inputs @ torch.tensor([1.0, -2.0, 3.0, 0.5])
        self.number = None

    def build_model(self, settings):
        return nn.Linear(4, 1)

    def training_batch(self, indices, epochs, seed):
        if self.number is None:
            self.number = self._take_number()
        with (self.folder / f"{self.number}.log").open("a") as log:
            log.write(
                " ".join(f"{epoch}:{index}" for epoch, index in zip(epochs, indices, strict=True))
                + "\n"
            )
        if self.number == 0:
            time.sleep(self.delay)
        return self.inputs[indices], self.outputs[indices]

    def _take_number(self):
        number = 0
        while True:
            try:
                os.close(os.open(self.folder / f"{number}.log", os.O_CREAT | os.O_EXCL))
                return number
            except FileExistsError:
                number += 1

    def loss(self, model, batch, settings):
        return (model(batch[0]).flatten() - batch[1]).square().mean()

    def evaluation_batch(self, indices):
        return self.inputs[96 + indices], self.outputs[96 + indices]

    def score(self, model, batch):
        return {"loss": (model(batch[0]).flatten() - batch[1]).square()}
