"""Open the images to train on: scikit-learn's digits, a folder in ImageNet's layout, or WebDataset's tar files.

Small images in a folder are decoded once and stay in memory; large images are read when needed (``image_folder``).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from search_spaces.names import nearest_or_all
from trainers.errors import DataError
from trainers.feed.pool import checked_decoder_threads
from trainers.numerics.random_numbers import mixed_seed
from trainers.workloads.resnet.images import ImageSet, ImagesInMemory

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "digits": (),
    "image_folder": ("path", "image_size", "decoder", "decoding_threads"),
    "tar_shards": (
        *("path", "image_size", "decoder", "decoding_threads"),
        *("classes", "train_samples", "evaluation_samples"),
    ),
}
"""The options of each source, other than ``source`` and ``augment``."""

SOURCE_OPTIONS = tuple(dict.fromkeys(name for names in OPTIONS.values() for name in names))
_DIGITS_FOR_TRAINING = 0.8
_DIGITS_FILE = ("datasets", "data", "digits.csv.gz")
"""The path of the digits inside the scikit-learn package."""


def open_images(data: Mapping[str, Any]) -> ImageSet:
    """Open the images that the data options name; raises :class:`~trainers.errors.DataError`."""
    source = data.get("source", "digits")
    augment = data.get("augment", True)
    if not isinstance(augment, bool):
        raise DataError(f"augment must be true or false, but got {augment!r}")
    if source not in OPTIONS:
        raise DataError(f"there is no data source {source!r}{nearest_or_all(str(source), OPTIONS)}")
    for option in SOURCE_OPTIONS:
        if option in data and option not in OPTIONS[source]:
            having = " and ".join(repr(name) for name, known in OPTIONS.items() if option in known)
            raise DataError(f"the source {source!r} has no option {option!r}; {having} has it")
    if source == "digits":
        return load_digits_images(augment)
    from trainers.workloads.resnet.image_reader import ImageReader

    reader = ImageReader(data.get("decoder"), checked_decoder_threads(data.get("decoding_threads")))
    if source == "tar_shards":
        from trainers.workloads.resnet.image_stream import ImageStream

        return ImageStream(data, reader, augment=augment)
    from trainers.workloads.resnet.image_folder import open_image_folder

    return open_image_folder(data.get("path"), data.get("image_size"), augment, reader)


def load_digits_images(augment: bool) -> ImagesInMemory:
    """Return scikit-learn's 1,797 handwritten digits of 8x8 pixels, in a fixed split of 1,437 for training and 360 for
    testing.

    Four fifths of each class are used for training. Augmentation shifts the images by up to one pixel.
    """
    pixels, labels = _digits_table()
    images = torch.from_numpy(pixels.astype(np.uint8))[:, None]
    classes = torch.from_numpy(labels.astype(np.int64))
    training, evaluation = stratified_split(labels, _DIGITS_FOR_TRAINING)
    train, test = ((images[chosen], classes[chosen]) for chosen in (training, evaluation))
    return ImagesInMemory(train, test, 10, shift=1 if augment else 0, mirror=False)


def _digits_table() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the digits' pixels in 0..16, (1797, 8, 8), and their classes, (1797,), from scikit-learn's own file.

    The file is read without scikit-learn, because importing it would cost every training process two seconds.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise DataError("the source 'digits' needs scikit-learn; pip install scikit-learn")
    table = Path(package.submodule_search_locations[0], *_DIGITS_FILE)
    if table.is_file():
        rows = np.loadtxt(table, delimiter=",")
        return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    from sklearn.datasets import load_digits  # for releases that store the digits elsewhere

    bunch = load_digits()
    return bunch.images, bunch.target


def stratified_split(classes: np.ndarray[Any, Any], fraction: float) -> tuple[Tensor, Tensor]:
    """Return the sorted indices of a reproducible training set, a ``fraction`` of all samples, and of the others.

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
