"""Write data sets of generated fields in the DeepCAM format, with labels from the published heuristics."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.errors import DataError
from trainers.private_files import lock_file, make_private_folder, removed_permissions
from trainers.workloads.segmentation.channels import CHANNELS, CLASSES
from trainers.workloads.segmentation.fields import make_planted_sample
from trainers.workloads.segmentation.grid import lat_lon_grid
from trainers.workloads.segmentation.hdf5 import (
    STATS_FILE,
    ChannelSummary,
    channel_summary_of,
    write_channel_stats,
    write_hdf5_sample,
)
from trainers.workloads.segmentation.heuristics import make_heuristic_labels

GENERATOR_VERSION = 1
"""The version, incremented whenever the fields or labels change, so that old files are not mistaken for new ones."""

SMALLEST_HEIGHT, SMALLEST_WIDTH = 24, 36
"""The smallest grid: below this size (7.5 and 10 degrees) neither a cyclone nor a river is resolved."""

MOST_BYTES, CACHE_BYTES = "HPO_GENERATED_BYTES", "HPO_CACHE_BYTES"
IN_USE_SECONDS, STARTING_SECONDS, FORGOTTEN_SECONDS = 3600.0, 60.0, 24 * 3600.0
_RECORD = "generated.json"
_WRITER = "writer"
_FIRST_EVALUATION_SAMPLE = 1 << 32  # so that neither set changes when the other grows


@dataclass(frozen=True)
class GeneratedOptions:
    """The number of samples, their height and width, the seed, and the folder that holds them (None: the cache)."""

    samples: int = 256
    evaluation_samples: int = 64
    height: int = 96
    width: int = 144
    seed: int = 0
    folder: str | None = None

    def __post_init__(self) -> None:
        least = {
            "samples": 1,
            "evaluation_samples": 1,
            "height": SMALLEST_HEIGHT,
            "width": SMALLEST_WIDTH,
            "seed": 0,
        }
        for name, limit in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < limit:
                raise DataError(
                    f"{name} must be a whole number of at least {limit}, but got {value!r}"
                )
        if self.bytes > most_bytes():
            raise DataError(
                f"generated samples must take at most {most_bytes():,} bytes, but {self.samples} and "
                f"{self.evaluation_samples} samples of {self.height} x {self.width} take {self.bytes:,}; "
                f"generate fewer or smaller ones, or set {MOST_BYTES}"
            )
        if self.folder is not None and (not isinstance(self.folder, str) or not self.folder):
            raise DataError(f"folder must be the path of a folder, but got {self.folder!r}")

    @property
    def bytes(self) -> int:
        """The size of the files: 16 channels in single precision and a label for each pixel."""
        pixels = (self.samples + self.evaluation_samples) * self.height * self.width
        return pixels * (4 * len(CHANNELS) + 1)

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> GeneratedOptions:
        """Create the generator's options from a study's data options."""
        return GeneratedOptions(
            **{
                field.name: data[field.name]
                for field in fields(GeneratedOptions)
                if field.name in data
            }
        )

    def record(self) -> dict[str, int]:
        """Return the options that determine the content of the files."""
        values = {name: value for name, value in asdict(self).items() if name != "folder"}
        return {**values, "version": GENERATOR_VERSION}

    def place(self) -> Path:
        """Return the folder of the files: the given folder, or one in the user's cache named after the options."""
        if self.folder is not None:
            return Path(self.folder).expanduser()
        digest = hashlib.sha256(json.dumps(self.record(), sort_keys=True).encode()).hexdigest()[:16]
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(cache).expanduser() / "largebatch" / "climate" / digest


def generated_folder(options: GeneratedOptions) -> Path:
    """Return the folder with the generated files; the first process to need them writes them for all others."""
    folder = options.place()
    if not _holds(folder, options):
        try:
            make_private_folder(folder.parent)
            with _lock(folder):
                if not _holds(folder, options):
                    if options.folder is None:
                        make_room(folder.parent, options.bytes)
                    _remove_leftovers(folder)
                    logging.getLogger(__name__).info(
                        "writing %d generated climate samples to %s",
                        options.samples + options.evaluation_samples,
                        folder,
                    )
                    write_data_set(folder, options)
        except OSError as error:
            raise DataError(
                f"cannot write the generated samples to {folder}: {error}; name another folder"
            ) from error
    elif options.folder is None:
        with contextlib.suppress(OSError):
            os.utime(folder)  # mark as used: a full cache removes the least recently used data sets
    return folder


def most_bytes() -> int:
    """Return the maximum size of one data set: ``HPO_GENERATED_BYTES``, or 100 GB if that is not set."""
    return _bytes_of(MOST_BYTES, 100_000_000_000)


def cache_bytes() -> int:
    """Return the maximum size of the cache of generated data sets: ``HPO_CACHE_BYTES``, or 50 GB if that is not set."""
    return _bytes_of(CACHE_BYTES, 50_000_000_000)


