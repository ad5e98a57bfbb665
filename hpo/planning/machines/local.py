"""The local machine: its accelerators are its GPUs, or its cores if it has none; figures are assumed until measured.

``hpo machines local --measure`` writes an ordinary machine file to the path in ``HPO_LOCAL_MACHINE`` or, by default, to
``~/.config/hpo/local-machine.yaml``.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo.planning.machines.machine import FigureSource, Machine
from hpo.study import yaml_text
from trainers.distributed.device import DEVICE_VARIABLE

FILE_VARIABLE = "HPO_LOCAL_MACHINE"
USUAL = "typical of a server from 2020; `hpo machines local --measure` measures it"
RATED = "rated by the manufacturer; `hpo machines local --measure` measures it"
SHARE_NOTE = "share of a matrix product's speed that small networks reach; depends on the network"
SHARES = {"vector": (0.28, 0.45, 0.80), "matrix": (0.10, 0.20, 0.33)}
SHARES_NOTE = (
    "shares of the peak that published training runs reach; see hpo/planning/machines/README.md"
)
QUERY_SECONDS = 10.0
PEAKS: Mapping[str, Mapping[str, float]] = {
    "H200": {"fp32": 6.7e13, "tf32": 4.95e14, "bf16": 9.89e14, "fp16": 9.89e14},
    "H100": {"fp32": 6.7e13, "tf32": 4.95e14, "bf16": 9.89e14, "fp16": 9.89e14},
    "A100": {"fp32": 1.95e13, "tf32": 1.56e14, "bf16": 3.12e14, "fp16": 3.12e14},
    "V100": {"fp32": 1.57e13, "fp16": 1.25e14},
    "": {"fp32": 1.5e13, "tf32": 6e13, "bf16": 1.2e14, "fp16": 1.2e14},
}
"""Rated flop/s without sparsity, by part of a GPU's name (NVIDIA's data sheets for SXM cards); "" is any other GPU."""
COUNTED = FigureSource("counted on this machine", checked=True)


@dataclass(frozen=True)
class Gpu:
    """A GPU in this machine."""

    name: str
    memory_bytes: float


def local_gpus() -> list[Gpu]:
    """Return the GPUs that local training may use: as many of those ``nvidia-smi`` lists as CUDA_VISIBLE_DEVICES names.

    The list is empty if HPO_DEVICE is cpu, or if ``nvidia-smi`` is missing or does not answer.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "" or os.environ.get(DEVICE_VARIABLE) == "cpu" or not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = [Gpu(name.strip(), 2**20 * float(size)) for name, size in _pairs(told)]
    return found if visible is None else found[: len(visible.split(","))]


def _pairs(told: str) -> list[tuple[str, str]]:
    """Return the GPU name and MiB in each line, leaving out lines without a number (GPUs that report no memory)."""
    lines = [line.rpartition(",") for line in told.splitlines()]
    return [(name, size) for name, _, size in lines if size.strip().isdigit()]


