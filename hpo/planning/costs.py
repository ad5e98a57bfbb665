"""What a sample of well-known workloads costs at their published sizes, for plans without a model at hand."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any

from hpo import yaml_text
from hpo.errors import PlanError
from hpo.study_faults import nearest
from trainers.cost import WorkloadCost


def cost_names() -> list[str]:
    """The workloads that :func:`home_cost` knows."""
    return sorted(_table())


def home_cost(name: str) -> WorkloadCost:
    """The cost of a workload at its published size; ``costs.yaml`` has the source of each figure.

    Raises :class:`PlanError` for an unknown name.
    """
    if name not in _table():
        raise PlanError(f"the published costs are those of {', '.join(cost_names())}, but got {name!r}"
                        f"{nearest(name, cost_names())}")
    figures = {key: entry["value"] for key, entry in _table()[name].items() if key != "title"}
    return WorkloadCost(**figures)


def cost_sources(name: str) -> dict[str, str]:
    """Where each figure of a workload comes from."""
    home_cost(name)
    return {key: str(entry["source"]) for key, entry in _table()[name].items() if key != "title"}


@functools.lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    document = yaml_text.read((files("hpo.planning") / "costs.yaml").read_text(encoding="utf-8"))
    return dict(document.value)
