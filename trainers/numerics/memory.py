"""Measure memory, and keep memory that a process frees and allocates again, as in every update or step of a fit.

glibc returns the free memory at the end of its heap to the system. Every page of the next update's activations then
costs a page fault, which takes 5 to 10 % of the time of an update of a small network on a CPU
(``benchmarks/step_overhead.py``), and a third of the time of ``hpo plan``.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_KEPT_BYTES, _LARGEST_ON_HEAP = 2**30, 2**25


def held_bytes(device: torch.device) -> int | None:
    """Return the peak memory of this training run: on a GPU, the peak of allocations, which was reset when the run
    started.

    On a CPU, return the process's current memory, including everything it has loaded (statm in proc(5)), because its
    peak may stem from an earlier run. Return None if the system does not report it.
    """
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    return resident_bytes(os.getpid())


def resident_bytes(process: int) -> int | None:
    """Return the current memory of a process; None if the system does not report it or the process has ended."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def keep_freed_memory() -> bool:
    """Let this process keep up to 1 GiB of freed memory; return False if the C library has no such setting.

    Only the project's own processes (training runs and commands) call this function: a library call must not decide
    this for its caller.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
    )
