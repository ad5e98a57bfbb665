"""Images to learn from: scikit-learn's digits, or a folder in ImageNet's layout.

Small images are decoded once and stay in memory; large ones are read as they are needed (``image_folder``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from trainers.errors import DataError, nearest
from trainers.random_numbers import mixed_seed, sample_uniforms
from trainers.workloads.workload import Batch

LARGEST_IN_MEMORY = 64
"""Images of at most this size (pixels) are decoded once and kept."""

_DIGITS_FOR_TRAINING = 0.8


class Images(Protocol):
    """Training and evaluation images with their classes."""

    channels: int
    classes: int
    size: int
    train_samples: int
    evaluation_samples: int
    largest_micro_batch: int
    prefetched_batches: int

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Images ``(n, channels, size, size)``, float32, and classes ``(n,)``, int64."""

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """The same, without augmentation."""


def open_images(data: Mapping[str, Any]) -> Images:
    """The images that the data options name; raises :class:`~trainers.errors.DataError`."""
    source = data.get("source", "digits")
    augment = data.get("augment", True)
    if not isinstance(augment, bool):
        raise DataError(f"augment must be true or false, but got {augment!r}")
    if source == "digits":
        for option in ("path", "image_size"):
            if option in data:
                raise DataError(f"the source 'digits' has no option {option!r}; 'image_folder' has")
        return digits(augment)
    if source == "image_folder":
        from trainers.workloads.resnet.image_folder import open_folder
        return open_folder(data.get("path"), data.get("image_size"), augment)
    raise DataError(f"there is no data source {source!r}{nearest(str(source), ('digits', 'image_folder'))}")


class ImagesInMemory:
    """Small images, as bytes, shifted at random by up to ``shift`` pixels and, if asked, mirrored."""

    largest_micro_batch = 1024
    prefetched_batches = 0

    def __init__(self, training: tuple[Tensor, Tensor], evaluation: tuple[Tensor, Tensor], classes: int, *,
                 shift: int, mirror: bool) -> None:
        images, self._train_classes = training
        self._evaluation_images, self._evaluation_classes = evaluation
        self.train_samples, self.channels, self.size = images.shape[:3]
        self.evaluation_samples, self.classes = len(self._evaluation_images), classes
        self._shift, self._mirror = shift, mirror
        pixels = images.transpose(0, 1).reshape(self.channels, -1).double()
        self._mean = pixels.mean(1).float().view(1, -1, 1, 1)
        self._scale = 1 / pixels.std(1).clamp(min=1e-6).float().view(1, -1, 1, 1)
        padded = torch.nn.functional.pad(images, (shift, shift, shift, shift))
        # every shifted image as a view: (samples, channels, shifts down, shifts right, size, size)
        self._windows = padded.unfold(2, self.size, 1).unfold(3, self.size, 1)

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Shifted and mirrored images ``(n, channels, size, size)``, and their classes."""
        if not (self._shift or self._mirror):
            return self._normalized(self._windows[indices, :, 0, 0]), self._train_classes[indices]
        uniforms = sample_uniforms(seed, epochs, indices, 3)
        down, right = (uniforms[:, :2] * (2 * self._shift + 1)).long().unbind(1)
        images = self._windows[indices, :, down, right]
        if self._mirror:
            images = torch.where(uniforms[:, 2].view(-1, 1, 1, 1) < 0.5, images, images.flip(3))
        return self._normalized(images), self._train_classes[indices]

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Images ``(n, channels, size, size)`` as they are, and their classes."""
        return self._normalized(self._evaluation_images[indices]), self._evaluation_classes[indices]

    def _normalized(self, images: Tensor) -> Tensor:
        return (images - self._mean) * self._scale


def digits(augment: bool) -> ImagesInMemory:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels: always the same 1,437 to train, 360 to test.

    Each class gives four fifths of its samples to training. Augmentation shifts by up to one pixel.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("the source 'digits' needs scikit-learn; pip install scikit-learn") from error
    bunch = load_digits()
    training, evaluation = stratified_split(bunch.target, _DIGITS_FOR_TRAINING)
    images = torch.from_numpy(bunch.images.astype(np.uint8))[:, None]
    classes = torch.from_numpy(bunch.target.astype(np.int64))
    train, test = ((images[chosen], classes[chosen]) for chosen in (training, evaluation))
    return ImagesInMemory(train, test, 10, shift=1 if augment else 0, mirror=False)


def stratified_split(classes: np.ndarray[Any, Any], fraction: float) -> tuple[Tensor, Tensor]:
    """Indices of a training set of ``fraction`` of all samples and of the rest, in order and always the same.

    Largest remainders (Hamilton's rule) decide which classes round up, so that the total is exact.
    """
    names, counts = np.unique(classes, return_counts=True)
    quotas = counts * fraction
    chosen = np.floor(quotas).astype(int)
    missing = int(len(classes) * fraction) - chosen.sum()
    chosen[np.argsort(chosen - quotas, kind="stable")[:missing]] += 1
    generator = torch.Generator().manual_seed(mixed_seed(0))
    training = torch.zeros(len(classes), dtype=torch.bool)
    for name, count in zip(names, chosen, strict=True):
        members = torch.from_numpy(np.flatnonzero(classes == name))
        training[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return training.nonzero()[:, 0], (~training).nonzero()[:, 0]
