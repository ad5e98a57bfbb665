"""Read images from WebDataset tar files, ``path/*train*.tar`` and ``path/*val*.tar``, as ``NAME.jpg`` and ``NAME.cls``.

They are cropped, flipped and normalized as in ``image_folder``, with random numbers derived from the seed, the epoch
and the sample's name. Files are read sequentially, each by one worker.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.errors import DataError
from trainers.feed.crops import UNIFORMS
from trainers.feed.streams import Part
from trainers.feed.tar_shards import TarSample, TarShards
from trainers.numerics.random_numbers import sample_uniforms
from trainers.workloads.resnet.image_reader import (
    IMAGENET_DEVIATION,
    IMAGENET_MEAN,
    ImageReader,
    normalize_images,
)
from trainers.workloads.workload import Batch

IMAGES = ("jpg", "jpeg", "png", "webp")
_DEFAULT_SIZE = 224
_DECODED_AT_ONCE = 64


class ImageStream:
    """Images from tar files, decoded by a pool of threads in reading order."""

    channels = 3
    largest_micro_batch = 64
    prefetched_batches = 3
    concurrent_batches = 1
    streamed = True

    def __init__(self, data: Mapping[str, Any], reader: ImageReader, *, augment: bool) -> None:
        self._training, self._evaluation = (
            _shards(data.get("path"), kind) for kind in ("train", "val")
        )
        self.classes = _whole(data.get("classes"), "classes", 2)
        self.size = _whole(data.get("image_size", _DEFAULT_SIZE), "image_size", 8)
        self._reader, self._augment = reader, augment
        self.train_samples = _samples(data, "train_samples", self._training)
        self.evaluation_samples = _samples(data, "evaluation_samples", self._evaluation)

    def use_device(self, device: torch.device) -> None:
        """Decode into memory from which this device can copy directly."""
        self._reader.use_device(device)

    def training_stream(self, epoch: int, seed: int, part: Part) -> Iterable[Batch]:
        """Yield images ``(n, 3, size, size)``, uint8, and their classes ``(n,)``."""
        samples = self._training.shuffled(epoch, seed, part)
        return self._decoded(samples, (seed, epoch) if self._augment else None)

    def evaluation_stream(self, part: Part) -> Iterable[Batch]:
        """Yield the evaluation images, cropped to their centres."""
        return self._decoded(self._evaluation.in_order(part), None)

    def prepare(self, batch: Batch) -> Batch:
        """Return float32 images with mean about 0 and variance about 1, in the memory format channels_last."""
        images, classes = batch
        return normalize_images(images, IMAGENET_MEAN, IMAGENET_DEVIATION), classes

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Raise NotImplementedError: streamed images have no index."""
        raise NotImplementedError

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Raise NotImplementedError: streamed images have no index."""
        raise NotImplementedError

    def _decoded(
        self, samples: Iterator[TarSample], drawn: tuple[int, int] | None
    ) -> Iterator[Batch]:
        while chosen := list(itertools.islice(samples, _DECODED_AT_ONCE)):
            uniforms = None
            if drawn is not None:
                seed, epoch = drawn
                numbers = torch.tensor([_number(sample.name) for sample in chosen])
                epochs = torch.full_like(numbers, epoch)
                uniforms = sample_uniforms(seed, epochs, numbers, UNIFORMS + 1).tolist()
            images = self._reader.images([_image(sample) for sample in chosen], self.size, uniforms)
            yield images, torch.tensor([self._class(sample) for sample in chosen])

    def _class(self, sample: TarSample) -> int:
        try:
            number = int(sample.contents["cls"])
        except (KeyError, ValueError) as error:
            raise DataError(
                f"the sample {sample.name} must have a member .cls with the number of its class, but its members are "
                f"{', '.join(sample.contents)}"
            ) from error
        if not 0 <= number < self.classes:
            raise DataError(
                f"the class of {sample.name} must be 0 to {self.classes - 1}, but is {number}; correct the data option "
                "classes"
            )
        return number


def _image(sample: TarSample) -> tuple[str, bytes]:
    for extension in IMAGES:
        if extension in sample.contents:
            return sample.name, sample.contents[extension]
    raise DataError(
        f"the sample {sample.name} must have an image ({', '.join(IMAGES)}), but its members are "
        f"{', '.join(sample.contents)}"
    )


def _number(name: str) -> int:
    """Derive a number from a sample's name, to serve as its index."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _shards(path: Any, kind: str) -> TarShards:
    if not isinstance(path, str) or not path:
        raise DataError(
            "the source 'tar_shards' needs path, the folder that holds *train*.tar and *val*.tar, but got "
            f"{path!r}"
        )
    files = list(Path(path).glob(f"*{kind}*.tar"))
    if not files:
        raise DataError(
            f"the folder {path} holds no *{kind}*.tar; tar shards must be named like that"
        )
    return TarShards(files)


def _samples(data: Mapping[str, Any], name: str, shards: TarShards) -> int:
    return shards.count() if data.get(name) is None else _whole(data[name], name, 1)


def _whole(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(
            f"{name} must be a whole number of at least {least} for the source 'tar_shards', but got "
            f"{value!r}"
        )
    return value
