"""Machine files: the ones shipped with the service, and a user's own.

A figure is ``{value: 25e9, source: KEY}`` where KEY is one of the file's ``sources``, or ``{value: 2e-6, source:
assumed, note: why}``; a user's own file may give bare numbers. See README.md next to the shipped files.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from hpo.errors import PlanError
from hpo.planning.machines import local
from hpo.planning.machines.figures import MachineFileReader
from hpo.planning.machines.machine import (
    PRECISIONS,
    Accelerator,
    Link,
    Machine,
    Processor,
    Storage,
)
from hpo.planning.schedulers import SCHEDULERS
from hpo.study import yaml_text
from hpo.study.faults import dotted_location
from hpo.study.yaml_text import Location
from search_spaces.names import did_you_mean

KEYS = (
    "name",
    "title",
    "sources",
    "nodes",
    "accelerators_per_node",
    "accelerator",
    "processor",
    "intra_node",
    "inter_node",
    "shared_filesystem",
    "node_storage",
    "scheduler",
)
OPTIONAL = ("sources", "node_storage", "processor")
ACCELERATOR_OPTIONAL = ("power_watts",)
ACCELERATOR_KEYS = ("name", "memory_bytes", "peak_flops", "achieved_fraction", "power_watts")
LINK_KEYS = ("name", "bandwidth_bytes_per_second", "latency_seconds", "topology")
TAPER_KEYS = ("group_nodes", "oversubscription")
PROCESSOR_KEYS = ("name", "cores_per_node", "computes", "core_speed")
STORAGE_KEYS = ("name", "read_bytes_per_second", "capacity_bytes")
LOCAL = "local"


def machine_names() -> list[str]:
    """Return the names of the machines that come with the service, ``local`` first."""
    shipped = sorted(
        entry.name.removesuffix(".yaml")
        for entry in files(__package__).iterdir()
        if entry.name.endswith(".yaml")
    )
    return [LOCAL, *shipped]


def load_machine(name: str | Path) -> Machine:
    """Load ``local``, one of :func:`machine_names`, or the machine in the YAML file at this path.

    Raises :class:`PlanError` for a name that is none of these, and for a file with an unknown key or with a figure that
    is missing, not finite or not above 0; the message has one line for each fault.
    """
    if str(name) == LOCAL:
        return local_machine()
    if str(name) in machine_names():
        return parse_machine(machine_text(str(name)), f"{name}.yaml")
    path = Path(name)
    if not path.is_file():
        raise PlanError(
            f"machine must be {', '.join(machine_names())} or the path of a machine file, but there is no "
            f"{str(name)!r}{did_you_mean(str(name), machine_names())}"
        )
    try:
        return parse_machine(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"{path}: a machine file must be readable UTF-8 text, but {error}"
        ) from error


def local_machine() -> Machine:
    """Return this machine as measured, or with assumed figures if it was never measured or its GPUs have changed."""
    path = local.local_file()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return parse_machine(local.assumed(), LOCAL)
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"{path}: the measured figures of this machine cannot be read: {error}; remove the "
            f"file or measure again with `hpo machines local --measure`"
        ) from error
    return local.as_now(parse_machine(text, str(path))) or parse_machine(local.assumed(), LOCAL)


def machine_text(name: str) -> str:
    """Return the text of a shipped machine file, which can serve as a template for a user's own."""
    if name == LOCAL:
        return local.assumed()
    return (files(__package__) / f"{name}.yaml").read_text(encoding="utf-8")


def parse_machine(text: str, place: str) -> Machine:
    """Return the machine described by a YAML text; errors refer to the file as ``place``."""
    document = yaml_text.read(text)
    if document.faults:
        raise PlanError(
            "\n".join(
                f"{place}{f', line {fault.line}' if fault.line else ''}: "
                f"{fault.message.replace('a study file', 'a machine file')}"
                for fault in document.faults
            )
        )
    reader = MachineFileReader(document, place)
    machine = _machine(reader) if reader.mapping((), KEYS, OPTIONAL) else None
    if reader.faults or machine is None:
        raise PlanError(
            "\n".join(
                message for _, message in sorted(reader.faults, key=lambda fault: fault[0] or 0)
            )
        )
    return machine


