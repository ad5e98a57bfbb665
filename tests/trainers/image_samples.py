"""Generated photographs: noise whose power falls with the frequency, as in real scenes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def scene(generator: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    """An image ``(height, width, 3)``."""
    down, across = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    frequency = np.hypot(down, across)
    frequency[0, 0] = 1

    def layer(slope: float):
        noise = np.fft.rfft2(generator.standard_normal((height, width))) / frequency**slope
        values = np.fft.irfft2(noise, (height, width))
        return values / values.std()

    brightness = layer(1.0)
    channels = [128 + 50 * (brightness + 0.4 * layer(1.3)) for _ in range(3)]
    return np.clip(np.stack(channels, -1), 0, 255).astype(np.uint8)


def jpeg(pixels: NDArray[np.uint8], quality: int = 90) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=quality)
    return content.getvalue()


def write_scenes(
    folder: Path, size: tuple[int, int], per_class: int = 4, parts=("train", "val"), quality=90
) -> str:
    """A folder in ImageNet's layout with two classes of JPEGs; the second class is darker."""
    generator = np.random.default_rng(0)
    for part in parts:
        for number, name in enumerate(("cat", "dog")):
            (folder / part / name).mkdir(parents=True)
            for index in range(per_class):
                pixels = scene(generator, *size) // (1 + number)
                (folder / part / name / f"{index}.jpg").write_bytes(jpeg(pixels, quality))
    return str(folder)
