"""This machine: its processor cores are its accelerators, with figures as measured, or assumed until they are.

``hpo machines local --measure`` writes them to a machine file like any other, ``HPO_LOCAL_MACHINE`` or
``~/.config/hpo/local-machine.yaml``.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import shutil
from pathlib import Path
from typing import Any

from hpo.planning.machines.machine import FigureSource, Machine
from hpo.study import yaml_text

FILE_VARIABLE = "HPO_LOCAL_MACHINE"
USUAL = "of a usual server of 2020; `hpo machines local --measure` measures it"
SHARE_NOTE = "what small networks reach of a matrix product's speed; depends on the network"
COUNTED = FigureSource("counted on this machine", checked=True)


def local_file() -> Path:
    """Where the figures of this machine are kept."""
    given = os.environ.get(FILE_VARIABLE)
    return (
        Path(given)
        if given
        else Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        / "hpo"
        / "local-machine.yaml"
    )


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> float:
    """The main memory, in bytes."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def document(
    figures: dict[str, float], source: dict[str, str], sources: dict[str, Any]
) -> dict[str, Any]:
    """A machine file of this machine: measured or assumed ``figures``, each with ``source``, beside what is counted."""

    def figure(name: str) -> dict[str, Any]:
        return {"value": figures[name], **source}

    link = {
        "name": "loopback",
        "bandwidth_bytes_per_second": figure("bandwidth"),
        "latency_seconds": figure("latency"),
        "topology": "one node",
    }
    counted = {"source": "counted"}
    processor = {
        "name": "the same cores",
        "cores_per_node": {"value": cores(), **counted},
        "computes": True,
    }
    if "core_speed" in figures:
        processor["core_speed"] = figure("core_speed")
    disk = {
        "name": "disk",
        "read_bytes_per_second": figure("disk"),
        "capacity_bytes": {"value": float(shutil.disk_usage(Path.cwd()).total), **counted},
    }
    share = {"low": 0.1, "median": 0.3, "high": 0.6, "source": "assumed", "note": SHARE_NOTE}
    return {
        "name": "local",
        "title": "this machine",
        "sources": {**sources, "counted": {"title": COUNTED.title, "checked": True}},
        "nodes": {"value": 1, **counted},
        "accelerators_per_node": {"value": cores(), **counted},
        "accelerator": {
            "name": "processor core",
            "memory_bytes": {"value": memory_bytes() / cores(), **counted},
            "peak_flops": {"fp32": figure("flops")},
            "achieved_fraction": {"fp32": share},
        },
        "processor": processor,
        "intra_node": link,
        "inter_node": link,
        "shared_filesystem": disk,
        "node_storage": disk,
        "scheduler": "local",
    }


def assumed() -> str:
    """The machine file of this machine before anything was measured."""
    return yaml_text.write(
        document(
            {"flops": 5e10, "bandwidth": 2e9, "latency": 3e-5, "disk": 5e8},
            {"source": "assumed", "note": USUAL},
            {},
        )
    )


def measure_local() -> Path:
    """Measure this machine and keep its figures; returns the file."""
    from hpo.planning.machines.measure import measure

    found = measure(cores(), Path.cwd())
    figures = {
        "flops": found.flops_per_core,
        "bandwidth": found.loopback_bytes_per_second,
        "latency": found.loopback_seconds,
        "disk": found.disk_bytes_per_second,
        "core_speed": found.core_speed,
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


def with_cores(machine: Machine) -> Machine:
    """The machine with the cores that this process may use now, whatever they were when it was measured."""
    processor = machine.processor and dataclasses.replace(machine.processor, cores_per_node=cores())
    return dataclasses.replace(
        machine, name="local", nodes=1, accelerators_per_node=cores(), processor=processor
    )
