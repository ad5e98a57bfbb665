"""Data sets of generated fields, written in the DeepCAM format with labels from the published heuristics."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.errors import DataError
from trainers.workloads.segmentation.channels import CLASSES
from trainers.workloads.segmentation.fields import make_sample
from trainers.workloads.segmentation.grid import grid_of
from trainers.workloads.segmentation.hdf5 import (
    STATS_FILE,
    ChannelSummary,
    summary_of,
    write_sample,
    write_stats,
)
from trainers.workloads.segmentation.heuristics import make_labels

GENERATOR_VERSION = 1
"""Counts up with every change of the fields or labels, so that no old files pass for new ones."""

SMALLEST_HEIGHT, SMALLEST_WIDTH = 24, 36
"""Below (7.5 and 10 degrees) neither a cyclone nor a river is resolved."""

_RECORD = "generated.json"
_FIRST_EVALUATION_SAMPLE = 1 << 32  # so that neither part changes when the other grows


@dataclass(frozen=True)
class GeneratedOptions:
    """How many samples, of which height and width, from which seed, and where they are kept (None: the cache)."""

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
        if self.folder is not None and (not isinstance(self.folder, str) or not self.folder):
            raise DataError(f"folder must be the path of a folder, but got {self.folder!r}")

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> GeneratedOptions:
        """Those of the data options that concern the generator."""
        return GeneratedOptions(
            **{
                field.name: data[field.name]
                for field in fields(GeneratedOptions)
                if field.name in data
            }
        )

    def record(self) -> dict[str, int]:
        """What the files follow from."""
        values = {name: value for name, value in asdict(self).items() if name != "folder"}
        return {**values, "version": GENERATOR_VERSION}

    def place(self) -> Path:
        """The folder of the files: the named one, or one in the user's cache that is named by the options."""
        if self.folder is not None:
            return Path(self.folder).expanduser()
        digest = hashlib.sha256(json.dumps(self.record(), sort_keys=True).encode()).hexdigest()[:16]
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(cache).expanduser() / "largebatch" / "climate" / digest


def generated_folder(options: GeneratedOptions) -> Path:
    """The folder with the generated files; they are written on first use, once however many processes ask."""
    folder = options.place()
    if not _holds(folder, options):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _lock(folder):
                if not _holds(folder, options):
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
    return folder


def write_data_set(folder: Path, options: GeneratedOptions, workers: int = 1) -> NDArray[np.int64]:
    """Write a data set to a folder that does not exist or is empty; returns the training pixels of each class.

    The files appear all at once, when the last of them is written.
    """
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        part.chmod(0o755)
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
        assert total is not None  # there is at least one training sample
        write_stats(part / STATS_FILE, total)
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
        shutil.rmtree(part)  # another process was faster, with the same files


def _write_one(
    task: tuple[Path, GeneratedOptions, int],
) -> tuple[ChannelSummary, NDArray[np.int64]]:
    file, options, index = task
    sample = make_sample(grid_of(options.height, options.width), options.seed, index)
    labels = make_labels(sample.fields)
    write_sample(file, sample.fields, labels)
    return summary_of(sample.fields), np.bincount(labels.ravel(), minlength=len(CLASSES))


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
    """Whether the folder holds these samples; other samples, or other files, are an error."""
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
            f"cannot read {folder / _RECORD}: {error}; remove the folder, it is written anew"
        ) from error
    if found != options.record():
        raise DataError(
            f"the folder {folder} holds samples of other options, {found}, not {options.record()}; "
            "remove it or name another"
        )
    return True


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Only one process of a machine writes; over machines whose file system has no locks, the first to end wins."""
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
