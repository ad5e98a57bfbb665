"""A custom workload with a scalable model: the network of cells.py with two hidden layers of a width set by a study."""

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
    own_settings = ("width",)  # the model sizes that a ladder may name: width, depth, or both

    def build_model(self, settings):
        return network(settings.scale["width"])

    def base_model(self, settings):  # muP: settings tuned at this width transfer to any other
        return network(8)
