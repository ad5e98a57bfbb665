"""The cost per sample of well-known workloads at their published sizes, for plans without a model at hand."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from hpo.errors import PlanError
from hpo.study import yaml_text
from hpo.study.faults import shown_value
from search_spaces.names import did_you_mean
from trainers.cost import FIGURES, NEEDED_FIGURES, WHOLE_FIGURES, WorkloadCost

MAY_BE_0 = ("sample_bytes", "host_seconds_per_sample", "evaluation_samples")
"""Figures that may be 0: samples may stay in memory or need no preparation, and evaluations may go uncounted."""


def workload_cost_names() -> list[str]:
    """Return the names of the workloads that :func:`home_cost` accepts."""
    return sorted(_table())


def home_cost(name: str) -> WorkloadCost:
    """Return the cost of a workload at its published size; ``costs.yaml`` has the source of each figure.

    Raises :class:`PlanError` for an unknown name.
    """
    if name not in _table():
        raise PlanError(
            f"there are no published costs for {name!r}{did_you_mean(name, workload_cost_names())}; "
            f"the choices are {', '.join(workload_cost_names())}"
        )
    figures = {key: entry["value"] for key, entry in _table()[name].items() if key != "title"}
    return WorkloadCost(**figures)


def cost_sources(name: str) -> dict[str, str]:
    """Return the source of each figure of a workload."""
    home_cost(name)
    return {key: str(entry["source"]) for key, entry in _table()[name].items() if key != "title"}


@functools.lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    document = yaml_text.read(
        (files("hpo.planning.timing") / "costs.yaml").read_text(encoding="utf-8")
    )
    return dict(document.value)


def given_or_measured_cost(
    measured: WorkloadCost | None, given: str | WorkloadCost | None
) -> WorkloadCost | None:
    """Return the given cost (a name, a file or a value), or else the measured one; None if there is neither.

    Raises :class:`PlanError` for an unknown name, and for a file that does not hold costs.
    """
    if given is None:
        return measured
    if isinstance(given, WorkloadCost):
        return _checked(dataclasses.asdict(given), "cost")
    if given in workload_cost_names():
        return home_cost(given)
    if not Path(given).is_file():
        raise PlanError(
            f"cost must be one of {', '.join(workload_cost_names())} or the path of a file with the keys "
            f"{', '.join(FIGURES)}, but there is no {given!r}{did_you_mean(given, workload_cost_names())}"
        )
    return _read(Path(given))


def _read(path: Path) -> WorkloadCost:
    try:
        document = yaml_text.read(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"{path}: a file of costs must be readable UTF-8 text, but {error}"
        ) from error
    values = document.value
    if (
        document.faults
        or not isinstance(values, dict)
        or not set(NEEDED_FIGURES) <= set(values) <= set(FIGURES)
    ):
        got = (
            document.faults[0].message
            if document.faults
            else ", ".join(map(str, values))
            if isinstance(values, dict)
            else shown_value(values)
        )
        raise PlanError(
            f"{path}: a file of costs has the keys {', '.join(NEEDED_FIGURES)}, and may have "
            f"{' and '.join(FIGURES[len(NEEDED_FIGURES) :])}, but got {got}"
        )
    return _checked(values, str(path))


def _checked(values: Mapping[str, Any], where: str) -> WorkloadCost:
    """Return the cost with these figures; if one is invalid, the :class:`PlanError` names its origin, ``where``."""
    for name, value in values.items():
        whole, enough = (
            name in WHOLE_FIGURES,
            "of at least 0" if name in MAY_BE_0 else "above 0",
        )
        right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not right or not 0 <= value < math.inf or (value == 0 and name not in MAY_BE_0):
            raise PlanError(
                f"{where}: {name} must be a {'whole' if whole else 'finite'} number {enough}, "
                f"but got {shown_value(value)}"
            )
    return WorkloadCost(**values)
