"""Plan a staging: list the files, and decide which node reads each from the shared folder and which nodes keep it."""

from __future__ import annotations

import fnmatch
import heapq
import os
import random
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from search_spaces.names import nearest_or_all
from trainers.errors import DataError

MODES = ("all", "partition")


@dataclass(frozen=True)
class SharedFile:
    """A file in the shared folder, with its relative path (using ``/``), size and modification time."""

    name: str
    bytes: int
    modified_ns: int


@dataclass(frozen=True)
class StagingPlan:
    """The files in order; ``reader[i]`` is the node that reads file i, and ``kept`` are the files this node keeps."""

    files: tuple[SharedFile, ...]
    reader: tuple[int, ...]
    kept: frozenset[int]


def list_shared_files(shared: Path, pattern: str) -> tuple[SharedFile, ...]:
    """Return the files below ``shared`` whose names match ``pattern``, sorted by path, except hidden ones."""
    if not shared.is_dir():
        raise DataError(f"the shared folder {shared} is not a folder that this node can read")
    found = []
    for folder, folders, names in os.walk(shared, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            _describe(shared, Path(folder, name))
            for name in names
            if fnmatch.fnmatch(name, pattern) and not name.startswith(".")
        ]
    files = sorted((file for file in found if file is not None), key=lambda file: file.name)
    if not files:
        raise DataError(
            f"the shared folder {shared} has no file that matches {pattern!r}; staging needs "
            f"at least one file"
        )
    return tuple(files)


def _unreadable(error: OSError) -> None:
    raise DataError(f"cannot list {error.filename}: {error.strerror}") from error


def _describe(shared: Path, path: Path) -> SharedFile | None:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"cannot stage {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        return None
    return SharedFile(path.relative_to(shared).as_posix(), found.st_size, found.st_mtime_ns)


def make_plan(
    files: tuple[SharedFile, ...],
    node: int,
    nodes: int,
    mode: str,
    seed: int,
    files_per_node: int | None,
) -> StagingPlan:
    """Return the reader of each file, the same on every node, and the files that ``node`` keeps.

    If ``files_per_node`` is less than the node's base share, files that no node keeps are not read at all.
    """
    if mode == "all":
        if files_per_node is not None:
            raise DataError(
                f"files_per_node needs the mode 'partition', but got {files_per_node} with "
                f"mode 'all'"
            )
        return StagingPlan(files, balanced_readers(files, nodes), frozenset(range(len(files))))
    if mode != "partition":
        raise DataError(f"there is no staging mode {mode!r}{nearest_or_all(mode, MODES)}")
    order = list(range(len(files)))
    random.Random(seed).shuffle(order)
    reader = [0] * len(files)
    for position, file in enumerate(order):
        reader[file] = position % nodes
    return StagingPlan(files, tuple(reader), _share(order, node, nodes, seed, files_per_node))


def balanced_readers(files: Sequence[SharedFile], nodes: int) -> tuple[int, ...]:
    """Assign a reader to each file, largest first, to the least loaded node, so that nodes read about equal bytes."""
    laden = [(0, node) for node in range(nodes)]
    reader = [0] * len(files)
    for file in sorted(range(len(files)), key=lambda i: (-files[i].bytes, i)):
        load, node = heapq.heappop(laden)
        reader[file] = node
        heapq.heappush(laden, (load + files[file].bytes, node))
    return tuple(reader)


def _share(
    order: Sequence[int], node: int, nodes: int, seed: int, count: int | None
) -> frozenset[int]:
    own = order[node::nodes]
    if count is None:
        if not own:
            raise DataError(
                f"mode 'partition' needs a file for each node, but got {len(order)} files and {nodes} "
                "nodes; use fewer nodes, files_per_node, or mode 'all'"
            )
        return frozenset(own)
    if not 1 <= count <= len(order):
        raise DataError(
            f"files_per_node must lie in [1, {len(order)}], the number of files, but got {count}"
        )
    mine = set(own)
    others = [file for file in order if file not in mine]
    extra = random.Random(f"{seed} {node}").sample(others, max(0, count - len(own)))
    return frozenset([*own[:count], *extra])