def _machine(reader: MachineFileReader) -> Machine:
    return Machine(
        name=reader.text(("name",)),
        title=reader.text(("title",)),
        nodes=reader.count(("nodes",)),
        accelerators_per_node=reader.count(("accelerators_per_node",)),
        accelerator=_accelerator(reader),
        intra_node=_link(reader, "intra_node"),
        inter_node=_link(reader, "inter_node"),
        shared_filesystem=_storage(reader, "shared_filesystem"),
        node_storage=_storage(reader, "node_storage")
        if reader.at(("node_storage",)) is not None
        else None,
        scheduler=reader.text(("scheduler",), among=SCHEDULERS),
        sources=reader.sources,
        processor=_processor(reader),
    )


def _processor(reader: MachineFileReader) -> Processor | None:
    top = "processor"
    if not (
        reader.at((top,)) is not None
        and reader.mapping((top,), PROCESSOR_KEYS, optional=PROCESSOR_KEYS[2:])
    ):
        return None
    return Processor(
        reader.text((top, "name")),
        reader.count((top, "cores_per_node")),
        reader.flag((top, "computes")),
        reader.positive((top, "core_speed")) if reader.has((top, "core_speed")) else None,
    )


def _accelerator(reader: MachineFileReader) -> Accelerator:
    top = "accelerator"
    if not (reader.has((top,)) and reader.mapping((top,), ACCELERATOR_KEYS, ACCELERATOR_OPTIONAL)):
        return Accelerator("", 1.0, {}, {})
    peaks, shares = (top, "peak_flops"), (top, "achieved_fraction")
    before = len(reader.faults)
    named, reached = _precisions(reader, peaks), _precisions(reader, shares)
    if (
        named != reached
        and len(reader.faults) == before
        and reader.has(peaks)
        and reader.has(shares)
    ):
        reader.fault(
            shares,
            f"{dotted_location(shares)} must have the precisions of {dotted_location(peaks)} ({', '.join(named)}), but "
            f"got {', '.join(reached) or 'none'}",
        )
    return Accelerator(
        name=reader.text((top, "name")),
        memory_bytes=reader.positive((top, "memory_bytes")),
        peak_flops={each: reader.positive((*peaks, each)) for each in named},
        achieved_fraction={each: reader.share((*shares, each)) for each in reached},
        power_watts=reader.positive((top, "power_watts"))
        if reader.has((top, "power_watts"))
        else None,
    )


def _precisions(reader: MachineFileReader, location: Location) -> list[str]:
    value = reader.at(location)
    if value is None or not reader.mapping(location, PRECISIONS, optional=PRECISIONS):
        return []
    found = [each for each in PRECISIONS if each in value]
    if not value:
        reader.fault(
            location,
            f"{dotted_location(location)} must have at least one of {', '.join(PRECISIONS)}, but got none",
        )
    return found


def _link(reader: MachineFileReader, name: str) -> Link:
    optional = ("taper",) if name == "inter_node" else ()  # links within a node are not tapered
    if not (reader.has((name,)) and reader.mapping((name,), (*LINK_KEYS, *optional), optional)):
        return Link("", 1.0, 1.0, "")
    group, oversubscription = _taper(reader, (name, "taper"))
    return Link(
        reader.text((name, "name")),
        reader.positive((name, "bandwidth_bytes_per_second")),
        reader.positive((name, "latency_seconds")),
        reader.text((name, "topology")),
        group,
        oversubscription,
    )


def _taper(reader: MachineFileReader, location: Location) -> tuple[int | None, float]:
    """Return the nodes per group and the oversubscription of a group's uplinks; None and 1 if not given."""
    if reader.at(location) is None or not reader.mapping(location, TAPER_KEYS):
        return None, 1.0
    group = reader.count((*location, "group_nodes"))
    factor = reader.positive((*location, "oversubscription"))
    if factor < 1:
        reader.fault(
            (*location, "oversubscription"),
            f"{dotted_location((*location, 'oversubscription'))} must be at least 1, the bandwidth of a "
            f"group's nodes divided by that of its uplinks, but got {factor:g}",
        )
    return group, factor


def _storage(reader: MachineFileReader, name: str) -> Storage:
    if not _section(reader, (name,), STORAGE_KEYS):
        return Storage("", 1.0, 1.0)
    return Storage(
        reader.text((name, "name")),
        reader.positive((name, "read_bytes_per_second")),
        reader.positive((name, "capacity_bytes")),
    )


def _section(reader: MachineFileReader, location: Location, keys: tuple[str, ...]) -> bool:
    return reader.has(location) and reader.mapping(location, keys)
