"""Small subsets of a folder of images, as links: the first images of each class."""

from __future__ import annotations

from pathlib import Path


def link_subset(images: Path, folder: Path, *, train: int | None, test: int | None) -> Path:
    """Link the first ``train`` training and ``test`` test images of each class into ``folder``, and return it.

    ``images`` holds train/CLASS and test/CLASS; None links all images of a class.
    """
    for split, most in (("train", train), ("test", test)):
        for category in sorted((images / split).iterdir()):
            (folder / split / category.name).mkdir(parents=True, exist_ok=True)
            for file in sorted(category.iterdir())[:most]:
                link = folder / split / category.name / file.name
                if not link.exists():
                    link.symlink_to(file.absolute())
    return folder
