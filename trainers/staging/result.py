"""The result of a staging: the amount of data moved, and the speed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class StagingResult:
    """The amounts of data moved by this node and by all nodes; bytes are counted once per file read or written.

    ``files`` is the number of files now on this node; ``files_read`` and ``bytes_read`` count its reads from the shared
    folder; ``files_written`` and ``bytes_written`` count new data on its disk. ``shared_reads`` and
    ``shared_bytes_read`` are the sums over all nodes. ``seconds`` is the wall-clock time from the first listing until
    every node was done, including checks and waiting.
    """

    mode: str
    node: int
    nodes: int
    files: int
    files_read: int
    bytes_read: int
    files_written: int
    bytes_written: int
    shared_reads: int
    shared_bytes_read: int
    seconds: float

    @property
    def read_megabytes_per_second(self) -> float:
        """This node's read rate from the shared folder in MB/s (10^6 bytes per second)."""
        return self.bytes_read / MEGABYTE / self.seconds

    @property
    def written_megabytes_per_second(self) -> float:
        """This node's write rate to its disk in MB/s (10^6 bytes per second)."""
        return self.bytes_written / MEGABYTE / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return all figures by name, including the rates."""
        return {
            **dataclasses.asdict(self),
            "read_megabytes_per_second": self.read_megabytes_per_second,
            "written_megabytes_per_second": self.written_megabytes_per_second,
        }
