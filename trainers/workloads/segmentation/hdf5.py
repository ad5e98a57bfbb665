"""The DeepCAM file format: one HDF5 file per sample, and one with the range of each channel.

A sample holds ``climate/data``, ``(height, width, 16)``, mostly float32, and ``climate/labels_0``, ``(height, width)``.
``stats.h5`` holds ``climate/minval`` and ``climate/maxval``, ``(16,)``, over the training set (and count, mean and
sqmean, which are not used). A file that breaks these rules raises a :class:`~trainers.errors.DataError` that names it.
The layout is as in mlcommons/hpc deepcam (src/deepCam/data/cam_hdf5_dataset.py, src/utils/summarize_data.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.errors import DataError
from trainers.workloads.segmentation.channels import CHANNELS, CLASSES

DATA, LABELS = "climate/data", "climate/labels_0"
STATS_FILE = "stats.h5"
Fields = NDArray[Any]
Ranges = NDArray[np.float32]
Labels = NDArray[np.uint8]

_KEPT_TYPES = ("float16", "float32", "uint8", "int16")
"""The stored types that fields keep; all other types are converted to float32."""


@dataclass(frozen=True)
class ChannelRange:
    """The minimum and maximum of each channel over the training set, ``(16,)`` float32 each."""

    low: Ranges
    high: Ranges


def hdf5_sample_files(folder: Path) -> list[Path]:
    """Return the sample files of ``folder``, ordered by name."""
    if not folder.is_dir():
        raise DataError(
            f"the data folder {folder} does not exist; a DeepCAM folder holds train/*.h5, "
            f"validation/*.h5 and {STATS_FILE}"
        )
    files = sorted(file for file in folder.glob("*.h5") if file.name != STATS_FILE)
    if not files:
        raise DataError(f"the data folder {folder} holds no *.h5 file; each sample is a file")
    return files


def hdf5_sample_shape(file: Path) -> tuple[int, int]:
    """Return the height and width of a sample, reading only the file's header."""
    with _opened(file) as content:
        return _checked_shapes(file, content, None)


def hdf5_sample_type(file: Path) -> np.dtype[Any]:
    """Return the type of the fields that :func:`read_hdf5_sample` returns, reading only the file's header."""
    with _opened(file) as content:
        return _handed_on(_dataset(file, content, DATA).dtype)


def read_hdf5_sample(file: Path, shape: tuple[int, int] | None = None) -> tuple[Fields, Labels]:
    """Return checked fields ``(height, width, 16)`` and labels ``(height, width)``; ``shape`` is the expected shape.

    The fields keep their stored type if it is half or single precision or a small integer; otherwise they become
    float32.
    """
    with _opened(file) as content:
        _checked_shapes(file, content, shape)
        fields = _values(file, content, DATA)
        labels = _values(file, content, LABELS)
    fields = fields.astype(_handed_on(fields.dtype), copy=False)
    _check_finite(file, fields)
    return fields, _checked_labels(file, labels)


def _handed_on(stored: np.dtype[Any]) -> np.dtype[Any]:
    return stored.newbyteorder("=") if stored.name in _KEPT_TYPES else np.dtype(np.float32)


def read_labels(file: Path, shape: tuple[int, int] | None = None) -> Labels:
    """Return only the labels of a sample, ``(height, width)``."""
    with _opened(file) as content:
        _checked_shapes(file, content, shape)
        return _checked_labels(file, _values(file, content, LABELS))


def write_hdf5_sample(file: Path, fields: NDArray[Any], labels: NDArray[Any]) -> None:
    """Write fields ``(height, width, 16)`` as float32 and labels ``(height, width)`` as bytes."""
    import h5py

    with h5py.File(file, "w") as content:
        content.create_dataset(DATA, data=fields, dtype=np.float32)
        content.create_dataset(LABELS, data=labels, dtype=np.uint8)


def read_channel_range(file: Path) -> ChannelRange:
    """Return the range of each channel; a constant channel could not be normalized and is therefore an error."""
    with _opened(file) as content:
        low, high = (_values(file, content, name) for name in ("climate/minval", "climate/maxval"))
    for name, values in (("minval", low), ("maxval", high)):
        if values.shape != (len(CHANNELS),):
            raise DataError(
                f"climate/{name} must hold one value per channel, ({len(CHANNELS)},), but has the "
                f"shape {values.shape} in {file}"
            )
    wrong = ~(np.isfinite(low) & np.isfinite(high) & (low < high))
    if wrong.any():
        channel = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"minval < maxval must hold for each channel, but {CHANNELS[channel]} has {low[channel]} and "
            f"{high[channel]} in {file}; recompute it over the training files"
        )
    return ChannelRange(low.astype(np.float32), high.astype(np.float32))


