"""The resources of one trial, as allocated by Ray (processes, cores and GPUs), and how many trials fit at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpo.errors import TuningError
from hpo.study.program import PROGRAM
from hpo.study.spec import StudySpec

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory

Machine = Mapping[str, float]
"""The resources of one Ray node, by kind: CPU and GPU."""


@dataclass(frozen=True)
class TrialResources:
    """The processes of one trial: ``workers_per_node`` on each of ``nodes``, with cores and GPUs per worker.

    A program starts its workers itself, and counts as one process on each node.
    """

    nodes: int
    workers_per_node: int
    cpus_per_worker: float
    gpus_per_worker: float
    program: bool

    @classmethod
    def of(cls, spec: StudySpec, machines: Sequence[Machine]) -> TrialResources:
        """Return the study's resources; by default, a worker gets one GPU if Ray has any."""
        asked = spec.resources
        gpus = asked.gpus_per_worker
        if gpus is None:
            gpus = 1.0 if any(machine.get("GPU") for machine in machines) else 0.0
        return cls(
            asked.nodes,
            asked.workers_per_node,
            asked.cpus_per_worker,
            gpus,
            spec.workload == PROGRAM,
        )

    @property
    def grouped(self) -> bool:
        """Whether the trial has several processes of this package, which its trainable starts and leads."""
        return self.nodes > 1 or (self.workers_per_node > 1 and not self.program)

    @property
    def node(self) -> dict[str, float]:
        """The resources that a trial takes on each of its nodes."""
        wanted = {
            "CPU": self.workers_per_node * self.cpus_per_worker,
            "GPU": self.workers_per_node * self.gpus_per_worker,
        }
        return {kind: count for kind, count in wanted.items() if count}

    @property
    def worker(self) -> dict[str, float]:
        """The resources that one process of the group takes on its node."""
        if self.program:
            return self.node
        return {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}

    @property
    def threads(self) -> int:
        """The number of CPU threads of one process."""
        return max(1, int(self.cpus_per_worker))

    def concurrent(self, machines: Sequence[Machine]) -> int:
        """Return how many trials fit at once; raise :class:`TuningError` if none fits, because the sweep would wait
        forever.
        """
        room = [
            min(
                math.floor(machine.get(kind, 0.0) / count + 1e-9)
                for kind, count in self.node.items()
            )
            for machine in machines
        ]
        # with several nodes per trial: the largest number of trials t such that t parts of each fit on the nodes, with
        # at most one part of each trial per node
        most = sum(room) // self.nodes
        fit = next(
            (t for t in range(most, 0, -1) if sum(min(r, t) for r in room) >= t * self.nodes), 0
        )
        if not fit:
            largest = max(
                (dict(machine) for machine in machines), key=lambda m: m.get("CPU", 0.0), default={}
            )
            raise TuningError(
                f"a trial needs {self.nodes} node{'s' if self.nodes > 1 else ''} with {_shown(self.node)} free, but "
                f"Ray has {len(machines)} node(s) of at most {_shown(largest)}; reduce resources, or add Ray nodes"
            )
        return fit

    def to_tune(self) -> PlacementGroupFactory:
        """Return the resources as a request to Tune; the trainable that leads a group needs none itself."""
        from ray.tune import PlacementGroupFactory

        if not self.grouped:
            return PlacementGroupFactory([self.node])
        strategy = "STRICT_PACK" if self.nodes == 1 else "STRICT_SPREAD"
        return PlacementGroupFactory([{}, *[self.node] * self.nodes], strategy=strategy)


def check_gpu_shares(resources: TrialResources) -> None:
    """Raise :class:`TuningError` if the requested sharing of GPUs is impossible."""
    each, node = resources.gpus_per_worker, resources.node.get("GPU", 0.0)
    if node > 1 and node != int(node):
        raise TuningError(
            f"a trial must use a fraction of one GPU, or whole GPUs, of a node, but "
            f"{resources.workers_per_node} "
            f"workers with gpus_per_worker {each:g} take {node:g}"
        )
    if resources.grouped and not resources.program and each != int(each):
        raise TuningError(
            "workers that train one model together need one GPU each (NCCL refuses two workers "
            "on one), or none, but got "
            f"gpus_per_worker {each:g}; fractions are for trials of one worker"
        )


def machines_of_ray() -> list[Machine]:
    """Return the live nodes of the running Ray cluster."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _shown(resources: Machine) -> str:
    return " and ".join(
        f"{resources[kind]:g} {kind}{'s' if resources[kind] != 1 else ''}"
        for kind in ("CPU", "GPU")
        if resources.get(kind)
    ) or "nothing"  # fmt: skip
