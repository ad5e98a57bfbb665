"""Machines that a plan can be made for: this one, or one described in a YAML file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpo.errors import PlanError

KEYS = ("name", "nodes", "accelerators_per_node", "source")


@dataclass(frozen=True)
class Machine:
    """A machine as a plan sees it; ``source`` says where the figures come from."""

    name: str
    nodes: int
    accelerators_per_node: int
    source: str

    def __post_init__(self) -> None:
        for name in ("nodes", "accelerators_per_node"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PlanError(f"machine {self.name}: {name} must be a whole number of at least 1, but got {value!r}")

    @property
    def accelerators(self) -> int:
        """All accelerators of the machine; on a machine without any, its processor cores."""
        return self.nodes * self.accelerators_per_node


def load_machine(name: str) -> Machine:
    """``local``, or the machine described in the YAML file of this path.

    Raises :class:`PlanError` for a file that is missing, has other keys than KEYS, or figures that cannot be.
    """
    if name == "local":
        return local_machine()
    path = Path(name)
    if not path.is_file():
        raise PlanError(f"there is no machine {name!r}: give 'local', or the path of a YAML file with the keys "
                        f"{', '.join(KEYS)}")
    return _read(path)


def local_machine() -> Machine:
    """This machine: its processor cores are its accelerators."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine("local", 1, cores, "counted on this machine")


def _read(path: Path) -> Machine:
    try:
        values: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PlanError(f"{path}: cannot be read as YAML: {error}") from error
    if not isinstance(values, dict) or set(values) != set(KEYS):
        got = ", ".join(map(str, values)) if isinstance(values, dict) else type(values).__name__
        raise PlanError(f"{path}: a machine file has exactly the keys {', '.join(KEYS)}, but got {got}")
    return Machine(str(values["name"]), values["nodes"], values["accelerators_per_node"], str(values["source"]))
