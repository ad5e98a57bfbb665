"""The digits in double precision, for comparing trainings that add up in another order.

In single precision a rounding error that moves one activation across zero changes a gradient at once: of twelve seeds,
a change of the initial weights by 4e-7 of their size moved the weights of seven trainings by 1e-4 to 0.2 within a
dozen updates.
"""

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


class Here(DoubleDigits):
    """The same, trained in the process of a sweep, as simulations are."""

    simulated = True
