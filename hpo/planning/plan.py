"""A plan: what to launch, its expected time, and whether to trust it; written to a folder as JSON and a script."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo.errors import PlanError
from hpo.extrapolation.inference.intervals import BestMetric, Interval
from hpo.planning.machines import Machine
from hpo.study.jobs import training_job
from hpo.study.sizes import settings_at_full_scale
from hpo.study.spec import StudySpec
from search_spaces.divisors import divisors_of
from search_spaces.settings import TrainingSettings
from storage.records import PlanKind
from trainers.errors import JobError
from trainers.job import TrainingJob
from trainers.schedules.batch_size import batch_sizes

BUDGET_FACTOR = 1.5
"""A planned run may train for this many times the upper end of its forecast."""


SAVE_AFTER = "save_after_minutes"
"""The key, in the failures of a plan's details, of the minutes after which the trainer saves at an evaluation."""


@dataclass(frozen=True)
class Plan:
    """One launchable run; ``epochs`` and ``seconds`` to the target are 90 % intervals, or None for a baseline.

    ``workers`` counts the ranks of all nodes, ``ranks_per_node`` those of one node (by default as many as needed).
    ``slot_seconds`` is the time that the run may take, and ``chance_in_slot`` the probability that it reaches its
    target within that time. ``accelerator_hours`` and ``energy_kwh`` are 90 % intervals too. ``details`` holds the
    explanation of the plan as plain JSON values (:func:`hpo.planning.placement.planner.explained`) and, under
    ``machine_file``, the path of a user's own machine file. For a fixed budget, ``epochs`` is that budget and ``best``
    is the forecast of the metric within it.
    """

    study: str
    kind: PlanKind
    machine: str
    nodes: int
    workers: int
    job: TrainingJob
    epochs: Interval | None
    seconds: Interval | None
    trust: str
    reason: str
    id: int | None = None
    ranks_per_node: int = 0
    launcher: str = "local"
    slot_seconds: float | None = None
    chance_in_slot: float | None = None
    limited_by: str = ""
    accelerator_hours: Interval | None = None
    energy_kwh: Interval | None = None
    details: dict[str, Any] | None = None
    best: BestMetric | None = None

    def __post_init__(self) -> None:
        if not self.ranks_per_node:
            object.__setattr__(self, "ranks_per_node", -(-self.workers // self.nodes))

    @property
    def global_batch_size(self) -> int:
        """Samples per update over all workers."""
        return self.job.global_batch_size

    @property
    def local_batch_size(self) -> int:
        """Samples per update of one worker."""
        return self.job.global_batch_size // self.workers

    @property
    def micro_batch_size(self) -> int | None:
        """The most samples per forward pass; None if the workload's own limit applies."""
        return self.job.micro_batch_size

    @property
    def save_after_minutes(self) -> float:
        """The minutes after which the trainer saves at the next evaluation; 0 means at every evaluation."""
        failures = (self.details or {}).get("failures") or {}
        minutes = failures.get(SAVE_AFTER) or 0.0
        return float(minutes) if math.isfinite(minutes) else 0.0

    @property
    def accumulation_steps(self) -> int:
        """Forward and backward passes of one worker per update."""
        return (
            math.ceil(self.local_batch_size / self.job.micro_batch_size)
            if self.job.micro_batch_size
            else 1
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON-compatible dictionary, in the format of ``plan.json``."""

        def plain(interval: Interval | None) -> dict[str, float] | None:
            return interval.to_dict() if interval else None

        return {
            "id": self.id,
            "study": self.study,
            "kind": self.kind,
            "machine": self.machine,
            "nodes": self.nodes,
            "workers": self.workers,
            "global_batch_size": self.global_batch_size,
            "local_batch_size": self.local_batch_size,
            "settings": self.job.settings.to_dict(),
            "epochs_to_target": plain(self.epochs),
            "seconds_to_target": plain(self.seconds),
            "trust": self.trust,
            "reason": self.reason,
            "job": self.job.to_dict(),
            "ranks_per_node": self.ranks_per_node,
            "micro_batch_size": self.micro_batch_size,
            "accumulation_steps": self.accumulation_steps,
            "launcher": self.launcher,
            "slot_seconds": self.slot_seconds,
            "chance_in_slot": self.chance_in_slot,
            "limited_by": self.limited_by,
            "accelerator_hours": plain(self.accelerator_hours),
            "energy_kwh": plain(self.energy_kwh),
            "details": self.details,
            **({"best": self.best.to_dict()} if self.best else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        """Return the plan from the values of :meth:`to_dict`; values missing in files of version 0.1 get defaults."""

        def interval(name: str) -> Interval | None:
            return Interval(**values[name]) if values.get(name) else None

        return cls(
            study=values["study"],
            kind=PlanKind(values["kind"]),
            machine=values["machine"],
            nodes=values["nodes"],
            workers=values["workers"],
            job=TrainingJob.from_dict(values["job"]),
            epochs=interval("epochs_to_target"),
            seconds=interval("seconds_to_target"),
            trust=values["trust"],
            reason=values["reason"],
            id=values["id"],
            ranks_per_node=values.get("ranks_per_node", 0),
            launcher=values.get("launcher", "local"),
            slot_seconds=values.get("slot_seconds"),
            chance_in_slot=values.get("chance_in_slot"),
            limited_by=values.get("limited_by", ""),
            accelerator_hours=interval("accelerator_hours"),
            energy_kwh=interval("energy_kwh"),
            details=values.get("details"),
            best=BestMetric.from_dict(values["best"]) if values.get("best") else None,
        )


DIGITS = 16
"""Length of the digest in a folder's name."""


def folder_name(plan: Plan) -> str:
    """Return the folder name of a plan, with a digest if the study's name has characters not allowed in a path.

    A name that itself ends like a digest gets one too, so that no study's plans overwrite another's.
    """
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", plan.study).strip("-")[:60]
    if slug != plan.study or re.search(f"-[0-9a-f]{{{DIGITS}}}$", slug):
        slug += "-" + hashlib.sha256(plan.study.encode()).hexdigest()[:DIGITS]
    return f"{slug}-{plan.global_batch_size}-{plan.kind}"


def planned_job(
    spec: StudySpec,
    settings: TrainingSettings,
    global_batch_size: int,
    epochs: Interval | None,
    sizes: Mapping[str, int] | None = None,
) -> TrainingJob:
    """Return the training job of a plan, with a seed that the sweep did not use.

    It may train BUDGET_FACTOR times as long as the upper end of the forecast, and at least as long as a trial of the
    sweep. A fixed budget is unchanged. ``sizes`` are those of its model, by default the full-scale ones.
    """
    budget = spec.budget.epochs_per_trial
    if epochs and not spec.question.fixed:
        budget = max(budget, float(math.ceil(BUDGET_FACTOR * epochs.high)))
    settings = settings_at_full_scale(spec, settings)
    settings = dataclasses.replace(settings, own={**settings.own, **(sizes or {})})
    return training_job(
        spec, settings, global_batch_size, seed=max(spec.seeds, spec.budget.trials), epochs=budget
    )


def check_plan_workers(job: TrainingJob, workers: int, machine: Machine, nodes: int) -> None:
    """Raise :class:`PlanError`, with the nearest possible number, if the batch cannot be split.

    Every worker takes the same share of the global batch, in whole normalization batches, at each size that the batch
    grows to.
    """
    if nodes < 1 or nodes > machine.nodes:
        raise PlanError(
            f"nodes must be between 1 and {machine.nodes}, the nodes of {machine.name}, but "
            f"got {nodes}",
            {"nodes": min(max(nodes, 1), machine.nodes)},
        )
    if workers < 1:
        raise PlanError(f"workers must be at least 1, but got {workers}", {"workers": 1})
    unit = job.settings.normalization_batch_size
    shared = shared_batch_size(job)
    if job.global_batch_size % (workers * unit):
        groups = (job.global_batch_size if shared % unit else shared) // unit
        if job.global_batch_size % unit:
            nearest = max(1, round(job.global_batch_size / unit)) * unit
            way_out, name = (
                f"the nearest batch size made of whole normalization batches is {nearest}",
                "global_batch_size",
            )
        else:
            nearest = min(divisors_of(groups), key=lambda each: (abs(each - workers), each))
            way_out, name = f"the nearest number of workers that divides it is {nearest}", "workers"
        raise PlanError(
            f"global batch size {job.global_batch_size} cannot be split over {workers} workers in whole "
            f"normalization batches of {unit} samples; {way_out}",
            {name: nearest},
        )
    if shared % (workers * unit):
        possible = [] if shared % unit else divisors_of(shared // unit)
        nearest = min(possible, key=lambda each: (abs(each - workers), each), default=0)
        sizes = ", ".join(map(str, _batch_sizes(job)))
        raise PlanError(
            f"the batch takes the sizes {sizes}, which cannot all be split over {workers} workers in whole "
            f"normalization batches of {unit} samples; "
            + (
                f"the nearest number of workers that divides all is {nearest}"
                if nearest
                else "change the batch schedule or normalization_batch_size"
            ),
            {"workers": nearest} if nearest else None,
        )


def shared_batch_size(job: TrainingJob) -> int:
    """Return the greatest common divisor of the global batch sizes that a job takes as its batch grows."""
    return math.gcd(*_batch_sizes(job))


def _batch_sizes(job: TrainingJob) -> tuple[int, ...]:
    try:
        return batch_sizes(job.settings, job.global_batch_size, job.epochs)
    except JobError as error:
        raise PlanError(str(error)) from error


def read_plan(path: Path) -> Plan:
    """Read the plan in a folder from ``hpo plan``, or its ``plan.json``; raise :class:`PlanError` if there is none."""
    file = path / "plan.json" if path.is_dir() else path
    try:
        return Plan.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise PlanError(
            f"there is no plan at {path}: `hpo plan STUDY --output {path}` writes one"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{file} is not a plan: {error}") from error
