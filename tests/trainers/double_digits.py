"""The digits in double precision, for comparing trainings that sum in a different order.

In single precision a rounding error that moves one activation across zero changes a gradient at once: of twelve seeds,
a change of the initial weights by 4e-7 of their size moved the weights of seven trainings by 1e-4 to 0.2 within a
dozen updates.
"""

from itertools import pairwise

from torch import nn

from trainers.workloads.resnet.task import ResNetWorkload


class DoubleDigits(ResNetWorkload):
    def build_model(self, settings):
        return super().build_model(settings).double()

    def training_batch(self, indices, epochs, seed):
        images, classes = super().training_batch(indices, epochs, seed)
        return images.double(), classes

    def evaluation_batch(self, indices):
        images, classes = super().evaluation_batch(indices)
        return images.double(), classes


def layers(sizes):
    """Matrices from each size to the next, with tanh between them."""
    made = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        made += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*made[:-1])


class Wide(DoubleDigits):
    """Three matrices whose orthogonalization workers share, of two shapes, and two that are too small for that."""

    def build_model(self, settings):
        return layers((64, 300, 260, 300, 260, 10)).double()


class NarrowSingle(ResNetWorkload):
    """Smaller ones in single precision, for :mod:`tests.trainers.sharing_program`."""

    def build_model(self, settings):
        return layers((64, 31, 27, 31, 27, 10))


class Here(DoubleDigits):
    """The same, trained in the process of a sweep, as simulations are."""

    simulated = True
