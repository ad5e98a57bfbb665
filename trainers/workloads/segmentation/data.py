"""Climate samples to train on: a folder in the DeepCAM format, or generated fields in the same format.

Both use the same reader. Small data sets are kept in memory after they are first read.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from search_spaces.names import nearest_or_all
from trainers.errors import DataError
from trainers.private_files import make_private_folder
from trainers.workloads.segmentation.channels import CHANNELS, CLASSES
from trainers.workloads.segmentation.hdf5 import (
    STATS_FILE,
    hdf5_sample_files,
    hdf5_sample_shape,
    hdf5_sample_type,
    read_channel_range,
    read_hdf5_sample,
    read_labels,
)
from trainers.workloads.workload import Batch, check_options

LARGEST_IN_MEMORY = 2 << 30
"""Data sets of at most this size (bytes) are kept in memory if the option ``cache`` is not set."""

PIXELS_PER_PASS = 2 * 768 * 1152
"""The number of pixels per forward pass: two samples of 768x1152, as in Kurth et al., or up to 64 smaller samples."""

DATA_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "generated": ("samples", "evaluation_samples", "height", "width", "seed", "folder"),
    "deepcam": ("path",),
}
"""The options of each source, other than ``source`` and ``cache``."""

OPTION_NAMES = ("source", "cache", *(name for names in DATA_OPTIONS.values() for name in names))
"""All options that :func:`open_samples` accepts, for workloads that add their own."""

_THREADS = 4


def open_samples(data: Mapping[str, Any]) -> ClimateSamples:
    """Open the samples that the data options name; raises :class:`~trainers.errors.DataError`.

    ``data`` must contain only options in :data:`OPTION_NAMES`.
    """
    check_options(data, OPTION_NAMES)
    source, cache = data.get("source", "generated"), data.get("cache")
    if source not in DATA_OPTIONS:
        raise DataError(
            f"there is no data source {source!r}{nearest_or_all(str(source), DATA_OPTIONS)}"
        )
    for other, names in DATA_OPTIONS.items():
        for name in names:
            if other != source and name in data:
                raise DataError(f"the source {source!r} has no option {name!r}; {other!r} has it")
    if cache not in (None, "memory", "none"):
        raise DataError(f"cache must be memory or none, but got {cache!r}")
    if source == "deepcam":
        return ClimateSamples(_named_folder(data.get("path")), cache)
    from trainers.workloads.segmentation.generate import GeneratedOptions, generated_folder

    return ClimateSamples(generated_folder(GeneratedOptions.from_data(data)), cache)


class ClimateSamples:
    """The samples in a folder in the DeepCAM format, in their stored type until ``prepare`` scales their channels.

    Attributes:
        train_samples, evaluation_samples: the number of samples in each set. channels, height, width, classes: the
        shape of a sample. largest_micro_batch: the maximum number of samples per forward pass. prefetched_batches: the
        number of micro batches to prepare ahead; 0 if they come from memory.
    """

    channels = len(CHANNELS)
    classes = len(CLASSES)

    def __init__(self, folder: Path, cache: str | None = None) -> None:
        self.folder = folder
        training = hdf5_sample_files(folder / "train")
        evaluation = hdf5_sample_files(folder / "validation")
        self.height, self.width = hdf5_sample_shape(training[0])
        self.train_samples, self.evaluation_samples = len(training), len(evaluation)
        stored = hdf5_sample_type(training[0])
        sample_bytes = self.height * self.width * (stored.itemsize * self.channels + 1)
        if cache is None:
            cache = (
                "memory"
                if sample_bytes * (len(training) + len(evaluation)) <= LARGEST_IN_MEMORY
                else "none"
            )
        self.largest_micro_batch = max(1, min(64, PIXELS_PER_PASS // (self.height * self.width)))
        self.prefetched_batches = 0 if cache == "memory" else 2
        ranges = read_channel_range(_stats_file(folder))
        self._low = torch.from_numpy(ranges.low).view(-1, 1, 1)
        self._scale = 1 / (torch.from_numpy(ranges.high).view(-1, 1, 1) - self._low)
        self._ranges = {torch.device("cpu"): (self._low, self._scale)}
        opened = _InMemory if cache == "memory" else _OnDisk
        shape = self.height, self.width
        self._training, self._evaluation = (
            opened(training, shape, stored),
            opened(evaluation, shape, stored),
        )

    def use_device(self, device: torch.device) -> None:
        """Set the device that uses the batches; for a GPU, they are read into pinned memory."""
        for samples in (self._training, self._evaluation):
            samples.pinned = device.type == "cuda"

    def training_batch(self, indices: Tensor, epochs: Tensor, seed: int) -> Batch:  # noqa: ARG002
        """Return stored-type fields ``(n, height, width, 16)`` and uint8 labels ``(n, height, width)``, unaugmented."""
        return self._training.batch(indices)

    def evaluation_batch(self, indices: Tensor) -> Batch:
        """Return a batch of evaluation samples."""
        return self._evaluation.batch(indices)

    def prepare(self, batch: Batch) -> Batch:
        """Return fields ``(n, 16, height, width)`` float32, channels last, and labels ``(n, height, width)`` int64.

        Each channel is scaled to 0..1 over the training set, on the device of the batch.
        """
        stored, labels = batch
        if stored.device not in self._ranges:
            self._ranges[stored.device] = (
                self._low.to(stored.device),
                self._scale.to(stored.device),
            )
        low, scale = self._ranges[stored.device]
        return (stored.permute(0, 3, 1, 2) - low).mul_(scale), labels.long()

    @functools.cached_property
    def class_frequencies(self) -> tuple[float, float, float]:
        """Each class's share of the training pixels, counted once and then cached."""
        return _class_frequencies(self.folder, self._training.files, (self.height, self.width))


