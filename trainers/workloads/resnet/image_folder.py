"""Read images in ImageNet's layout: ``path/train/CLASS/*.jpg`` and ``path/val/CLASS/*.jpg`` (or ``test``).

Large training images are augmented by the random crops of Szegedy et al. and Goyal et al. (:mod:`trainers.feed.crops`)
and flipped with probability 1/2. For evaluation, images are scaled to 256/224 of the input size and centre-cropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.errors import DataError
from trainers.feed.crops import UNIFORMS
from trainers.feed.decoders import read_image, unreadable_image
from trainers.numerics.random_numbers import sample_uniforms
from trainers.workloads.resnet.image_reader import (
    IMAGENET_DEVIATION,
    IMAGENET_MEAN,
    Files,
    ImageReader,
    normalize_images,
)
from trainers.workloads.resnet.images import (
    LARGEST_IN_MEMORY,
    ImageSet,
    ImagesInMemory,
    IndexedImages,
)
from trainers.workloads.workload import Batch

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})


def open_image_folder(path: Any, image_size: Any, augment: bool, reader: ImageReader) -> ImageSet:
    """Open an image folder; ``image_size`` is in pixels (default: the first image's shorter side, at most 224)."""
    if not isinstance(path, str) or not path:
        raise DataError(
            "the source 'image_folder' needs path, the folder that holds train and val, but got "
            f"{path!r}"
        )
    if not Path(path).is_dir():
        raise DataError(
            f"the data folder {path} does not exist; name the folder that holds train and val"
        )
    training, names = _listing(Path(path) / "train")
    evaluation, evaluation_names = _listing(_evaluation_folder(Path(path)))
    unknown = sorted(set(evaluation_names) - set(names))
    if unknown:
        raise DataError(
            f"the classes {', '.join(unknown[:5])} are in {path}/val but not in {path}/train"
        )
    size = _checked_size(image_size, training[0][0], reader)
    numbers = {name: number for number, name in enumerate(names)}
    pairs = [[(file, numbers[name]) for file, name in files] for files in (training, evaluation)]
    if size <= LARGEST_IN_MEMORY:
        train, test = (_decode_all(files, size, reader) for files in pairs)
        return ImagesInMemory(
            train, test, len(names), shift=size // 8 if augment else 0, mirror=augment
        )
    return ImagesOnDisk(pairs[0], pairs[1], len(names), size, reader, augment=augment)


class ImagesOnDisk(IndexedImages):
    """Large images, decoded by a pool of threads when a batch needs them.

    Pixels are copied to the device as bytes and normalized there by ImageNet's mean and standard deviation.
    """

    channels = 3
    largest_micro_batch = 64
    prefetched_batches = 3
    concurrent_batches = 2  # so that no thread idles until the last image of a batch is done

    def __init__(
        self,
        training: Files,
        evaluation: Files,
        classes: int,
        size: int,
        reader: ImageReader,
        *,
        augment: bool,
    ) -> None:
        self._training, self._evaluation, self._augment = training, evaluation, augment
        self.classes, self.size, self._reader = classes, size, reader
        self.train_samples, self.evaluation_samples = len(training), len(evaluation)

    def use_device(self, device: torch.device) -> None:
        """Decode into memory from which this device can copy directly."""
        self._reader.use_device(device)

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Return images ``(n, 3, size, size)``, uint8, each with its own random crop and flip, and classes ``(n,)``."""
        chosen = [self._training[index] for index in indices.tolist()]
        if not self._augment:
            return self._reader.batch(chosen, self.size)
        uniforms = sample_uniforms(seed, epochs, indices, UNIFORMS + 1).tolist()
        return self._reader.batch(chosen, self.size, uniforms)

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return the central squares of the images, and their classes."""
        return self._reader.batch(
            [self._evaluation[index] for index in indices.tolist()], self.size
        )

    def prepare(self, batch: Batch) -> Batch:
        """Return float32 images with mean about 0 and variance about 1, in the memory format channels_last."""
        images, classes = batch
        return normalize_images(images, IMAGENET_MEAN, IMAGENET_DEVIATION), classes


def _listing(folder: Path) -> tuple[list[tuple[Path, str]], list[str]]:
    if not folder.is_dir():
        raise DataError(
            f"the data folder {folder} does not exist; a folder in ImageNet's layout holds "
            "train/CLASS/*.jpg and val/CLASS/*.jpg"
        )
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    files = [
        (file, name)
        for name in names
        for file in sorted((folder / name).iterdir())
        if file.suffix.lower() in _SUFFIXES
    ]
    if len(names) < 2 or len(files) < 2:
        raise DataError(
            f"{folder} must hold images of at least two classes, one folder per class, but it "
            f"has {len(names)} class folders and {len(files)} images"
        )
    return files, names


def _evaluation_folder(path: Path) -> Path:
    return (
        path / "test" if (path / "test").is_dir() and not (path / "val").is_dir() else path / "val"
    )


def _checked_size(image_size: Any, first: Path, reader: ImageReader) -> int:
    if image_size is None:
        try:
            return min(224, *reader.decoder.size(read_image(first)))
        except (OSError, ValueError) as error:
            raise unreadable_image(first, error) from error
    if isinstance(image_size, bool) or not isinstance(image_size, int) or image_size < 8:
        raise DataError(
            f"image_size must be a whole number of pixels of at least 8, but got {image_size!r}"
        )
    return image_size


def _decode_all(files: Files, size: int, reader: ImageReader) -> tuple[Tensor, Tensor]:
    """Return the central squares of all images, ``(n, 3, size, size)``, and their classes."""
    images, classes = reader.batch(files, size, centre_share=1.0)
    return images.contiguous(), classes
