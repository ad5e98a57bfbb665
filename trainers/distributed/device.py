"""Choose a worker's device, its fp32 precision, and the CPU cores closest to it.

A worker uses the GPU whose index is its local rank. Two workers never share a GPU: NCCL does not allow it, and each
worker would be half as fast. Importing this module does not import torch.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.names import nearest_or_all
from trainers.errors import DeviceError

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store  # type: ignore[attr-defined]

DEVICES = ("auto", "cpu", "cuda")
"""The names of devices; ``auto`` is a GPU if PyTorch finds one, else the CPU."""

DEVICE_VARIABLE = "HPO_DEVICE"
"""The environment variable used if ``--device`` is not given; workers inherit it from ``hpo launch``."""

COMPILE_VARIABLE = "HPO_COMPILE"
"""The environment variable used if ``--compile`` is not given; see :mod:`trainers.loop.compiled`."""

SYSTEM_FILES = Path("/sys")


def wanted_device(given: str | None = None) -> str:
    """Return one of DEVICES: ``given`` or else the environment variable; raise :class:`DeviceError` if unknown."""
    wanted = given or os.environ.get(DEVICE_VARIABLE) or "auto"
    if wanted not in DEVICES:
        raise DeviceError(f"there is no device {wanted!r}{nearest_or_all(wanted, DEVICES)}")
    return wanted


def gpu_count() -> int:
    """Return the number of GPUs that PyTorch can use here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(local_rank: int = 0, local_size: int = 1, wanted: str = "auto") -> torch.device:
    """Return the device of worker ``local_rank`` of ``local_size`` on this node; a GPU becomes the current device.

    If there are several workers and this one sees only one GPU, it uses that GPU, on the assumption that the launcher
    has given each worker its own; :func:`claim_gpu` checks this. Raises :class:`DeviceError` if there are more workers
    than GPUs, or if no GPU is found.
    """
    import torch

    count = 0 if wanted == "cpu" else gpu_count()
    if not count:
        if wanted == "cuda":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            raise DeviceError(
                "--device cuda needs a GPU that PyTorch can use, but it finds none here "
                f"({'CUDA_VISIBLE_DEVICES is not set' if visible is None else f'CUDA_VISIBLE_DEVICES={visible!r}'}; "
                f"CUDA {torch.version.cuda or 'is not in this build of PyTorch'}); use --device cpu"
            )
        return torch.device("cpu")
    if 1 < count < local_size:
        raise DeviceError(_too_many(f"{local_size} workers on this node", count))
    device = torch.device("cuda", 0 if count == 1 else local_rank)
    torch.cuda.set_device(device)
    return device


def claim_gpu(store: Store, device: torch.device, rank: int) -> None:
    """Claim the GPU in the workers' common store; raise :class:`DeviceError` if another worker already has it."""
    if device.type != "cuda":
        return
    first: bytes = store.compare_set(f"gpu/{_identity(device)}", "", str(rank))
    if first.decode() != str(rank):
        raise DeviceError(
            _too_many(
                f"workers {first.decode()} and {rank}, which were assigned the same GPU of "
                f"{socket.gethostname()}",
                gpu_count(),
            )
        )


def configure_gpu(device: torch.device, precision: str) -> None:
    """Configure a GPU: fp32 matrix products and convolutions use TF32 only if ``precision`` is ``tf32``.

    PyTorch's own default is TF32 in convolutions and fp32 in products. cuDNN benchmarks its algorithms for each input
    shape, unless ``torch.use_deterministic_algorithms`` is on. On a CPU this function does nothing.
    """
    import torch

    if device.type != "cuda":
        return
    kind = "tf32" if precision == "tf32" else "ieee"
    backends: Any = torch.backends  # its type stubs omit these switches
    for each in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        each.fp32_precision = kind
    backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()


def pin_near_gpu(device: torch.device, local_rank: int, local_size: int) -> int | None:
    """Pin this process to its share of the cores of its GPU's NUMA node; return the number of cores.

    If the NUMA node is unknown, a launcher has chosen the cores, or there is no GPU, change nothing and return None.
    """
    if device.type != "cuda" or not hasattr(os, "sched_setaffinity"):
        return None
    shared_with = [_pci_address(each) for each in (range(local_size) if gpu_count() > 1 else ())]
    mine = cores_near(_pci_address(device.index or 0), shared_with, local_rank)
    if not mine:
        return None
    os.sched_setaffinity(0, mine)
    return len(mine)


def cores_near(
    address: str, addresses: list[str], local_rank: int, files: Path | None = None
) -> set[int]:
    """Return this worker's share of the cores in the NUMA node of the GPU at a PCI address.

    The workers in one NUMA node share its cores. ``addresses`` are the PCI addresses of this node's GPUs, in worker
    order; ``files`` is where Linux exposes its devices (SYSTEM_FILES if None). The result is empty if the
    NUMA node is unknown or the process is already restricted to some cores. Both hardware threads of a core go to the
    same worker.
    """
    files = files or SYSTEM_FILES
    nodes = {each: _numa_node(each, files) for each in {address, *addresses}}
    allowed = os.sched_getaffinity(0)
    if nodes[address] is None or allowed != _listed(files / "devices/system/cpu/online"):
        return set()
    cores = sorted(_listed(files / f"devices/system/node/node{nodes[address]}/cpulist") & allowed)
    sharing = [rank for rank, each in enumerate(addresses) if nodes[each] == nodes[address]] or [
        local_rank
    ]
    return set(cores[sharing.index(local_rank) :: len(sharing)] if local_rank in sharing else cores)


def _too_many(who: str, count: int) -> str:
    return (
        f"each worker needs its own GPU (NCCL refuses two workers on one), but there are "
        f"{count} for {who}; start at most {count} per node, or train on the CPU with --device cpu"
    )


def _identity(device: torch.device) -> str:
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


def _pci_address(index: int) -> str:
    import torch

    found: Any = torch.cuda.get_device_properties(index)
    if not hasattr(found, "pci_bus_id"):  # an older PyTorch, with which no NUMA node is found
        return ""
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def _numa_node(address: str, files: Path) -> int | None:
    """Return the NUMA node's number; None if it is not reported (Linux reports -1 on single-node machines)."""
    try:
        number = int((files / f"bus/pci/devices/{address}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return None if number < 0 else number


def _listed(file: Path) -> set[int]:
    """Return the numbers in a file that holds a list such as ``0-3,8-11``; an empty set if there is no such file."""
    try:
        parts = file.read_text().strip().split(",")
    except OSError:
        return set()
    found = set[int]()
    for part in filter(None, parts):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
