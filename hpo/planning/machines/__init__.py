"""Machines that a plan can target: the local one, one described in a YAML file here, or one in a user's own file.

::

    from hpo.planning.machines import load_machine

    load_machine("summit").accelerators     # 27648
    load_machine("my-cluster.yaml")
"""

from hpo.planning.machines.loader import (
    load_machine,
    local_machine,
    machine_names,
    machine_text,
    parse_machine,
)
from hpo.planning.machines.local import local_file, measure_local
from hpo.planning.machines.machine import (
    Accelerator,
    FigureSource,
    Link,
    Machine,
    Processor,
    Storage,
)

__all__ = [
    "Accelerator",
    "FigureSource",
    "Link",
    "Machine",
    "Processor",
    "Storage",
    "load_machine",
    "local_file",
    "local_machine",
    "machine_names",
    "machine_text",
    "measure_local",
    "parse_machine",
]