def make_room(cache: Path, wanted: int) -> None:
    """Remove the least recently used data sets from the cache until ``wanted`` bytes fit.

    Files that are being written or were used within the last hour are kept. Raises :class:`DataError` if too little
    space can be freed. Half-written files left by killed processes are removed first.
    """
    most = cache_bytes()
    if wanted > most:
        raise DataError(
            f"the cache of generated samples holds at most {most:,} bytes, but {wanted:,} "
            f"would be generated; set {CACHE_BYTES}, or use your own folder"
        )
    kept = []
    for folder in cache.iterdir():
        if folder.name.startswith(".") and folder.is_dir():
            _remove_leftovers(cache / folder.name.split(".")[1])
        elif (folder / _RECORD).is_file():
            kept.append((folder.stat().st_mtime, _size_of(folder), folder))
    taken = sum(size for _, size, _ in kept)
    for used_at, size, folder in sorted(kept):
        if taken + wanted <= most:
            return
        if time.time() - used_at > IN_USE_SECONDS and _remove(folder):
            taken -= size
    if taken + wanted > most:
        raise DataError(
            f"the cache {cache} has {taken:,} bytes that are in use, of at most {most:,}; "
            f"{wanted:,} more do not fit: set {CACHE_BYTES}, or use your own folder"
        )


def _remove_leftovers(folder: Path) -> None:
    """Remove half-written files of a data set left by killed processes, unless one is being written now."""
    parts = [each for each in folder.parent.glob(f".{folder.name}.*") if each.is_dir()]
    for part in parts:
        with contextlib.suppress(OSError):
            if not _is_written(part):
                shutil.rmtree(part, ignore_errors=True)


def _is_written(part: Path) -> bool:
    """Return whether a process is writing this partial data set, as far as this machine can tell."""
    quiet_seconds = time.time() - part.stat().st_mtime
    try:
        host, _, number = (part / _WRITER).read_text("utf-8").rpartition(":")
    except FileNotFoundError:
        return quiet_seconds < STARTING_SECONDS
    if host != socket.gethostname():
        return quiet_seconds < FORGOTTEN_SECONDS
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True


def _remove(folder: Path) -> bool:
    """Remove a data set, atomically for any process that looks for it."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    try:
        folder.rename(aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _bytes_of(name: str, usual: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return usual
    if not text.isdecimal() or int(text) < 1:
        raise DataError(f"{name} must be a number of bytes, but got {text!r}")
    return int(text)


def write_data_set(folder: Path, options: GeneratedOptions, workers: int = 1) -> NDArray[np.int64]:
    """Write a data set to a new or empty folder; return the number of training pixels of each class.

    The files appear all at once, when the last one has been written.
    """
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        part.chmod(0o777 & ~removed_permissions())
        (part / _WRITER).write_text(f"{socket.gethostname()}:{os.getpid()}", "utf-8")
        for name in ("train", "validation"):
            (part / name).mkdir()
        tasks = [
            (part / "train" / f"data-{index:06d}.h5", options, index)
            for index in range(options.samples)
        ]
        tasks += [
            (
                part / "validation" / f"data-{index:06d}.h5",
                options,
                _FIRST_EVALUATION_SAMPLE + index,
            )
            for index in range(options.evaluation_samples)
        ]
        counts = np.zeros(len(CLASSES), dtype=np.int64)
        total = None
        with _mapping(workers) as mapping:
            for index, (summary, pixels) in enumerate(mapping(_write_one, tasks)):
                if index < options.samples:
                    total = summary if total is None else total.merged(summary)
                    counts += pixels
        assert total is not None  # because there is at least one training sample
        write_channel_stats(part / STATS_FILE, total)
        (part / _WRITER).unlink()
        (part / _RECORD).write_text(json.dumps(options.record(), indent=2) + "\n", "utf-8")
        _place(part, folder, options)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return counts


def _place(part: Path, folder: Path, options: GeneratedOptions) -> None:
    try:
        part.rename(folder)
    except OSError:
        if not _holds(folder, options):
            raise
        shutil.rmtree(part)  # another process has already written the same files


def _write_one(
    task: tuple[Path, GeneratedOptions, int],
) -> tuple[ChannelSummary, NDArray[np.int64]]:
    file, options, index = task
    sample = make_planted_sample(lat_lon_grid(options.height, options.width), options.seed, index)
    labels = make_heuristic_labels(sample.fields)
    write_hdf5_sample(file, sample.fields, labels)
    return channel_summary_of(sample.fields), np.bincount(labels.ravel(), minlength=len(CLASSES))


@contextlib.contextmanager
def _mapping(workers: int) -> Iterator[Any]:
    if workers == 1:
        yield map
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:

        def ordered(function: Any, tasks: Iterable[Any]) -> Any:
            return pool.map(function, tasks)

        yield ordered


def _holds(folder: Path, options: GeneratedOptions) -> bool:
    """Return whether the folder holds these samples; raises :class:`DataError` if it holds other samples or files."""
    try:
        found = json.loads((folder / _RECORD).read_text("utf-8"))
    except FileNotFoundError:
        if folder.is_dir() and any(folder.iterdir()):
            raise DataError(
                f"the folder {folder} holds other files; name a new one for generated samples"
            ) from None
        return False
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot read {folder / _RECORD}: {error}; remove the folder, and it is written again"
        ) from error
    if found != options.record():
        raise DataError(
            f"the folder {folder} holds samples with other options, {found}, not {options.record()}; "
            "remove it or name another"
        )
    return True


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let only one process per machine write; between machines without shared file locks, the first to finish wins."""
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        with contextlib.suppress(ImportError, OSError):
            lock_file(file, None)
        yield
