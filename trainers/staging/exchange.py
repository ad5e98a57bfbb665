"""Exchange the files that the nodes read: each node broadcasts one stream of bytes, in chunks, in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from trainers.distributed.communicator import Communicator
from trainers.staging.checksum import CHECKSUM_BYTES
from trainers.staging.faults import WRITING, StagingFaults, agree_on_staging_faults
from trainers.staging.local_folder import LocalCopy, LocalFolder
from trainers.staging.plan import SharedFile
from trainers.staging.reading import SharedFileReader

CHUNK_BYTES = 16 * 2**20
_PIECES_WAITING = 8


def exchange_files(
    communicator: Communicator,
    sent: Sequence[Sequence[SharedFile]],
    reader: SharedFileReader,
    writer: StagedFileWriter,
    faults: StagingFaults,
) -> None:
    """Broadcast each node's files, ``sent[node]``, to all in rounds of chunks; a fault ends it after that round."""
    lengths = [sum(file.bytes + CHECKSUM_BYTES for file in files) for files in sent]
    incoming = [IncomingStream(files, writer) for files in sent]
    for first in range(0, max(lengths, default=0), CHUNK_BYTES):
        for node, length in enumerate(lengths):
            if first < length:
                chunk = _broadcast(communicator, node, min(CHUNK_BYTES, length - first), reader)
                if node != communicator.rank:
                    incoming[node].feed(chunk)
        agree_on_staging_faults(communicator, faults)


def _broadcast(
    communicator: Communicator, node: int, count: int, reader: SharedFileReader
) -> memoryview:
    content = reader.take(count) if node == communicator.rank else bytearray(count)
    tensor = torch.frombuffer(content, dtype=torch.uint8).to(communicator.device)
    communicator.broadcast_([tensor], root=node)
    return tensor.cpu().numpy().data


class IncomingStream:
    """Splits the bytes sent by one node back into files: the content of each, then its checksum."""

    def __init__(self, files: Sequence[SharedFile], writer: StagedFileWriter) -> None:
        self._files = list(files)
        self._writer = writer
        self._position = 0
        self._checksum = b""

    def feed(self, chunk: memoryview) -> None:
        """Process the next bytes of the stream."""
        while chunk:
            file = self._files[0]
            if self._position < file.bytes:
                piece = chunk[: file.bytes - self._position]
                self._position += len(piece)
                self._writer.write(file, piece)
            else:
                piece = chunk[: CHECKSUM_BYTES - len(self._checksum)]
                self._checksum += bytes(piece)
                if len(self._checksum) == CHECKSUM_BYTES:
                    self._writer.finish(file, self._checksum)
                    self._files.pop(0)
                    self._position, self._checksum = 0, b""
            chunk = chunk[len(piece) :]


class StagedFileWriter:
    """Writes the files that this node lacks on several threads; each file is written by one thread, in order."""

    def __init__(
        self, local: LocalFolder, missing: frozenset[str], faults: StagingFaults, threads: int
    ) -> None:
        self._local = local
        self._missing = missing
        self._faults = faults
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix="staging-write") for _ in range(threads)
        ]
        self._room = threading.Semaphore(_PIECES_WAITING)
        self._copies: dict[str, LocalCopy] = {}
        self.written: list[SharedFile] = []

    def write(self, file: SharedFile, piece: memoryview) -> None:
        """Append a piece to the file; blocks while too much data is queued."""
        self._submit(file, lambda: self._copy(file).write(piece))

    def finish(self, file: SharedFile, checksum: bytes) -> None:
        """Verify the complete file and rename it to its final name."""

        def check() -> None:
            self._copy(file).finish(checksum)
            del self._copies[file.name]
            self.written.append(file)

        self._submit(file, check)

    def wait(self) -> None:
        """Wait until all submitted data are on disk; discard unfinished files."""
        for thread in self._threads:
            thread.shutdown(wait=True)
        for copy in self._copies.values():
            copy.discard()

    def _submit(self, file: SharedFile, work: Callable[[], None]) -> None:
        if file.name in self._missing:
            self._room.acquire()
            self._threads[hash(file.name) % len(self._threads)].submit(self._run, work)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            if not self._faults.stop.is_set():
                with self._faults.noted(WRITING):
                    work()
        finally:
            self._room.release()

    def _copy(self, file: SharedFile) -> LocalCopy:
        if file.name not in self._copies:
            self._copies[file.name] = self._local.new_copy(file)
        return self._copies[file.name]
