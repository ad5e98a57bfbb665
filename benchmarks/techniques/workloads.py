"""The two sets of real images on which the techniques are compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Images:
    """A set of images with its target and ladder; batch sizes are whole normalization groups of 16 samples.

    ``ladder`` ends with (nearly) the whole training set. ``target`` is a top-1 accuracy that a tuned small batch
    reaches early, ``epochs`` the budget of one training. ``goyal`` is the (small, large) pair of batch sizes and the
    rate of the small one.
    """

    name: str
    data: dict[str, Any]
    ladder: tuple[int, ...]
    target: float
    epochs: int
    evaluations_per_epoch: int
    trials: int
    goyal: tuple[int, int, float]
    goyal_epochs: int


def images(name: str, path: Path | None) -> Images:
    """Return ``digits`` from scikit-learn, or ``cifar10``, a folder in ImageNet's layout at ``path``."""
    if name == "digits":
        return Images(
            "digits",
            {"source": "digits"},
            (32, 128, 512, 1424),
            0.96,
            40,
            4,
            64,
            (32, 512, 0.1),
            30,
        )
    if path is None or not path.is_dir():
        raise SystemExit(
            f"cifar10 needs --path, the folder with train/CLASS/*.jpg and test/CLASS/*.jpg, "
            f"but got {path}"
        )
    data = {
        "source": "image_folder",
        "path": str(path),
        "image_size": 16,
        "model": "resnet8",
        "width": 8,
    }
    return Images("cifar10", data, (128, 1024, 12000), 0.30, 24, 1, 18, (64, 2048, 0.05), 9)