class _OnDisk:
    """Samples on disk, which a few threads read when a batch needs them."""

    def __init__(self, files: list[Path], shape: tuple[int, int], stored: np.dtype[Any]) -> None:
        self.files, self._shape, self._stored = files, shape, stored
        self._type = torch.from_numpy(np.empty(0, stored)).dtype
        self.pinned = False

    def batch(self, indices: Tensor) -> Batch:
        fields, labels = self._empty(len(indices), pinned=self.pinned)
        self._read_all(list(enumerate(indices.tolist())), fields, labels)
        return fields, labels

    def _empty(self, count: int, *, pinned: bool = False) -> tuple[Tensor, Tensor]:
        return (
            torch.empty(count, *self._shape, len(CHANNELS), dtype=self._type, pin_memory=pinned),
            torch.empty(count, *self._shape, dtype=torch.uint8, pin_memory=pinned),
        )

    def _read_all(self, places: list[tuple[int, int]], fields: Tensor, labels: Tensor) -> None:
        """Read samples into rows of the batch; ``places`` holds (row, sample) pairs."""

        def read(place: tuple[int, int]) -> None:
            row, index = place
            stored, classes = read_hdf5_sample(self.files[index], self._shape)
            if not np.can_cast(stored.dtype, self._stored):
                raise DataError(
                    f"all samples must have the same data type, here {self._stored} as in "
                    f"{self.files[0].name}, but {self.files[index]} has {stored.dtype}"
                )
            fields[row] = torch.from_numpy(stored)
            labels[row] = torch.from_numpy(classes)

        if len(places) == 1:
            read(places[0])
        elif places:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="read") as threads:
                list(threads.map(read, places))


class _InMemory(_OnDisk):
    """Samples that stay in memory, in their stored type, after they are first read."""

    def __init__(self, files: list[Path], shape: tuple[int, int], stored: np.dtype[Any]) -> None:
        super().__init__(files, shape, stored)
        self._fields, self._labels = self._empty(len(files))  # untouched pages cost nothing
        self._known = torch.zeros(len(files), dtype=torch.bool)

    def batch(self, indices: Tensor) -> Batch:
        missing = torch.unique(indices[~self._known[indices]])
        self._read_all([(index, index) for index in missing.tolist()], self._fields, self._labels)
        self._known[missing] = True
        return self._fields[indices], self._labels[indices]


def _named_folder(path: Any) -> Path:
    if not isinstance(path, str) or not path:
        raise DataError(
            "the source 'deepcam' needs path, the folder that holds train, validation and "
            f"{STATS_FILE}, but got {path!r}"
        )
    if not Path(path).is_dir():
        raise DataError(
            f"the data folder {path} does not exist; name the folder that holds train, validation and "
            f"{STATS_FILE}"
        )
    return Path(path)


def _stats_file(folder: Path) -> Path:
    """Return the path of ``stats.h5``: beside the sample folders or, in some copies of DeepCAM, inside ``train``."""
    for place in (folder / STATS_FILE, folder / "train" / STATS_FILE):
        if place.is_file():
            return place
    raise DataError(
        f"the file {folder / STATS_FILE} does not exist; it holds climate/minval and climate/maxval of "
        "the 16 channels over the training files"
    )


def _place_of_frequencies(folder: Path) -> Path:
    """Return the path of a data set's class counts: beside generated data, but in the user's cache for other folders.

    A folder that the user names may be shared, so nothing is written to it.
    """
    if (folder / "generated.json").is_file():
        return folder / "class_frequencies.json"
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "largebatch" / "frequencies" / f"{digest}.json"


def _class_frequencies(
    folder: Path, files: list[Path], shape: tuple[int, int]
) -> tuple[float, float, float]:
    kept = _place_of_frequencies(folder)
    states = [
        (file.name, state.st_size, state.st_mtime_ns) for file in files for state in [file.stat()]
    ]
    digest = hashlib.sha256(json.dumps(states).encode()).hexdigest()
    try:
        found = json.loads(kept.read_text("utf-8"))
        if found["files"] == digest:
            return tuple(found["frequencies"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not yet counted, or counted by another version
    counts = np.zeros(len(CLASSES), dtype=np.int64)
    for file in files:
        counts += np.bincount(read_labels(file, shape).ravel(), minlength=len(CLASSES))
    background, cyclone, river = (counts / counts.sum()).tolist()
    part = kept.with_suffix(f".{os.getpid()}.part")
    try:
        make_private_folder(kept.parent)
        part.write_text(
            json.dumps({"files": digest, "frequencies": [background, cyclone, river]}), "utf-8"
        )
        part.replace(kept)
    except OSError:
        part.unlink(missing_ok=True)  # this user may not write to the folder
    return background, cyclone, river
