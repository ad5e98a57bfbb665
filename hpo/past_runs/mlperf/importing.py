"""Stores MLPerf results: a study for each round and benchmark, a plan and the throughput for each configuration that
was run, and an outcome for each run.

The plans are of kind ``imported``: nothing was predicted for them, so they do not count in the calibration. Their
outcomes are evidence for forecasts, and their throughputs are evidence for the time model.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpo.errors import EvidenceError
from hpo.past_runs.mlperf.folders import BENCHMARKS, SubmittedRun, results_in
from hpo.study.spec import StudySpec
from storage.errors import NotFound
from storage.records import (
    NewOutcome,
    NewPlan,
    NewStudy,
    NewThroughput,
    PlanKind,
    StoredPlan,
    Study,
    StudyState,
    TrialState,
)
from storage.store import Store

BACKEND = "mlperf"


@dataclass
class MLPerfImport:
    """The result of an import: new outcomes by study, outcomes that were already known, and why files were left out."""

    outcomes: dict[str, int] = field(default_factory=dict)
    known: int = 0
    faults: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"outcomes": self.outcomes, "known": self.known, "left_out": self.faults}


def import_mlperf_results(store: Store, path: Path, round_name: str | None = None) -> MLPerfImport:
    """Read a folder of MLPerf results into the storage; importing the results again adds nothing.

    Raises :class:`EvidenceError` if the folder holds no readable result.
    """
    imported, groups = MLPerfImport(), defaultdict[str, list[SubmittedRun]](list)
    for found in results_in(path, round_name):
        if isinstance(found, EvidenceError):
            imported.faults.append(str(found))
        else:
            groups[_study_name(found)].append(found)
    if not groups:
        reasons = (
            "\n".join(imported.faults[:3])
            or f"it has none of the benchmarks {', '.join(BENCHMARKS)}"
        )
        raise EvidenceError(f"nothing could be imported from {path}: {reasons}")
    for name, results in groups.items():
        study, plans = _enter(store, name, results)
        for configuration in _configurations(results).values():
            added = _keep(store, study, plans, configuration)
            imported.outcomes[name] = imported.outcomes.get(name, 0) + added
            imported.known += len(configuration) - added
    return imported


def _study_name(result: SubmittedRun) -> str:
    # recipes change from round to round, and the open division has other data and targets
    parts = [
        "mlperf",
        result.round,
        result.benchmark,
        "" if result.division == "closed" else result.division,
    ]
    return "-".join(part for part in parts if part).replace("_", "-")


def _configurations(results: Sequence[SubmittedRun]) -> Mapping[object, list[SubmittedRun]]:
    found = defaultdict[object, list[SubmittedRun]](list)
    for result in results:
        found[
            result.system,
            result.path.parent,
            result.accelerators,
            result.global_batch_size,
            result.settings,
        ].append(result)
    return found


def _enter(
    store: Store, name: str, results: Sequence[SubmittedRun]
) -> tuple[Study, list[StoredPlan]]:
    """Return the study of that name, with a rung for each of its batch sizes, and its earlier plans."""
    try:
        study = store.study(name)
    except NotFound:
        plans, spec = [], _spec(name, results, [])
        spec.check_new()
        study = store.create_study(
            NewStudy(
                name=name,
                workload=spec.workload,
                metric=spec.target.metric,
                threshold=spec.target.threshold,
                higher_is_better=True,
                spec=spec.text,
                budget_trials=spec.budget.trials,
            )
        )
    else:
        plans = store.plans(study.id)
        spec = _spec(name, results, plans)
        store.update_spec(study.id, spec.text, budget_trials=spec.budget.trials)
    store.set_study_state(study.id, StudyState.FINISHED, "imported from published results")
    return study, plans


def _spec(name: str, results: Sequence[SubmittedRun], plans: Sequence[StoredPlan]) -> StudySpec:
    """Return a study for the results and plans, with their batch sizes as ladder and learning rates as range."""
    first = results[0]
    every = {plan.global_batch_size for plan in plans} | {
        result.global_batch_size for result in results
    }
    rates = [
        *(plan.settings["learning_rate"] for plan in plans),
        *(result.settings.learning_rate for result in results),
    ]
    longest = max((result.run.epochs for result in results), default=0.0) or 1.0
    return StudySpec.from_dict(
        {
            "name": name,
            "workload": BENCHMARKS[first.benchmark].workload,
            "data": {"source": f"mlperf-{first.benchmark}"},
            "target": {"metric": BENCHMARKS[first.benchmark].metric, "at_least": first.threshold},
            "ladder": sorted(every),
            "search": {
                "optimizer": first.settings.optimizer,
                "normalization_batch_size": 1,
                "learning_rate": {
                    "log_uniform": [min(rates) / 2, max(rates) * 2],
                    "role": "scaled",
                },
            },
            "budget": {"trials": len(every), "epochs_per_trial": float(math.ceil(longest))},
        }
    )


def _keep(
    store: Store, study: Study, plans: Sequence[StoredPlan], results: Sequence[SubmittedRun]
) -> int:
    """Store the new runs of one configuration, and return their number."""
    first = results[0]
    plan_id = _plan(store, study, plans, first)
    known = {outcome.source for outcome in store.outcomes(plan_id)}
    new = [result for result in results if result.source not in known]
    for result in new:
        store.add_outcome(_outcome(plan_id, result))
    rates = [result.run.samples_per_second for result in new if result.run.samples_per_second]
    if rates:
        store.add_throughputs(
            [
                NewThroughput(
                    machine=first.system,
                    workload=study.workload,
                    nodes=first.nodes,
                    accelerators=first.accelerators,
                    global_batch_size=first.global_batch_size,
                    precision=first.settings.precision,
                    samples_per_second=statistics.median(rates),
                    source=first.source,
                )
            ]
        )
    return len(new)


def _plan(store: Store, study: Study, plans: Sequence[StoredPlan], result: SubmittedRun) -> int:
    """Return the plan of a configuration: one of the existing ``plans``, or a new one."""
    settings = result.settings.to_dict()
    for plan in plans:
        if (
            plan.kind is PlanKind.IMPORTED
            and plan.directory == _folder(result)
            and dict(plan.settings) == settings
            and (plan.workers, plan.global_batch_size)
            == (result.accelerators, result.global_batch_size)
        ):
            return plan.id
    return store.add_plan(
        NewPlan(
            study_id=study.id,
            kind=PlanKind.IMPORTED,
            machine=result.system,
            nodes=result.nodes,
            workers=result.accelerators,
            global_batch_size=result.global_batch_size,
            local_batch_size=max(1, result.global_batch_size // result.accelerators),
            settings=settings,
            directory=_folder(result),
        )
    ).id


def _folder(result: SubmittedRun) -> str:
    return result.source.rpartition("/")[0]


def _outcome(plan_id: int, result: SubmittedRun) -> NewOutcome:
    reached = next(
        (each.epochs for each in result.run.evaluations if each.metric >= result.threshold), None
    )
    state = TrialState.CENSORED if reached is None else TrialState.REACHED
    return NewOutcome(
        plan_id=plan_id,
        seed=result.seed,
        backend=BACKEND,
        workers=result.accelerators,
        state=state,
        epochs_to_target=reached,
        epochs=result.run.epochs,
        seconds=result.run.seconds,
        best_metric=max((each.metric for each in result.run.evaluations), default=None),
        reason="" if reached is not None else f"ended as {result.run.status or 'unknown'}",
        nodes=result.nodes,
        samples_per_second=result.run.samples_per_second,
        source=result.source,
    )
