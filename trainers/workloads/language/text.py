"""Read text as bytes, and cut it into windows for training and evaluation.

The last tenth of every file is held out, regardless of the sequence length, so that models of any size and context
length are scored on the same bytes.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from search_spaces.names import nearest_or_all
from trainers.errors import DataError

SOURCES = ("python", "text")


class ByteWindows:
    """Windows of ``length + 1`` bytes of a text: the input and, shifted by one, the next bytes.

    A window's last byte is the next window's first; otherwise, windows do not overlap. If only some are requested, they
    are spread evenly over the text. ``text`` is ``(bytes,)`` uint8; ``what`` names the text in errors; ``option`` is
    the data option that sets ``samples``, where None means all. Raises DataError if there are too few windows.
    """

    def __init__(
        self, text: Tensor, length: int, samples: int | None, *, what: str, option: str
    ) -> None:
        self.available = max(0, (text.numel() - 1) // length)
        if self.available < 1:
            raise DataError(
                f"the {what} text has {text.numel():,} bytes, and one sample of sequence_length {length} needs "
                f"{length + 1:,}; give more text in path, or a smaller sequence_length"
            )
        if samples is not None and samples > self.available:
            raise DataError(
                f"{option} must be at most {self.available:,}, the sequences of {length} bytes in the {what} text, "
                f"but got {samples:,}; give more text in path, or a smaller sequence_length"
            )
        self.text, self.length = text, length
        self.samples = self.available if samples is None else samples

    def take(self, indices: Tensor) -> Tensor:
        """Return the windows at ``indices``, ``(n,)`` int64, as ``(n, length + 1)`` uint8."""
        starts = indices * self.available // self.samples * self.length
        return self.text[starts[:, None] + torch.arange(self.length + 1)]


def read_text(data: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the training and the held-out text, ``(bytes,)`` uint8 each; raises DataError if there is no text."""
    source = data.get("source", "python")
    if source not in SOURCES:
        raise DataError(f"there is no source {source!r}{nearest_or_all(str(source), SOURCES)}")
    path = data.get("path")
    if source == "python":
        if path is not None:
            raise DataError("path names the files of source 'text', but the source is 'python'")
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        missing = "this Python installation has no sources of its standard library"
    else:
        if not isinstance(path, str) or not path:
            raise DataError(f"source 'text' needs path, a file or a folder, but got {path!r}")
        files = _files(Path(path))
        missing = f"there is no text in {path}"
    try:
        texts = [file.read_bytes() for file in files]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
    if not any(texts):
        raise DataError(f"{missing}; give a file or a folder with source 'text' and path")
    kept = [len(text) - len(text) // 10 for text in texts]
    training = b"".join(text[:end] for text, end in zip(texts, kept, strict=True))
    held_out = b"".join(text[end:] for text, end in zip(texts, kept, strict=True))
    return _tensor(training), _tensor(held_out)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    if path.is_file():
        return [path]
    raise DataError(f"path must be a file or a folder, but nothing exists at {path}")


def _tensor(text: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())
