"""Image decoders behind one interface: libjpeg-turbo through simplejpeg if it is installed, otherwise Pillow.

Both decode JPEGs with libjpeg-turbo's accurate inverse DCT and smooth upsampling, so that their pixels are the same;
simplejpeg writes them directly to an array, in about two thirds of the time, and stops after the last row needed.
Pillow decodes all other files (PNG, CMYK, damaged files).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from search_spaces.names import nearest_or_all
from trainers.errors import DataError
from trainers.feed.jpeg_rows import first_jpeg_rows

Pixels = NDArray[np.uint8]
"""The pixels of an image, ``(height, width, 3)``: red, green and blue."""

REDUCTIONS = (8, 4, 2, 1)
"""Divisors of an image's sides that libjpeg's decoder applies cheaply, by scaling the DCT."""


class ImageDecoder(Protocol):
    """Decodes the content of an image file; may be called by several threads at once."""

    name: str

    def size(self, content: bytes) -> tuple[int, int]:
        """Return the width and height in pixels from the file's header; raises ValueError or OSError."""

    def pixels(self, content: bytes, reduction: int = 1, rows: int | None = None) -> Pixels:
        """Return the image, its sides divided by ``reduction`` if the format allows; raises ValueError or OSError.

        If ``rows`` is given, the rows of the stored image below the first ``rows`` may be missing.
        """


class PillowDecoder:
    """Decodes every format that Pillow reads."""

    name = "pillow"

    def size(self, content: bytes) -> tuple[int, int]:
        """Return width and height, in pixels."""
        with Image.open(io.BytesIO(content)) as image:
            return image.size

    def pixels(self, content: bytes, reduction: int = 1, rows: int | None = None) -> Pixels:  # noqa: ARG002
        """Return the image with all of its rows; only JPEGs are reduced."""
        with Image.open(io.BytesIO(content)) as image:
            if reduction > 1:
                image.draft("RGB", (image.width // reduction, image.height // reduction))
            return np.array(image.convert("RGB"))  # a copy: Pillow's own array is read-only


class SimpleJpegDecoder:
    """Decodes JPEGs with simplejpeg, which bundles libjpeg-turbo and releases the GIL, other formats with Pillow."""

    name = "simplejpeg"

    def __init__(self) -> None:
        import simplejpeg

        self._decode = simplejpeg.decode_jpeg
        self._head = simplejpeg.decode_jpeg_header
        self._others = PillowDecoder()

    def size(self, content: bytes) -> tuple[int, int]:
        """Return width and height, in pixels."""
        try:
            height, width, _, _ = self._head(content)
        except ValueError:
            return self._others.size(content)
        return int(width), int(height)

    def pixels(self, content: bytes, reduction: int = 1, rows: int | None = None) -> Pixels:
        """Return the image; only JPEGs are reduced and cut below ``rows``."""
        try:
            return self._decoded(content, reduction, rows)
        except ValueError:
            return self._others.pixels(content, reduction)

    def _decoded(self, content: bytes, reduction: int, rows: int | None) -> Pixels:
        # two more rows after the reduction: colour interpolation needs one of them
        upper = None if rows is None else first_jpeg_rows(content, rows + 2 * reduction)
        found = content if upper is None else upper
        least = {}
        if reduction > 1:
            height, width, _, _ = self._head(found)
            least = {
                "min_height": -(-int(height) // reduction),
                "min_width": -(-int(width) // reduction),
                "min_factor": reduction,
            }
        # strict mode would turn libjpeg's warning (more data than rows) into an error; damage inside an otherwise
        # complete JPEG also causes only a warning and gives wrong pixels, as with Pillow
        decoded: Pixels = self._decode(found, strict=upper is None, **least)
        return decoded


_DECODERS: dict[str, Callable[[], ImageDecoder]] = {
    SimpleJpegDecoder.name: SimpleJpegDecoder,
    PillowDecoder.name: PillowDecoder,
}
"""The decoders, from the fastest to the slowest."""

DECODERS = tuple(_DECODERS)


def open_image_decoder(name: str | None = None) -> ImageDecoder:
    """Return the decoder ``name``, or the fastest one installed; raises :class:`~trainers.errors.DataError`."""
    if name is not None and name not in _DECODERS:
        raise DataError(f"there is no decoder {name!r}{nearest_or_all(str(name), DECODERS)}")
    for each in DECODERS if name is None else (name,):
        try:
            return _DECODERS[each]()
        except ImportError as error:
            missing = error
    raise DataError(
        f"the decoder {name!r} is not installed; pip install {name}, or leave the option decoder out"
    ) from missing


def read_image(file: Path) -> bytes:
    """Return the content of a file; raises :class:`~trainers.errors.DataError` if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise unreadable_image(file, error) from error


def unreadable_image(name: object, error: Exception) -> DataError:
    """Return the error for an image that no decoder can read."""
    text = "no known format" if isinstance(error, UnidentifiedImageError) else str(error)
    return DataError(f"cannot read the image {name}: {text}; remove it or replace it")
