"""A custom workload whose model grows: the network of cells.py with two hidden layers, whose width a study sets."""

from cells import Cells
from torch import nn


def network(width):
    return nn.Sequential(
        nn.Linear(30, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 2),
    )


class Growing(Cells):
    own_settings = ("width",)  # the sizes that a ladder may name: width, depth, or both

    def build_model(self, settings):
        return network(settings.scale["width"])

    def base_model(self, settings):  # muP: settings good at this width are good at any
        return network(8)
