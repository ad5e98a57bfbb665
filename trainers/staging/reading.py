"""Read this node's files: each is opened once, read by one of several threads, checksummed, and passed on in order."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from trainers.errors import DataError
from trainers.staging.checksum import Checksum, file_blocks
from trainers.staging.faults import READING, WRITING, StagingFaults
from trainers.staging.local_folder import LocalCopy, LocalFolder
from trainers.staging.plan import SharedFile

Opener = Callable[[Path], FileIO]

_BLOCKS_AHEAD = 16
"""The maximum number of blocks of a file that may wait to be sent (16 MB)."""


def open_unbuffered(path: Path) -> FileIO:
    """Open a file for reading in large blocks."""
    return path.open("rb", buffering=0)


@dataclass
class ReadingTask:
    """A file that this node reads: its source, whether this node keeps it, and whether other nodes wait for it."""

    file: SharedFile
    from_shared: bool
    keep: bool
    send: bool
    blocks: queue.Queue[bytes] = field(default_factory=lambda: queue.Queue(_BLOCKS_AHEAD))


class SharedFileReader:
    """Reads tasks in order on ``threads`` threads; :meth:`take` returns the bytes to send."""

    def __init__(
        self,
        shared: Path,
        local: LocalFolder,
        faults: StagingFaults,
        threads: int,
        open_shared: Opener,
    ) -> None:
        self._shared = shared
        self._local = local
        self._faults = faults
        self._open_shared = open_shared
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="staging-read")
        self._files_ahead = threads + 1
        self._outgoing: list[ReadingTask] = []
        self._taken = 0
        self._file_taken = threading.Condition()
        self._pending = b""
        self.read: list[SharedFile] = []
        self.written: list[SharedFile] = []

    def start(self, tasks: Sequence[ReadingTask]) -> None:
        """Start to read, beginning with files that other nodes wait for."""
        self._outgoing = [task for task in tasks if task.send]
        for number, task in enumerate(self._outgoing):
            self._pool.submit(self._run_soon, number, task)
        for task in tasks:
            if not task.send:
                self._pool.submit(self._run, task)

    def take(self, count: int) -> bytearray:
        """Return the next ``count`` bytes to send: each file's content, then its checksum; zeros after a fault."""
        taken = bytearray(count)
        filled = 0
        while filled < count:
            if not self._pending:
                self._pending = self._next_block()
                if self._faults.stop.is_set():
                    break
            piece = self._pending[: count - filled]
            taken[filled : filled + len(piece)] = piece
            self._pending = self._pending[len(piece) :]
            filled += len(piece)
        return taken

    def wait(self) -> None:
        """Wait until every task is done or has been abandoned after a fault."""
        self._pool.shutdown(wait=True, cancel_futures=self._faults.stop.is_set())

    def _next_block(self) -> bytes:
        while not self._faults.stop.is_set():
            try:
                block = self._outgoing[self._taken].blocks.get(timeout=0.05)
            except queue.Empty:
                continue
            if block:
                return block
            with self._file_taken:  # an empty block ends a file
                self._taken += 1
                self._file_taken.notify_all()
        return b""

    def _run_soon(self, number: int, task: ReadingTask) -> None:
        """Read the file as soon as few enough files wait to be sent, so that memory use stays bounded."""
        with self._file_taken:
            while number >= self._taken + self._files_ahead and not self._faults.stop.is_set():
                self._file_taken.wait(timeout=0.05)
        self._run(task)

    def _run(self, task: ReadingTask) -> None:
        if self._faults.stop.is_set():
            return
        copy = None
        try:
            if task.keep:
                with self._faults.noted(WRITING):
                    copy = self._local.new_copy(task.file)
            with self._faults.noted(READING):
                checksum = self._read(task, copy)
            if not self._faults.stop.is_set():
                self._finish(task, copy, checksum)
        finally:
            if copy is not None:
                copy.discard()

    def _read(self, task: ReadingTask, copy: LocalCopy | None) -> bytes:
        path = (self._shared if task.from_shared else self._local.folder) / task.file.name
        checksum, count = Checksum(), 0
        try:
            source = self._open_shared(path) if task.from_shared else open_unbuffered(path)
            with source:
                for block in file_blocks(source):
                    checksum.update(block)
                    count += len(block)
                    if self._faults.stop.is_set() or count > task.file.bytes:
                        break
                    self._hand_on(task, copy, block)
        except OSError as error:
            gone = (
                "vanished after it was listed"
                if isinstance(error, FileNotFoundError)
                else "cannot be read"
            )
            raise DataError(
                f"{path} {gone}: {error.strerror or error}; restore it and stage again"
            ) from error
        if count != task.file.bytes and not self._faults.stop.is_set():
            raise DataError(
                f"{path} was listed with {task.file.bytes} bytes, but {count} bytes were read: "
                f"the file changed or was truncated during staging; stage again once it is complete"
            )
        return checksum.digest()

    def _hand_on(self, task: ReadingTask, copy: LocalCopy | None, block: memoryview) -> None:
        if copy is not None:
            with self._faults.noted(WRITING):
                copy.write(block)
        if task.send:
            self._put(task, bytes(block))

    def _finish(self, task: ReadingTask, copy: LocalCopy | None, checksum: bytes) -> None:
        if task.send:
            self._put(task, checksum)
            self._put(task, b"")
        with self._faults.noted(WRITING):
            if copy is not None:
                copy.finish(checksum)
                self.written.append(task.file)
            if task.from_shared:
                self.read.append(task.file)

    def _put(self, task: ReadingTask, block: bytes) -> None:
        while not self._faults.stop.is_set():
            with contextlib.suppress(queue.Full):
                task.blocks.put(block, timeout=0.05)
                return
