"""Memory that a process frees and asks for again, as a training with every update and a fit with every step.

glibc gives the free memory at the end of its heap back to the system, and every page of the next update's
activations then costs a fault: 5 to 10 % of an update of a small network on a CPU
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
    """The memory that this training has held: the peak of what was allocated on a GPU, which its start has reset.

    On a CPU what the process has in memory now, with all that it has loaded (statm in proc(5)), for its peak may be
    that of the training before; None where the system does not tell.
    """
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    return resident_bytes(os.getpid())


def resident_bytes(process: int) -> int | None:
    """The present memory of a process; None where the system does not tell, or it has ended."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def keep_freed_memory() -> bool:
    """Let this process keep up to 1 GiB that it has freed; False where the C library has no such switch.

    For processes of our own, trainings and commands; a library call must not decide this for its caller.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
    )
