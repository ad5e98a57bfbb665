"""Choose the crop of an image for a sample, and scale it to the model's input size.

The random crop follows Szegedy et al. (arXiv:1409.4842, section 6) and Goyal et al. (arXiv:1706.02677), with
torchvision's procedure (``RandomResizedCrop.get_params``): the area is uniform between 8 % and 100 % of the image's
area, and the logarithm of the aspect ratio is uniform between log 3/4 and log 4/3. A crop that does not fit in the
image is drawn again, up to ten times; after that, the largest centred crop with an aspect ratio within the limits is
used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from trainers.feed.decoders import REDUCTIONS, ImageDecoder, Pixels

TRIES = 10
LEAST_AREA, LEAST_ASPECT, LARGEST_ASPECT = 0.08, 3 / 4, 4 / 3
UNIFORMS = 2 * TRIES + 2
"""The number of uniform numbers per crop: area and aspect ratio for each attempt, then the position (down, right)."""

CENTRE_SHARE = 224 / 256
"""The share of the shorter side that is used in evaluation: the central 224 pixels of an image scaled to 256 (Goyal et
al., section 5.1).
"""


@dataclass(frozen=True, slots=True)
class ImageCrop:
    """A rectangular part of an image, in whole pixels."""

    left: int
    top: int
    width: int
    height: int


def random_crop(width: int, height: int, uniforms: Sequence[float]) -> ImageCrop:
    """Return the crop of an image of ``width`` x ``height`` pixels from :data:`UNIFORMS` uniform numbers in [0, 1)."""
    shortest, longest = math.log(LEAST_ASPECT), math.log(LARGEST_ASPECT)
    for at in range(0, 2 * TRIES, 2):
        area = width * height * (LEAST_AREA + (1 - LEAST_AREA) * uniforms[at])
        aspect = math.exp(shortest + (longest - shortest) * uniforms[at + 1])
        cut_width = round(math.sqrt(area * aspect))
        cut_height = round(math.sqrt(area / aspect))
        if 0 < cut_width <= width and 0 < cut_height <= height:
            top = int(uniforms[-2] * (height - cut_height + 1))
            left = int(uniforms[-1] * (width - cut_width + 1))
            return ImageCrop(left, top, cut_width, cut_height)
    aspect = min(max(width / height, LEAST_ASPECT), LARGEST_ASPECT)
    cut_width = min(width, round(height * aspect))
    cut_height = min(height, round(width / aspect))
    return ImageCrop((width - cut_width) // 2, (height - cut_height) // 2, cut_width, cut_height)


def centre_crop(width: int, height: int, share: float = CENTRE_SHARE) -> ImageCrop:
    """Return the centred square whose side is ``share`` of the shorter side."""
    side = max(1, round(min(width, height) * share))
    return ImageCrop((width - side) // 2, (height - side) // 2, side, side)


def largest_reduction(crop: ImageCrop, size: int) -> int:
    """Return the largest reduction during decoding that keeps at least ``size`` pixels per side of the crop.

    A smaller crop would have to be enlarged again and would be blurred; the remaining reduction uses a filter.
    """
    shorter = min(crop.width, crop.height)
    # rounding to whole pixels of the reduced image may lose one pixel
    return next((each for each in REDUCTIONS if shorter >= each * (size + 1)), 1)


def decode_crop(
    decoder: ImageDecoder, content: bytes, crop: ImageCrop, image_size: tuple[int, int], size: int
) -> torch.Tensor:
    """Return the crop of an encoded image of ``image_size`` (width, height), scaled to ``(1, 3, size, size)`` uint8.

    Scaling is bilinear, with a filter as wide as the reduction to avoid aliasing, as in Pillow. Raises ValueError or
    OSError if the content cannot be decoded.
    """
    width, height = image_size
    reduction = largest_reduction(crop, size)
    pixels = decoder.pixels(content, reduction, crop.top + crop.height)
    rows, columns, _ = pixels.shape
    if rows != height:  # reduced, or without the rows below the crop
        rows = height if columns == width else -(-height // reduction)
    part = pixels[_span(crop.top, crop.height, rows, height)][
        :, _span(crop.left, crop.width, columns, width)
    ]
    return scaled_crop(part, size)


def scaled_crop(pixels: Pixels, size: int) -> torch.Tensor:
    """Return ``(height, width, 3)`` pixels as ``(1, 3, size, size)`` in the memory format channels_last."""
    # the first dimension needs the stride of a batch, or PyTorch does not recognise channels_last: it would return
    # channels first, and take more than twice as long
    image = torch.from_numpy(np.ascontiguousarray(pixels)).unsqueeze(0).permute(0, 3, 1, 2)
    if image.shape[2:] == (size, size):
        return image
    return F.interpolate(image, (size, size), mode="bilinear", antialias=True)


def _span(first: int, count: int, decoded: int, original: int) -> slice:
    """Return the slice of ``decoded`` pixels that covers ``first`` to ``first + count`` of ``original`` pixels."""
    if decoded == original:
        return slice(first, first + count)
    scale = decoded / original
    start = round(first * scale)
    return slice(start, max(start + 1, min(decoded, round((first + count) * scale))))
