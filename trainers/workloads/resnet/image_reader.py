"""Read image files into batches of bytes on a pool of threads, and normalize the batches on the device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainers.feed.crops import CENTRE_SHARE, centre_crop, decode_crop, random_crop
from trainers.feed.decoders import ImageDecoder, open_image_decoder, read_image, unreadable_image
from trainers.feed.pool import DecodingPool

IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The mean and standard deviation of each channel (red, green and blue), where white is 1."""

Files = list[tuple[Path, int]]
"""Image files, each with its class number."""

_LOG = logging.getLogger(__name__)


class ImageReader:
    """Decodes, crops, scales and flips images, with the same pixels for any number of threads.

    ``decoder`` names one of :data:`~trainers.feed.decoders.DECODERS` (None: the fastest installed one), ``threads`` is
    the number of decoding threads (None: this process's share of the cores).
    """

    def __init__(self, decoder: str | None = None, threads: int | None = None) -> None:
        self.decoder: ImageDecoder = open_image_decoder(decoder)
        self.pool = DecodingPool(threads)
        self._pinned = False
        _LOG.info("images are decoded by %s on %d threads", self.decoder.name, self.pool.threads)

    def use_device(self, device: torch.device) -> None:
        """Set the device; batches for a GPU are decoded into pinned memory, from which it can copy directly."""
        self._pinned = device.type == "cuda"

    def batch(
        self,
        files: Files,
        size: int,
        uniforms: Sequence[Sequence[float]] | None = None,
        centre_share: float = CENTRE_SHARE,
    ) -> tuple[Tensor, Tensor]:
        """Return the files' images ``(n, 3, size, size)`` uint8, channels last in memory, and classes ``(n,)`` int64.

        ``uniforms`` are the random numbers of each image: the first for its flip, the others for its crop. If it is
        None, images are centre-cropped.
        """
        images = self.images([(file, None) for file, _ in files], size, uniforms, centre_share)
        return images, torch.tensor([number for _, number in files])

    def images(
        self,
        named: Sequence[tuple[Path, None] | tuple[str, bytes]],
        size: int,
        uniforms: Sequence[Sequence[float]] | None = None,
        centre_share: float = CENTRE_SHARE,
    ) -> Tensor:
        """Return images ``(n, 3, size, size)`` as in :meth:`batch`, from files or from (name, content) pairs."""
        batch = torch.empty(len(named), size, size, 3, dtype=torch.uint8, pin_memory=self._pinned)

        def read(index: int) -> None:
            name, content = named[index]
            if content is None:
                content = read_image(Path(name))
            drawn = None if uniforms is None else uniforms[index]
            batch[index] = self.image(content, name, size, drawn, centre_share)

        self.pool.run(read, len(named))
        return batch.permute(0, 3, 1, 2)

    def image(
        self,
        content: bytes,
        name: object,
        size: int,
        uniforms: Sequence[float] | None = None,
        centre_share: float = CENTRE_SHARE,
    ) -> Tensor:
        """Return one image, ``(size, size, 3)`` uint8, from the content of its file; ``name`` is for error messages."""
        try:
            width, height = self.decoder.size(content)
            crop = (
                centre_crop(width, height, centre_share)
                if uniforms is None
                else random_crop(width, height, uniforms[1:])
            )
            image = decode_crop(self.decoder, content, crop, (width, height), size)
        except (OSError, ValueError) as error:
            raise unreadable_image(name, error) from error
        if uniforms is not None and uniforms[0] < 0.5:
            image = image.flip(3)
        return image[0].permute(1, 2, 0)


def normalize_images(images: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Convert images ``(n, 3, height, width)`` of bytes to float32, ``(images / 255 - mean) / deviation``.

    Images that are channels last in memory remain so. On a CPU each image passes through the cache once.
    """
    shift = torch.tensor([-each / spread for each, spread in zip(mean, deviation, strict=True)])
    scale = torch.tensor([1 / (255 * each) for each in deviation])
    shift, scale = (values.view(1, -1, 1, 1).to(images.device) for values in (shift, scale))
    if images.device.type != "cpu":
        return torch.addcmul(shift, images, scale)
    result = torch.empty_like(images, dtype=torch.float32)
    for into, image in zip(torch.split(result, 1), torch.split(images, 1), strict=True):
        torch.addcmul(shift, into.copy_(image), scale, out=into)
    return result
