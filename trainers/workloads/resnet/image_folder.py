"""Images in ImageNet's layout: ``path/train/CLASS/*.jpg`` and ``path/val/CLASS/*.jpg`` (or ``test``).

Large images are augmented as in Szegedy et al. (arXiv:1409.4842, section 6) and Goyal et al.: a random area
of 8 % to 100 % of the image with aspect ratio 3/4 to 4/3, scaled to the size, mirrored half of the time.
They are evaluated on the centre of an image scaled to 256/224 of the size.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from trainers.errors import DataError
from trainers.numerics.random_numbers import sample_uniforms
from trainers.workloads.resnet.images import LARGEST_IN_MEMORY, Images, ImagesInMemory
from trainers.workloads.workload import Batch

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_THREADS = 4
Box = tuple[float, float, float, float]
Files = list[tuple[Path, int]]


def open_folder(path: Any, image_size: Any, augment: bool) -> Images:
    """Open a folder; ``image_size`` (pixels, default: the first image's shorter side, at most 224)."""
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
            f"the classes {', '.join(unknown[:5])} are evaluated but not in {path}/train"
        )
    size = _checked_size(image_size, training[0][0])
    numbers = {name: number for number, name in enumerate(names)}
    pairs = [[(file, numbers[name]) for file, name in files] for files in (training, evaluation)]
    if size <= LARGEST_IN_MEMORY:
        train, test = (_decode_all(files, size) for files in pairs)
        return ImagesInMemory(
            train, test, len(names), shift=size // 8 if augment else 0, mirror=augment
        )
    return ImagesOnDisk(pairs[0], pairs[1], len(names), size, augment)


class ImagesOnDisk:
    """Large images, decoded by a few threads when a batch asks for them."""

    channels = 3
    largest_micro_batch = 64
    prefetched_batches = 2

    def __init__(
        self, training: Files, evaluation: Files, classes: int, size: int, augment: bool
    ) -> None:
        self._training, self._evaluation, self._augment = training, evaluation, augment
        self.classes, self.size = classes, size
        self.train_samples, self.evaluation_samples = len(training), len(evaluation)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="decode")

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:
        """Images ``(n, 3, size, size)``, each cut and mirrored by its own numbers, and classes ``(n,)``."""
        if not self._augment:
            return self._batch(self._training, indices, [None] * len(indices))
        draws: list[list[float] | None] = list(sample_uniforms(seed, epochs, indices, 5).tolist())
        return self._batch(self._training, indices, draws)

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """The centres of the images, and their classes."""
        return self._batch(self._evaluation, indices, [None] * len(indices))

    def _batch(self, files: Files, indices: Tensor, draws: list[list[float] | None]) -> Batch:
        chosen = [files[index] for index in indices.tolist()]
        images = self._threads.map(self._read, [file for file, _ in chosen], draws)
        pixels = torch.from_numpy(np.stack(list(images))).permute(0, 3, 1, 2)
        mean, std = (
            torch.tensor(values).view(1, 3, 1, 1) for values in (_IMAGENET_MEAN, _IMAGENET_STD)
        )
        return (pixels / 255 - mean) / std, torch.tensor([number for _, number in chosen])

    def _read(self, file: Path, draws: list[float] | None) -> np.ndarray[Any, Any]:
        image = _open(file, self.size)
        box = centre_box(*image.size) if draws is None else random_box(*image.size, draws)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if draws is not None and draws[4] < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)


def random_box(width: int, height: int, draws: list[float]) -> Box:
    """A random part (left, top, right, bottom), in pixels, from four uniform numbers: area, aspect, place."""
    area = width * height * (0.08 + 0.92 * draws[0])
    aspect = math.exp((2 * draws[1] - 1) * math.log(4 / 3))
    cut_width, cut_height = (
        min(width, math.sqrt(area * aspect)),
        min(height, math.sqrt(area / aspect)),
    )
    left, top = draws[2] * (width - cut_width), draws[3] * (height - cut_height)
    return left, top, left + cut_width, top + cut_height


def centre_box(width: int, height: int) -> Box:
    """The centred square of 224/256 of the shorter side."""
    side = min(width, height) * 224 / 256
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


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


def _checked_size(image_size: Any, first: Path) -> int:
    if image_size is None:
        return min(224, *_open(first).size)
    if isinstance(image_size, bool) or not isinstance(image_size, int) or image_size < 8:
        raise DataError(
            f"image_size must be a whole number of pixels of at least 8, but got {image_size!r}"
        )
    return image_size


def _decode_all(files: Files, size: int) -> tuple[Tensor, Tensor]:
    pixels = np.empty((len(files), size, size, 3), dtype=np.uint8)
    for index, (file, _) in enumerate(files):
        image = _open(file)
        if image.size != (size, size):
            side = min(image.size)
            left, top = (image.width - side) / 2, (image.height - side) / 2
            box = (left, top, left + side, top + side)
            image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
        pixels[index] = np.asarray(image)
    classes = torch.tensor([number for _, number in files])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), classes


def _open(file: Path, wanted: int | None = None) -> Image.Image:
    try:
        with Image.open(file) as image:
            if wanted is not None:
                image.draft(
                    "RGB", (2 * wanted, 2 * wanted)
                )  # JPEGs decode much faster at half of their size
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(
            f"cannot read the image {file}: {error}; remove it or replace it"
        ) from error
