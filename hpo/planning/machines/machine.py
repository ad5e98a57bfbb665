"""What a plan knows of a machine: nodes, accelerators, links, storage and scheduler, each figure with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hpo.extrapolation.inference.intervals import Interval

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")


@dataclass(frozen=True)
class FigureSource:
    """Where a figure comes from. ``checked``: it was compared with the text at ``url`` when the file was written.

    ``assumed`` marks a figure that was found nowhere; ``note`` then says why it is what it is.
    """

    title: str
    url: str = ""
    note: str = ""
    assumed: bool = False
    checked: bool = False


@dataclass(frozen=True)
class Accelerator:
    """One device that a rank computes on: a GPU, one die of a GPU with two, a TPU chip, or a processor core.

    ``peak_flops`` are flop/s by precision; ``achieved_fraction`` is the share of it that trainings reach with large
    micro batches, by precision, over workloads. ``power_watts`` is the rated power; None where it is not known.
    """

    name: str
    memory_bytes: float
    peak_flops: Mapping[str, float] = field(hash=False)
    achieved_fraction: Mapping[str, Interval] = field(hash=False)
    power_watts: float | None = None

    def computing_precision(self, precision: str) -> str:
        """The precision at which work stored in ``precision`` is computed: fp32 where the device lacks it."""
        if precision in self.peak_flops:
            return precision
        return (
            "fp32"
            if "fp32" in self.peak_flops
            else min(self.peak_flops, key=lambda each: self.peak_flops[each])
        )


@dataclass(frozen=True)
class Link:
    """A network: between nodes the bytes per second that one node sends, within a node those that one accelerator
    sends; in one direction, at its rated speed. ``latency_seconds`` is that of one small message.

    Groups of ``group_nodes`` nodes (a rack, a cell, a pod) may have a tapered way out: all their nodes together send
    ``group_nodes * bandwidth / oversubscription`` to other groups. Without groups nothing is tapered.
    """

    name: str
    bandwidth_bytes_per_second: float
    latency_seconds: float
    topology: str
    group_nodes: int | None = None
    oversubscription: float = 1.0


@dataclass(frozen=True)
class Processor:
    """The cores of a node that read, decode and augment samples. ``computes``: the ranks compute on these very cores,
    so that decoding takes them away from computation; else it goes on beside it. ``core_speed`` is the speed of one
    while all of them decode, over that of one core alone where the cost of a sample is measured; None: not known.
    """

    name: str
    cores_per_node: int
    computes: bool = False
    core_speed: float | None = None


@dataclass(frozen=True)
class Storage:
    """A file system: ``read_bytes_per_second`` in all for a shared one, of one node for a node's own disk."""

    name: str
    read_bytes_per_second: float
    capacity_bytes: float


@dataclass(frozen=True)
class Machine:
    """A machine as a plan sees it. ``sources`` has, by the figure's dotted name, where each figure comes from.

    Where ``processor`` is None nothing is known of the cores, and decoding is not counted.
    """

    name: str
    title: str
    nodes: int
    accelerators_per_node: int
    accelerator: Accelerator
    intra_node: Link
    inter_node: Link
    shared_filesystem: Storage
    node_storage: Storage | None
    scheduler: str
    sources: Mapping[str, FigureSource] = field(default_factory=dict, hash=False)
    processor: Processor | None = None

    @property
    def accelerators(self) -> int:
        """All accelerators of the machine; on a machine without any, its processor cores."""
        return self.nodes * self.accelerators_per_node

    @property
    def computes_on_cores(self) -> bool:
        """Whether its ranks compute on processor cores, and not on accelerators beside them."""
        if self.processor is not None:
            return self.processor.computes
        return "core" in self.accelerator.name.lower()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)
