"""Horovod and NCCL settings derived from a plan, each with its reason."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hpo.planning.placement.rates import step_options
from hpo.planning.plan import Plan

MIB = 2**20
MANY_NODES = 512
BETWEEN_NODES = {"ring": "allreduce:ring", "tree": "allreduce:tree"}
"""NCCL's syntax since 2.24: an algorithm alone would apply to every collective, and a tree cannot broadcast."""
WITHIN_THEN_BETWEEN = ("hierarchical", "hybrid")


@dataclass(frozen=True)
class EnvironmentVariable:
    """One environment variable of the launch script, and the reason for its value."""

    name: str
    value: str
    why: str


def environment_variables(
    plan: Plan, backend: str, *, on_cores: bool
) -> tuple[EnvironmentVariable, ...]:
    """Return the environment of the ranks, with the all-reduce and fusion that the plan's time assumes.

    See Sergeev and Del Balso, arXiv:1802.05799, and Horovod's and NCCL's lists of environment variables.
    """
    options = time_options(plan)
    found = [
        EnvironmentVariable("OMP_NUM_THREADS", "${OMP_NUM_THREADS:-1}", "CPU threads per rank")
    ]
    if backend == "horovod":
        found += _horovod(plan, options)
    elif not on_cores:
        found += [
            EnvironmentVariable(
                "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                "1",
                "a rank that loses its peer exits instead of waiting",
            )
        ]
    return (*found, *([] if on_cores else _nccl(plan, options)))


def time_options(plan: Plan) -> dict[str, Any]:
    """Return the options of the time model (:class:`hpo.planning.timing.step_time.StepOptions`) behind a plan."""
    stored = (plan.details or {}).get("options")
    return dict(stored) if stored else dataclasses.asdict(step_options(plan.job.settings))


def all_reduce_argument(plan: Plan, backend: str) -> str:
    """Return the trainer's ``--all-reduce`` option for the plan; Horovod takes environment variables instead."""
    chosen = time_options(plan)["all_reduce"]
    if backend != "torch" or plan.nodes == 1:
        return "default"
    return {"torus": "torus", "hierarchical": "hierarchical", "hybrid": "masters"}.get(
        chosen, "default"
    )


def _horovod(plan: Plan, options: dict[str, Any]) -> list[EnvironmentVariable]:
    found = []
    fusion = options["fusion_bytes"]
    found.append(
        EnvironmentVariable(
            "HOROVOD_FUSION_THRESHOLD",
            str(round(fusion)),
            f"gradients are fused into buckets of {fusion / MIB:.3g} MiB, as the plan assumes",
        )
    )
    if plan.ranks_per_node > 1 and plan.nodes > 1:
        within = options["all_reduce"] in WITHIN_THEN_BETWEEN
        why = (
            "sum within each node first, then over one rank of each node, as the plan's time assumes"
            if within
            else "one sum over all ranks, as the plan's time assumes; 1 would sum within each node first"
        )
        found.append(EnvironmentVariable("HOROVOD_HIERARCHICAL_ALLREDUCE", str(int(within)), why))
    if options["all_reduce"] == "torus":
        found.append(
            EnvironmentVariable(
                "HOROVOD_TORUS_ALLREDUCE",
                "1",
                "sum along the rows of a 2D torus, then along its columns",
            )
        )
    return found


def _nccl(plan: Plan, options: dict[str, Any]) -> list[EnvironmentVariable]:
    found = [EnvironmentVariable("NCCL_DEBUG", "WARN", "NCCL reports why it fails")]
    algorithm = BETWEEN_NODES.get(options["all_reduce"])
    if algorithm and plan.nodes > 1:
        found.append(
            EnvironmentVariable(
                "NCCL_ALGO",
                algorithm,
                "the plan's time assumes this algorithm; if unset, NCCL chooses",
            )
        )
    if plan.nodes >= MANY_NODES:
        found.append(
            EnvironmentVariable(
                "NCCL_IB_TIMEOUT",
                "22",
                "a timeout of 17 s instead of 4 s, for a busy network of many nodes",
            )
        )
    return found
