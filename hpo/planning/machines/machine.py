"""The description of a machine: nodes, accelerators, links, storage and scheduler, each figure with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hpo.extrapolation.inference.intervals import Interval

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")


@dataclass(frozen=True)
class FigureSource:
    """Where a figure comes from.

    ``checked`` means that the figure was compared with the text at ``url`` when the file was written. ``assumed`` marks
    a figure without a published source; ``note`` then justifies it.
    """

    title: str
    url: str = ""
    note: str = ""
    assumed: bool = False
    checked: bool = False


@dataclass(frozen=True)
class Accelerator:
    """One device that a rank computes on: a GPU, one die of a dual-die GPU, a TPU chip, or a processor core.

    ``peak_flops`` holds flop/s by precision; ``achieved_fraction`` holds, by precision, the share of the peak that
    training runs reach with large micro batches, as a range over workloads. ``power_watts`` is the rated power, None if
    unknown.
    """

    name: str
    memory_bytes: float
    peak_flops: Mapping[str, float] = field(hash=False)
    achieved_fraction: Mapping[str, Interval] = field(hash=False)
    power_watts: float | None = None

    def computing_precision(self, precision: str) -> str:
        """Return the precision in which values stored in ``precision`` are computed: fp32 if the device lacks it."""
        if precision in self.peak_flops:
            return precision
        return (
            "fp32"
            if "fp32" in self.peak_flops
            else min(self.peak_flops, key=lambda each: self.peak_flops[each])
        )


@dataclass(frozen=True)
class Link:
    """A network, with its rated bandwidth in one direction: per node between nodes, per accelerator within a node.

    ``latency_seconds`` is the latency of one small message.

    Groups of ``group_nodes`` nodes (a rack, a cell, a pod) may have a tapered uplink: all nodes of a group together
    send ``group_nodes * bandwidth / oversubscription`` to other groups. Without groups there is no tapering.
    """

    name: str
    bandwidth_bytes_per_second: float
    latency_seconds: float
    topology: str
    group_nodes: int | None = None
    oversubscription: float = 1.0


@dataclass(frozen=True)
class Processor:
    """The cores of a node that read, decode and augment samples.

    If ``computes`` is true, the ranks compute on these same cores, so decoding and computation compete; otherwise they
    overlap. ``core_speed`` is the speed of a core while all cores decode, relative to a core that decodes alone (as
    when the cost of a sample is measured); None if unknown.
    """

    name: str
    cores_per_node: int
    computes: bool = False
    core_speed: float | None = None


@dataclass(frozen=True)
class Storage:
    """A file system: ``read_bytes_per_second`` is the total of a shared one, or the speed of one node's own disk."""

    name: str
    read_bytes_per_second: float
    capacity_bytes: float


@dataclass(frozen=True)
class Machine:
    """A machine, as plans see it; ``sources`` maps the dotted name of each figure to its source.

    If ``processor`` is None, the cores are unknown and decoding is not counted.
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
        """The number of accelerators of the machine, or of processor cores if it has none."""
        return self.nodes * self.accelerators_per_node

    @property
    def computes_on_cores(self) -> bool:
        """Whether ranks compute on processor cores rather than on accelerators."""
        if self.processor is not None:
            return self.processor.computes
        return "core" in self.accelerator.name.lower()

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return asdict(self)
