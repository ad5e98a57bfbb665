"""Images: what every source of images gives, and those that stay in memory."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from trainers.numerics.random_numbers import sample_uniforms
from trainers.workloads.workload import Batch

LARGEST_IN_MEMORY = 64
"""Images of at most this size (pixels) are decoded once and kept."""


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


class ImagesInMemory:
    """Small images, as bytes, shifted at random by up to ``shift`` pixels and, if asked, mirrored."""

    largest_micro_batch = 1024
    prefetched_batches = 0

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