@dataclass(frozen=True)
class ChannelSummary:
    """The minimum, maximum, mean and mean square of each channel over ``count`` samples, ``(16,)`` float64 each."""

    count: int
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean: NDArray[np.float64]
    mean_square: NDArray[np.float64]

    def merged(self, other: ChannelSummary) -> ChannelSummary:
        """Return the summary over the samples of both summaries."""
        count = self.count + other.count
        mean, square = (
            (self.count * mine + other.count * theirs) / count
            for mine, theirs in ((self.mean, other.mean), (self.mean_square, other.mean_square))
        )
        return ChannelSummary(
            count, np.minimum(self.low, other.low), np.maximum(self.high, other.high), mean, square
        )


def channel_summary_of(fields: NDArray[Any]) -> ChannelSummary:
    """Return the summary of one sample, ``(height, width, 16)``."""
    pixels = fields.reshape(-1, fields.shape[-1]).astype(np.float64)
    return ChannelSummary(
        1, pixels.min(0), pixels.max(0), pixels.mean(0), np.square(pixels).mean(0)
    )


def write_channel_stats(file: Path, summary: ChannelSummary) -> None:
    """Write a summary to a ``stats.h5`` file."""
    import h5py

    with h5py.File(file, "w") as content:
        content["climate/count"] = summary.count
        for name, values in (
            ("minval", summary.low),
            ("maxval", summary.high),
            ("mean", summary.mean),
            ("sqmean", summary.mean_square),
        ):
            content[f"climate/{name}"] = values.astype(np.float32)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    import h5py

    if not file.is_file():
        raise DataError(f"the file {file} does not exist")
    try:
        content = h5py.File(file, "r")
    except OSError as error:
        raise DataError(
            f"cannot read {file}: {error}; it is damaged or not an HDF5 file: copy it again"
        ) from error
    with content:
        yield content


def _dataset(file: Path, content: Any, name: str) -> Any:
    import h5py

    try:
        dataset = content.get(name)
    except (OSError, RuntimeError, KeyError) as error:
        raise DataError(f"cannot read {name} in {file}: {error}; copy the file again") from error
    if not isinstance(dataset, h5py.Dataset):
        raise DataError(f"there is no dataset {name} in {file}; the DeepCAM format needs it")
    if dataset.dtype.kind not in "fiu":
        raise DataError(f"{name} must hold numbers, but has the type {dataset.dtype} in {file}")
    return dataset


def _values(file: Path, content: Any, name: str) -> NDArray[Any]:
    dataset = _dataset(file, content, name)
    try:
        values: NDArray[Any] = dataset[...]
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"cannot read {name} in {file}: {error}; the file is truncated or damaged: copy it "
            "again"
        ) from error
    return values


def _checked_shapes(file: Path, content: Any, shape: tuple[int, int] | None) -> tuple[int, int]:
    data, labels = (_dataset(file, content, name).shape for name in (DATA, LABELS))
    if len(data) != 3 or data[2] != len(CHANNELS):
        raise DataError(
            f"{DATA} must have the shape (height, width, {len(CHANNELS)}), channels last, but has "
            f"{data} in {file}"
        )
    if labels != data[:2]:
        raise DataError(
            f"{LABELS} must have the shape {data[:2]} of the fields, but has {labels} in {file}"
        )
    if shape is not None and data[:2] != shape:
        raise DataError(
            f"all samples must have the same height and width, here {shape}, but {file} has "
            f"{data[:2]}"
        )
    return int(data[0]), int(data[1])


def _check_finite(file: Path, fields: Fields) -> None:
    with np.errstate(all="ignore"):
        # a NaN or an infinity makes the sum non-finite, and summing is cheap; a half-precision sum could overflow
        if np.isfinite(fields.sum(dtype=np.result_type(fields.dtype, np.float32))):
            return
    broken = np.argwhere(~np.isfinite(fields))
    if len(broken):
        row, column, channel = broken[0]
        raise DataError(
            f"the fields must be finite, but {CHANNELS[channel]} is {fields[row, column, channel]} at row "
            f"{row}, column {column} in {file} ({len(broken)} such values); remove or repair the file"
        )


def _checked_labels(file: Path, labels: NDArray[Any]) -> Labels:
    if labels.size and not (
        labels.min() >= 0 and labels.max() < len(CLASSES)
    ):  # false for NaN, too
        raise DataError(
            f"labels must be 0 to {len(CLASSES) - 1} ({', '.join(CLASSES)}), but {file} has "
            f"{labels.min()} to {labels.max()}"
        )
    classes = labels.astype(np.uint8, copy=False)
    if labels.dtype.kind == "f" and not np.array_equal(classes, labels):
        raise DataError(f"labels must be whole numbers, but {file} has fractions")
    return classes