def local_file() -> Path:
    """Return the path of the file that describes this machine."""
    given = os.environ.get(FILE_VARIABLE)
    return (
        Path(given)
        if given
        else Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        / "hpo"
        / "local-machine.yaml"
    )


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> float:
    """Return the main memory, in bytes."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def document(
    figures: dict[str, float], source: dict[str, str], sources: dict[str, Any]
) -> dict[str, Any]:
    """Return a machine file for this machine: measured or assumed ``figures`` from ``source``, and counted figures."""

    def figure(name: str) -> dict[str, Any]:
        return {"value": figures[name], **source}

    link = {
        "name": "loopback",
        "bandwidth_bytes_per_second": figure("bandwidth"),
        "latency_seconds": figure("latency"),
        "topology": "one node",
    }
    counted = {"source": "counted"}
    here = local_gpus()
    processor: dict[str, Any] = {
        "name": "cores beside the GPUs" if here else "the same cores",
        "cores_per_node": {"value": cores(), **counted},
        "computes": not here,
    }
    if "core_speed" in figures:
        processor["core_speed"] = figure("core_speed")
    disk = {
        "name": "disk",
        "read_bytes_per_second": figure("disk"),
        "capacity_bytes": {"value": float(shutil.disk_usage(Path.cwd()).total), **counted},
    }
    return {
        "name": "local",
        "title": "this machine",
        "sources": {**sources, "counted": {"title": COUNTED.title, "checked": True}},
        "nodes": {"value": 1, **counted},
        "accelerators_per_node": {"value": len(here) or cores(), **counted},
        "accelerator": _of_gpu(here[0], figures) if here else _of_core(figure("flops")),
        "processor": processor,
        "intra_node": link,
        "inter_node": link,
        "shared_filesystem": disk,
        "node_storage": disk,
        "scheduler": "local",
    }


def _of_core(flops: dict[str, Any]) -> dict[str, Any]:
    share = {"low": 0.1, "median": 0.3, "high": 0.6, "source": "assumed", "note": SHARE_NOTE}
    return {
        "name": "processor core",
        "memory_bytes": {"value": memory_bytes() / cores(), "source": "counted"},
        "peak_flops": {"fp32": flops},
        "achieved_fraction": {"fp32": share},
    }


def _of_gpu(gpu: Gpu, figures: Mapping[str, float]) -> dict[str, Any]:
    """Return the GPU with its rated peaks, or with peaks measured in matrix products."""
    rated = next(peaks for name, peaks in PEAKS.items() if name in gpu.name)
    peaks = {}
    for precision, flops in rated.items():
        measured = figures.get(f"gpu_{precision}")
        peaks[precision] = (
            {"value": measured, "source": "measured"}
            if measured
            else {"value": flops, "source": "assumed", "note": RATED}
        )
    shares = {
        precision: dict(
            zip(("low", "median", "high"), SHARES[_unit(precision)], strict=True),
            source="assumed",
            note=SHARES_NOTE,
        )
        for precision in peaks
    }
    return {
        "name": gpu.name,
        "memory_bytes": {"value": gpu.memory_bytes, "source": "counted"},
        "peak_flops": peaks,
        "achieved_fraction": shares,
    }


def _unit(precision: str) -> str:
    return "vector" if precision == "fp32" else "matrix"


def assumed() -> str:
    """Return the machine file for this machine before any measurement."""
    return yaml_text.write(
        document(
            {"flops": 5e10, "bandwidth": 2e9, "latency": 3e-5, "disk": 5e8},
            {"source": "assumed", "note": USUAL},
            {},
        )
    )


def measure_local() -> Path:
    """Measure this machine, save its figures, and return the path of the file."""
    from hpo.planning.machines.measure import measure_machine

    found = measure_machine(cores(), Path.cwd(), gpu=bool(local_gpus()))
    figures = {
        "flops": found.flops_per_core,
        "bandwidth": found.loopback_bytes_per_second,
        "latency": found.loopback_seconds,
        "disk": found.disk_bytes_per_second,
        "core_speed": found.core_speed,
        **{f"gpu_{precision}": flops for precision, flops in found.gpu_flops.items()},
    }
    title = f"measured by `hpo machines local --measure` on {datetime.datetime.now().astimezone():%Y-%m-%d}"
    path = local_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        yaml_text.write(
            document(
                {name: float(f"{value:.4g}") for name, value in figures.items()},
                {"source": "measured"},
                {"measured": {"title": title, "checked": True}},
            )
        ),
        encoding="utf-8",
    )
    return path


def as_now(machine: Machine) -> Machine | None:
    """Return the machine with the GPUs and cores available now, which may differ from when it was measured.

    Return None if it was measured with GPUs and has none now, or vice versa.
    """
    here = local_gpus()
    if machine.computes_on_cores == bool(here):
        return None
    processor = machine.processor and dataclasses.replace(machine.processor, cores_per_node=cores())
    return dataclasses.replace(
        machine,
        name="local",
        nodes=1,
        accelerators_per_node=len(here) or cores(),
        processor=processor,
    )
