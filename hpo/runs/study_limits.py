"""Limits the memory and disk space that a study may use on a worker's machine, and watches them while it runs.

Memory has two limits. The kernel's limit (``RLIMIT_DATA``, setrlimit(2)) applies to each process: an allocation beyond
it raises a MemoryError, and the trial fails. The sum over all processes of the worker is checked here, because the
kernel can limit it only with cgroups, which require privileges. If the sum exceeds its limit, the largest process is
killed and the study ends. Disk use is measured in the study's folders.

Processes are found by an environment variable and by their parents, whatever their session. Processes that a Ray
cluster runs on other machines are not found, and none are found without /proc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hpo.tuning.periodic import PeriodicThread

MARK = "HPO_WORKER_PROCESS"
"""Environment variable that the processes of a worker inherit; its value is the worker's process id."""
LOOK_SECONDS = 1.0
DISK_SECONDS = 5.0
SHARE_OF_MEMORY = 0.9
DISK_BYTES = 100_000_000_000
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class StudyLimits:
    """The maximum bytes of memory for all processes of a study together, and of disk space for its folders."""

    memory_bytes: int
    disk_bytes: int

    @classmethod
    def of(cls, memory_bytes: int | None, disk_bytes: int | None) -> StudyLimits:
        """Return the given limits; those not given default to 90 % of the machine's memory and 100 GB of disk space."""
        memory = memory_bytes or int(SHARE_OF_MEMORY * memory_here())
        return cls(memory, disk_bytes or DISK_BYTES)


def memory_here() -> int:
    """Return the bytes of memory available to processes here, as limited by the machine or the container."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" means no limit
            found.append(int(Path(path).read_text(encoding="ascii")))
    return min(found)


def bound_process_memory(limits: StudyLimits) -> None:
    """Limit the memory of this process and of every process that it starts from now on."""
    import resource  # only POSIX has this module, and clients on other systems also read results

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = [each for each in (soft, hard, limits.memory_bytes) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), min(bounds)))


class LimitWatch(PeriodicThread):
    """Watches the limits from a thread; a context manager. ``excess`` names the limit that was exceeded, or is ""."""

    def __init__(self, limits: StudyLimits, folders: Sequence[Path]) -> None:
        super().__init__("limits", LOOK_SECONDS)
        self.excess = ""
        self._limits, self._folders = limits, folders
        self._disk_at = time.monotonic()

    def __enter__(self) -> Self:
        os.environ[MARK] = str(os.getpid())  # inherited by processes started from now on
        return super().__enter__()

    def tick(self) -> None:
        """Check the memory, and less often the disk."""
        self._look_at_memory()
        if time.monotonic() - self._disk_at >= DISK_SECONDS:
            self._look_at_disk()
            self._disk_at = time.monotonic()

    def _look_at_memory(self) -> None:
        taken = memory_of_worker()
        total, most = sum(taken.values()), self._limits.memory_bytes
        if total <= most:
            return
        self.excess = self.excess or (
            f"its processes used {_gigabytes(total)} of memory, but on this worker a study may "
            f"use {_gigabytes(most)}; use a smaller micro batch or fewer trials at once (resources)"
        )
        taken.pop(os.getpid(), None)
        if taken:
            largest = max(taken, key=lambda pid: taken[pid])
            with contextlib.suppress(OSError):
                os.kill(largest, signal.SIGKILL)

    def _look_at_disk(self) -> None:
        total, most = disk_bytes(self._folders, self.ended.is_set), self._limits.disk_bytes
        if total > most:
            self.excess = self.excess or (
                f"its folders hold {_gigabytes(total)}, but on this worker a study may use "
                f"{_gigabytes(most)} of disk; see {', '.join(map(str, self._folders))}"
            )


def memory_of_worker() -> dict[int, int]:
    """Return the private memory in bytes of each process of this worker, by process id; {} without /proc."""
    parents: dict[int, int] = {}
    private: dict[int, int] = {}
    ours = {os.getpid()}
    mark, page = f"{MARK}={os.getpid()}\0".encode(), os.sysconf("SC_PAGE_SIZE")
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended or is another user's
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            resident, shared = (entry / "statm").read_text().split()[1:3]
            private[pid] = (int(resident) - int(shared)) * page
            if mark in (entry / "environ").read_bytes() + b"\0":
                ours.add(pid)
    level = ours
    while level:
        level = {pid for pid, parent in parents.items() if parent in level} - ours
        ours |= level
    return {pid: private[pid] for pid in ours if pid in private}


def disk_bytes(folders: Sequence[Path], stopped: Callable[[], bool] = lambda: False) -> int:
    """Return the bytes on disk of all files below the folders, without following links; vanished files are ignored."""
    total = 0
    for folder in folders:
        for at, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(at, name)).st_blocks * 512  # noqa: PTH118 (many files)
            if stopped():
                return total
    return total


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
