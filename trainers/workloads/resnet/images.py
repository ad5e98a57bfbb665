"""The interface of all image sources, and an image source that stays in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from trainers.feed.streams import Part
from trainers.numerics.random_numbers import sample_uniforms
from trainers.workloads.workload import Batch

LARGEST_IN_MEMORY = 64
"""Images of at most this size (pixels) are decoded once and kept in memory."""


class ImageSet(Protocol):
    """Training and evaluation images with their classes, as bytes until ``prepare`` turns them into a model's input.

    The attributes have the same meaning as in :class:`~trainers.workloads.workload.Workload`.
    """

    channels: int
    classes: int
    size: int
    train_samples: int
    evaluation_samples: int
    largest_micro_batch: int
    prefetched_batches: int
    concurrent_batches: int
    streamed: bool

    def use_device(self, device: torch.device) -> None:
        """Set the device that will use the batches; called once, before the first batch."""

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Return images ``(n, channels, size, size)``, uint8 in any memory format, and classes ``(n,)``, int64."""

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return a batch for evaluation, without augmentation."""

    def training_stream(self, epoch: int, seed: int, part: Part) -> Iterable[Batch]:
        """Yield batches like those of ``training_batch``, if the images are ``streamed``."""

    def evaluation_stream(self, part: Part) -> Iterable[Batch]:
        """Yield batches like those of ``evaluation_batch``, if the images are ``streamed``."""

    def prepare(self, batch: Batch) -> Batch:
        """Normalize the images of a batch, on any device, to floating point with mean about 0 and variance about 1."""


class IndexedImages:
    """Images that are addressed by their index."""

    streamed = False

    def training_stream(self, epoch: int, seed: int, part: Part) -> Iterable[Batch]:
        """Raise NotImplementedError: these images are not a stream."""
        raise NotImplementedError

    def evaluation_stream(self, part: Part) -> Iterable[Batch]:
        """Raise NotImplementedError: these images are not a stream."""
        raise NotImplementedError


class ImagesInMemory(IndexedImages):
    """Small images, stored as bytes, randomly shifted by up to ``shift`` pixels and optionally flipped.

    The images are kept on the device, where batches are selected.
    """

    largest_micro_batch = 1024
    prefetched_batches = 0
    concurrent_batches = 1

    def __init__(
        self,
        training: tuple[Tensor, Tensor],
        evaluation: tuple[Tensor, Tensor],
        classes: int,
        *,
        shift: int,
        mirror: bool,
    ) -> None:
        images, self._train_classes = training
        self._evaluation_images, self._evaluation_classes = evaluation
        self.train_samples, self.channels, self.size = images.shape[:3]
        self.evaluation_samples, self.classes = len(self._evaluation_images), classes
        self._shift, self._mirror = shift, mirror
        pixels = images.transpose(0, 1).reshape(self.channels, -1).double()
        self._mean = pixels.mean(1).float().view(1, -1, 1, 1)
        self._scale = 1 / pixels.std(1).clamp(min=1e-6).float().view(1, -1, 1, 1)
        self._padded = torch.nn.functional.pad(images, (shift, shift, shift, shift))
        self.use_device(torch.device("cpu"))

    def use_device(self, device: torch.device) -> None:
        """Keep the images on this device."""
        self._device = device
        self._padded = self._padded.to(device)
        # all shifted images as a view: (samples, channels, shifts down, shifts right, size, size)
        self._windows = self._padded.unfold(2, self.size, 1).unfold(3, self.size, 1)
        self._train_classes = self._train_classes.to(device)
        self._evaluation_images = self._evaluation_images.to(device)
        self._evaluation_classes = self._evaluation_classes.to(device)
        self._mean, self._scale = self._mean.to(device), self._scale.to(device)

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Return shifted and flipped images ``(n, channels, size, size)``, uint8, and their classes."""
        here = self._here(indices)
        if not (self._shift or self._mirror):
            return self._windows[here, :, 0, 0], self._train_classes[here]
        uniforms = self._here(sample_uniforms(seed, epochs, indices, 3))
        down, right = (uniforms[:, :2] * (2 * self._shift + 1)).long().unbind(1)
        images = self._windows[here, :, down, right]
        if self._mirror:
            images = torch.where(uniforms[:, 2].view(-1, 1, 1, 1) < 0.5, images, images.flip(3))
        return images, self._train_classes[here]

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return unchanged images ``(n, channels, size, size)``, uint8, and their classes."""
        here = self._here(indices)
        return self._evaluation_images[here], self._evaluation_classes[here]

    def prepare(self, batch: Batch) -> Batch:
        """Return images normalized per channel to mean 0 and variance 1 over all pixels of the training set."""
        images, classes = batch
        return (images - self._mean) * self._scale, classes

    def _here(self, values: Tensor) -> Tensor:
        return values if self._device.type == "cpu" else values.to(self._device, non_blocking=True)
