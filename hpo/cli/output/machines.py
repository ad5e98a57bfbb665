"""Prints machines on stdout: one line each, or a single machine with every figure and its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from hpo.cli.output.style import new_console, new_table
from hpo.planning.machines import FigureSource, Link, Machine, Storage
from hpo.runs.formatting import format_number

PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def show_machines(found: Sequence[Machine]) -> None:
    """Print a table of machines."""
    table = new_table(
        "machines", "name", "nodes", "each with", "between nodes", "scheduler", "machine"
    )
    for each in found:
        table.add_row(
            each.name,
            format_number(each.nodes),
            Text(f"{each.accelerators_per_node} x {each.accelerator.name}"),
            number_with_unit(each.inter_node.bandwidth_bytes_per_second, "B/s"),
            each.scheduler,
            Text(each.title),
        )
    console = new_console()
    console.print(table)
    console.print(
        "`hpo machines NAME` shows the figures of a machine with their sources; `hpo machines "
        "NAME --yaml` prints its file, as a starting point for your own"
    )


def show_machine(machine: Machine) -> None:
    """Print every figure of one machine."""
    console = new_console()
    console.print(Text(f"{machine.name}: {machine.title}", style="bold"))
    console.print(
        Text(f"{format_number(machine.accelerators)} accelerators, scheduler {machine.scheduler}")
    )
    table = new_table("figures", "figure", "value", "source")
    for name, value, key in _figures(machine):
        table.add_row(name, value, Text(_source(machine.sources.get(key))))
    console.print(table)
    for source in dict.fromkeys(
        (each.title, each.url) for each in machine.sources.values() if each.url
    ):
        console.print(Text(f"{source[0]}: {source[1]}"))
    console.print("checked: compared with the text of the source when the file was written")


def number_with_unit(value: float, unit: str) -> str:
    """Format a value with its unit: ``25 GB/s``."""
    for size, prefix in PREFIXES:
        if value >= size:
            return f"{value / size:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _figures(machine: Machine) -> Iterator[tuple[str, str, str]]:
    """Yield the name and value of each figure, and the key of its source."""
    device = machine.accelerator
    yield "nodes", format_number(machine.nodes), "nodes"
    yield (
        f"accelerators per node ({device.name})",
        format_number(machine.accelerators_per_node),
        "accelerators_per_node",
    )
    yield "memory", number_with_unit(device.memory_bytes, "B"), "accelerator.memory_bytes"
    for precision, peak in device.peak_flops.items():
        yield (
            f"peak in {precision}",
            number_with_unit(peak, "FLOP/s"),
            f"accelerator.peak_flops.{precision}",
        )
    for precision, share in device.achieved_fraction.items():
        yield (
            f"share of the peak reached in {precision}",
            f"{share.median:.0%} ({share.low:.0%} to {share.high:.0%})",
            f"accelerator.achieved_fraction.{precision}",
        )
    if device.power_watts is not None:
        yield "power", number_with_unit(device.power_watts, "W"), "accelerator.power_watts"
    if machine.processor is not None:
        yield (
            f"cores per node ({machine.processor.name})",
            format_number(machine.processor.cores_per_node),
            "processor.cores_per_node",
        )
    if machine.processor is not None and machine.processor.core_speed is not None:
        yield (
            "  speed of a core while all decode",
            f"{machine.processor.core_speed:.0%} of a core alone",
            "processor.core_speed",
        )
    yield from _link("in a node, per accelerator", machine.intra_node, "intra_node")
    yield from _link("between nodes, per node", machine.inter_node, "inter_node")
    if machine.inter_node.group_nodes is not None:
        yield (
            "  nodes per group",
            format_number(machine.inter_node.group_nodes),
            "inter_node.taper.group_nodes",
        )
        yield (
            "  oversubscription between groups",
            format_number(machine.inter_node.oversubscription),
            "inter_node.taper.oversubscription",
        )
    yield from _storage("shared file system", machine.shared_filesystem, "shared_filesystem")
    if machine.node_storage is not None:
        yield from _storage("node storage", machine.node_storage, "node_storage")


def _link(place: str, link: Link, key: str) -> Iterator[tuple[str, str, str]]:
    yield (
        f"{place}: {link.name}, {link.topology}",
        number_with_unit(link.bandwidth_bytes_per_second, "B/s"),
        f"{key}.bandwidth_bytes_per_second",
    )
    yield "  latency per message", f"{link.latency_seconds * 1e6:.3g} µs", f"{key}.latency_seconds"


def _storage(place: str, storage: Storage, key: str) -> Iterator[tuple[str, str, str]]:
    yield (
        f"{place}: {storage.name}",
        number_with_unit(storage.read_bytes_per_second, "B/s"),
        f"{key}.read_bytes_per_second",
    )
    yield "  capacity", number_with_unit(storage.capacity_bytes, "B"), f"{key}.capacity_bytes"


def _source(source: FigureSource | None) -> str:
    if source is None:
        return ""
    note = f": {source.note}" if source.note else ""
    return f"{source.title}{' (checked)' if source.checked and source.url else ''}{note}"
