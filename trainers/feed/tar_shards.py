"""Read samples from tar files as written by WebDataset: files in a shuffled order, each from start to end.

A sample consists of consecutive members whose file names agree up to the first dot, such as ``0001.jpg`` and
``0001.cls`` (Aizman et al., arXiv:2001.01858). Files are read sequentially, which is fast on shared and object storage.
Samples are therefore shuffled in two steps: the order of the files in an epoch, and a buffer from which the next sample
is drawn.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trainers.errors import DataError
from trainers.feed.streams import Part
from trainers.numerics.random_numbers import mixed_seed

SHUFFLE_BUFFER = 1000
"""The number of samples in the shuffle buffer, which needs 110 MB per worker for images of 110 kB."""


@dataclass(frozen=True)
class TarSample:
    """A sample: its name within the data set, and the content of its members by file extension (``jpg``, ``cls``)."""

    name: str
    contents: dict[str, bytes]


class TarShards:
    """The samples in tar files, each read by one worker; there must be at least one file per worker."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = sorted(files)

    def count(self) -> int:
        """Count the samples by reading the headers of all members."""
        return sum(1 for file in self.files for _ in _named(file))

    def in_order(self, part: Part) -> Iterator[TarSample]:
        """Yield one worker's samples in the order of files and members; a worker without a file yields none."""
        for file in self.files[part.rank :: part.size]:
            yield from read_shard(file)

    def shuffled(
        self, epoch: int, seed: int, part: Part, buffer: int = SHUFFLE_BUFFER
    ) -> Iterator[TarSample]:
        """Yield each of one worker's samples in an epoch once, in an order determined by seed, epoch and part."""
        if len(self.files) < part.size:
            raise DataError(
                f"each worker reads whole tar files, but there are {len(self.files)} files for {part.size} workers "
                f"({self.files[0].parent}); split the data set into at least {part.size} files"
            )
        generator = torch.Generator().manual_seed(mixed_seed(seed, 3, epoch))
        order = torch.randperm(len(self.files), generator=generator).tolist()
        generator.manual_seed(mixed_seed(seed, 4, epoch, part.rank))
        waiting: list[TarSample] = []
        for at in order[part.rank :: part.size]:
            for sample in read_shard(self.files[at]):
                waiting.append(sample)
                if len(waiting) > buffer:
                    yield _drawn(waiting, generator)
        while waiting:
            yield _drawn(waiting, generator)


def read_shard(file: Path) -> Iterator[TarSample]:
    """Yield the samples of one file in order; raises :class:`~trainers.errors.DataError` if it cannot be read."""
    for name, members, archive in _named(file):
        contents = {}
        for extension, member in members.items():
            try:
                content = archive.extractfile(member)
                contents[extension] = b"" if content is None else content.read()
            except (OSError, tarfile.TarError) as error:
                raise _damaged(file, error) from error
        yield TarSample(f"{file.name}/{name}", contents)


def _named(
    file: Path,
) -> Iterator[tuple[str, dict[str, tarfile.TarInfo], tarfile.TarFile]]:
    """Yield the samples of a file, by the headers of their members."""
    try:
        with tarfile.open(file, "r:") as archive:
            name, members = "", dict[str, tarfile.TarInfo]()
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # do not keep a shard's headers in memory
                if not member.isfile():
                    continue
                folder, slash, last = member.name.rpartition("/")
                stem, _, extension = last.partition(".")
                if f"{folder}{slash}{stem}" != name and members:
                    yield name, members, archive
                    members = {}
                name = f"{folder}{slash}{stem}"
                members[extension.lower()] = member
            if members:
                yield name, members, archive
    except (OSError, tarfile.TarError) as error:
        raise _damaged(file, error) from error


def _drawn(waiting: list[TarSample], generator: torch.Generator) -> TarSample:
    at = int(torch.randint(len(waiting), (1,), generator=generator))
    waiting[at], waiting[-1] = waiting[-1], waiting[at]
    return waiting.pop()


def _damaged(file: Path, error: Exception) -> DataError:
    return DataError(f"cannot read the tar file {file}: {error}; copy it again")
