"""A node's local folder, where files appear only when complete and checksums survive an interruption."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trainers.errors import DataError
from trainers.private_files import lock_file
from trainers.staging.checksum import file_checksum
from trainers.staging.plan import SharedFile


@contextlib.contextmanager
def local_folder(folder: Path, source: Mapping[str, Any]) -> Iterator[LocalFolder]:
    """Open ``folder`` for one staging at a time; ``source`` identifies what is staged into it."""
    private = folder / ".staging"
    try:
        private.mkdir(parents=True, exist_ok=True)
        lock = (private / "lock").open("w")
    except OSError as error:
        raise DataError(f"cannot write to the local folder {folder}: {error.strerror}") from error
    with lock:
        try:
            lock_file(lock)
        except OSError as error:
            raise DataError(
                f"another staging process is working in {folder}; start one staging process "
                f"per node"
            ) from error
        opened = LocalFolder(folder, source)
        with opened.journal:
            yield opened


class LocalFolder:
    """The files in one folder and their manifest, which has a line per staged file and a line per finished staging."""

    def __init__(self, folder: Path, source: Mapping[str, Any]) -> None:
        self.folder = folder
        self._manifest = folder / ".staging" / "manifest.jsonl"
        self._lock = threading.Lock()
        self._number = 0
        lines = _lines(self._manifest)
        self._check_source(lines, source)
        self.entries = {line["file"]: line for line in lines if "file" in line}
        self._history = [line for line in lines if "staging" in line]
        for left_over in (folder / ".staging").glob("*.part"):
            left_over.unlink(missing_ok=True)
        self._rewrite(source)
        self.journal = self._manifest.open("a", encoding="utf-8")

    def holds(self, file: SharedFile) -> bool:
        """Return whether this version of the shared file is already staged here with its original checksum."""
        entry = self.entries.get(file.name)
        if entry is None or (entry["bytes"], entry["modified_ns"]) != (
            file.bytes,
            file.modified_ns,
        ):
            return False
        path = self.folder / file.name
        try:
            return path.stat().st_size == file.bytes and file_checksum(path).hex() == entry["crc32"]
        except OSError:
            return False

    def remove_all_but(self, names: set[str]) -> None:
        """Delete files from an earlier staging that this staging does not need; no other file is touched."""
        for name in set(self.entries) - names:
            (self.folder / name).unlink(missing_ok=True)
            del self.entries[name]

    def check_space(self, needed_bytes: int) -> None:
        """Raise :class:`~trainers.errors.DataError` unless the disk has enough free space."""
        free = shutil.disk_usage(self.folder).free
        if needed_bytes > free:
            raise DataError(
                f"the disk of {self.folder} is too full: the staging needs {needed_bytes / 1e6:.1f} MB "
                f"more, but {free / 1e6:.1f} MB are free; free some space, or stage in mode 'partition'"
            )

    def new_copy(self, file: SharedFile) -> LocalCopy:
        """Create a file to be written here; it gets its final name once its checksum has been verified."""
        with self._lock:
            self._number += 1
            part = self.folder / ".staging" / f"{self._number}.part"
        try:
            return LocalCopy(self, file, part, part.open("w+b", buffering=0))
        except OSError as error:
            raise write_fault(self.folder / file.name, error) from error

    def record(self, line: Mapping[str, Any]) -> None:
        """Append one line to the manifest."""
        with self._lock:
            self.journal.write(json.dumps(line) + "\n")
            self.journal.flush()

    def _check_source(self, lines: list[dict[str, Any]], source: Mapping[str, Any]) -> None:
        earlier = next((line["source"] for line in lines if "source" in line), source)
        if earlier != source:
            raise DataError(
                f"{self.folder} holds files staged from {earlier['shared']} (pattern "
                f"{earlier['pattern']!r}), not from {source['shared']} (pattern {source['pattern']!r}); "
                "stage into another folder, or delete this one"
            )

    def _rewrite(self, source: Mapping[str, Any]) -> None:
        """Rewrite the manifest without repeated lines of files staged again, or a last line cut off by a crash."""
        lines = [{"source": source}, *self.entries.values(), *self._history]
        fresh = self._manifest.with_suffix(".new")
        try:
            fresh.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            fresh.replace(self._manifest)
        except OSError as error:
            raise write_fault(self._manifest, error) from error


@dataclass
class LocalCopy:
    """One file being copied to the local disk."""

    local: LocalFolder
    file: SharedFile
    part: Path
    handle: BinaryIO

    def write(self, block: bytes | memoryview) -> None:
        """Append a block to the copy."""
        try:
            view = memoryview(block)
            while view:
                view = view[self.handle.write(view) :]
        except OSError as error:
            raise write_fault(self.local.folder / self.file.name, error) from error

    def finish(self, checksum: bytes) -> None:
        """Read the file back, compare it with ``checksum``, rename it to its final name and add it to the manifest."""
        path = self.local.folder / self.file.name
        try:
            self.handle.close()
            if (found := file_checksum(self.part)) != checksum:
                raise DataError(
                    f"{path} differs from the shared file after the copy (CRC-32 {found.hex()}, not "
                    f"{checksum.hex()}); the disk or the network damaged the copy, so stage again"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            self.part.replace(path)
            self.local.record(
                {
                    "file": self.file.name,
                    "bytes": self.file.bytes,
                    "modified_ns": self.file.modified_ns,
                    "crc32": checksum.hex(),
                }
            )
        except OSError as error:
            raise write_fault(path, error) from error

    def discard(self) -> None:
        """Abandon and delete the copy."""
        self.handle.close()
        self.part.unlink(missing_ok=True)


def write_fault(path: Path, error: OSError) -> DataError:
    """Explain a failed write to the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"the disk is full while {path} is staged ({error.strerror}); free some space and "
            f"start the staging again: it continues with this file"
        )
    return DataError(f"cannot write {path}: {error.strerror or error}")


def _lines(manifest: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a manifest; torn or foreign lines are ignored, and their files are fetched again."""
    try:
        texts = manifest.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"cannot read the manifest {manifest}: {error.strerror}") from error
    lines = []
    for text in texts:
        with contextlib.suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and _complete(line):
                lines.append(line)
    return lines


def _complete(line: dict[str, Any]) -> bool:
    return "file" not in line or {"bytes", "modified_ns", "crc32"} <= line.keys()
