"""A small network on the digits in double precision, for comparing trainings that sum in a different order."""

import torch
from torch import nn

from tests.trainers.double_digits import DoubleDigits
from trainers.numerics.normalization import GhostBatchNorm


class Small(DoubleDigits):
    """A network with all parameters that are treated specially: convolutions, ghost batch norms, biases, a constant."""

    def build_model(self, settings):
        size, momentum = settings.normalization_batch_size, settings.normalization_momentum
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False),
            GhostBatchNorm(4, size, momentum=momentum),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
            GhostBatchNorm(6, size, momentum=momentum),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24, 24),
            nn.PReLU(),
            nn.Linear(24, 10),
        ).to(memory_format=torch.channels_last)
        model[7].weight.requires_grad_(False)
        return model.double()


class InOneProcess(Small):
    """A sweep trains it in its own process, one trial after the other."""

    simulated = True
