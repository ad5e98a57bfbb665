"""Fields whose labels follow a known rule, for tests of the model that need no generator."""

import torch
import torch.nn.functional as F


class FakeSamples:
    """16 channels of smooth noise.

    A pixel is a cyclone where channel 7 is lowest within its 5x5 neighbourhood and far below the mean, and around
    there; a river where channel 0 is high. ``linear`` makes both a matter of one pixel.
    """

    channels, classes = 16, 3

    def __init__(self, train_samples=16, evaluation_samples=8, height=12, width=20, linear=False):
        self.train_samples, self.evaluation_samples = train_samples, evaluation_samples
        self.height, self.width = height, width
        self.largest_micro_batch, self.prefetched_batches = 8, 0
        generator = torch.Generator().manual_seed(3)
        noise = torch.randn(
            train_samples + evaluation_samples, 16, height, width, generator=generator
        )
        self.fields = F.avg_pool2d(F.pad(noise, (1, 1, 1, 1), mode="replicate"), 3, 1)
        self.labels = _linear_labels(self.fields) if linear else _labels(self.fields)

    @property
    def class_frequencies(self):
        labels = self.labels[: self.train_samples]
        return tuple(float((labels == label).float().mean()) for label in range(3))

    def use_device(self, device):
        pass

    def prepare(self, batch):
        return batch

    def training_batch(self, indices, epochs, seed):
        return self.fields[indices], self.labels[indices]

    def evaluation_batch(self, indices):
        return self.training_batch(indices + self.train_samples, None, 0)


def _labels(fields):
    pressure = fields[:, 7:8]
    lowest = (-F.max_pool2d(-pressure, 5, 1, 2) == pressure) & (pressure < -0.6)
    around = F.max_pool2d(lowest.float(), 3, 1, 1)[:, 0] > 0
    return torch.where(around, 1, torch.where(fields[:, 0] > 0.5, 2, 0))


def _linear_labels(fields):
    return torch.where(fields[:, 7] < -0.6, 1, torch.where(fields[:, 0] + fields[:, 1] > 1.0, 2, 0))
